"""The names of files in C++ and assembler texts that no compiler reports: of files that were looked for and were not
there, of precompiled headers, and of what an assembler reads that makes no report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["NamedFiles", "named_files"]

# A name on a line for the preprocessor, whatever it is for: an include, a macro that is included, __has_include.
_DIRECTIVE = re.compile(r"#[^\n]*")
_NAME = re.compile(r'"([^"\n]+)"|<([^<>\n]+)>')
_COMMENT = re.compile(r"/\*.*?\*/")
_DEFINE = re.compile(r"#\s*define\s+(\w+)(?:\(([^)]*)\))?(.*)")
_ASKING = frozenset({"__has_include", "__has_include_next", "__has_embed"})
# Directives of an assembler, which do not depend on case. In a C string their quotes are escaped.
_ASSEMBLED = re.compile(r'\.incbin\b(?:\s+\\?"([^"\\\n]+)\\?")?|\.include\b(?:\s+\\?"([^"\\\n]+)\\?")?', re.IGNORECASE)
_SOME_OF_A_DIRECTIVE = re.compile(r'(?<![\w.)\]])\.i(?:nc?\w*)?(?=")', re.IGNORECASE)
_ASSEMBLERS_MACRO = re.compile(r"\.(?:macro|irpc?)\b", re.IGNORECASE)
_ASM = re.compile(r"\b(?:asm|__asm|__asm__)\b")
_PASTED = re.compile(r'(?<!\\)"\s*"')
_MADE = ""  # stands for the value of a macro with parameters
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]+)|([0-7]{1,3})|(.))")


@dataclass(frozen=True)
class NamedFiles:
    """Names of files in some texts.

    Attributes:
        included: on lines for the preprocessor.
        assembled: in directives for an assembler.
        has_all_questions: whether every ``__has_include`` asks for one of ``included``.
        has_all_assembled: whether there are no directives for an assembler but those of ``assembled``.
    """

    included: frozenset[str]
    assembled: frozenset[str]
    has_all_questions: bool
    has_all_assembled: bool


def named_files(texts: Iterable[str]) -> NamedFiles:
    """The names in the texts of one build, which may use each other's macros."""
    continued = [text.replace("\\\n", "") for text in texts]
    lines = [_COMMENT.sub(" ", line) for text in continued for line in _DIRECTIVE.findall(text)]
    assembled = {name for text in continued for name in _assembled(text)}
    return NamedFiles(
        frozenset(quoted or angled for line in lines for quoted, angled in _NAME.findall(line)),
        frozenset(assembled - {""}),
        _asks_for_literals(lines),
        "" not in assembled,
    )


def _assembled(text: str) -> Iterator[str]:
    """The names of files that an assembler may read; "" for one that the text does not tell."""
    in_strings = _unescaped(_PASTED.sub("", text))
    for form in (text, in_strings):
        yield from (one or other for one, other in _ASSEMBLED.findall(form))
    in_a_macro = _ASM.search(text) and _SOME_OF_A_DIRECTIVE.search(in_strings)  # which has the rest
    if in_a_macro or _ASSEMBLERS_MACRO.search(in_strings):
        yield ""


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        in_hex, in_octal, other = found.groups()
        if other is not None:
            return {"n": "\n", "t": "\t"}.get(other, other)
        return chr(min(int(in_hex, 16) if in_hex else int(in_octal, 8), 0x10FFFF))

    return _ESCAPE.sub(character, text)


def _asks_for_literals(lines: list[str]) -> bool:
    """Whether the lines tell for which names they ask. Not if a macro makes a name: ``#define H STRING(extra.h)``."""
    values: dict[str, list[str]] = {}
    for found in filter(None, map(_DEFINE.match, lines)):
        values.setdefault(found[1], []).append(found[3].strip() if found[2] is None else _MADE)
    asking, more = set[str](), set(_ASKING)
    while more:  # until there are no more macros that ask for what they are given: #define HAS(x) __has_include(x)
        asking, more = asking | more, set()
        question = re.compile(rf"\b(?:{'|'.join(sorted(asking))})\s*\(\s*([\w\"<#])(\w*)")
        for line in lines:
            macro = _DEFINE.match(line)
            parameters = re.findall(r"\w+", macro[2] or "") if macro else []
            for first, rest in question.findall(line):
                if macro and first + rest in parameters:
                    more |= {macro[1]} - asking
                elif first not in '"<' and not _is_literal(first + rest, values):
                    return False
    return True


def _is_literal(macro: str, values: dict[str, list[str]], depth: int = 0) -> bool:
    """Whether all values of a macro are names in quotes or angles, or macros with such values."""

    def is_one(value: str) -> bool:
        if re.fullmatch(r"\w+", value):
            return _is_literal(value, values, depth + 1)
        # Between angles, macros are replaced.
        return bool(_NAME.fullmatch(value)) and (value[0] == '"' or values.keys().isdisjoint(re.findall(r"\w+", value)))

    return depth < 8 and all(map(is_one, values.get(macro, [_MADE])))
