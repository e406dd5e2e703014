"""A source with the bodies of some kernels only: what the others call need not be read, checked and instantiated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opwright.backends.c_text import blank_out, closing_bracket
from opwright.backends.cuda.text.kernel_heads import kernel_heads

__all__ = ["with_one_kernel"]

_ATTRIBUTES = re.compile(r"(?:\s|\b__\w+__(?:\s*\((?:[^()]|\([^()]*\))*\))?)*")
_DIRECTIVE = re.compile(r"^[ \t]*#", re.MULTILINE)


@dataclass(frozen=True)
class _Kernel:
    """A kernel's name, and where its body begins and ends."""

    name: str
    begin: int
    end: int


def with_one_kernel(texts: Sequence[str], expression: str) -> list[str]:
    """The texts with declarations in place of other kernels, every line in its place.

    A kernel stays if anything else names it, or if directives are in its body, which may decide where it ends.

    Args:
        expression: a kernel, or an instance of one; what its template arguments name stays too.
    """
    codes = [blank_out(text) for text in texts]
    kept = {*re.findall(r"\w+", expression), *_named_elsewhere(codes)}
    return [
        _declared_only([kernel for kernel in _defined(code) if kernel.name not in kept], text)
        for text, code in zip(texts, codes, strict=True)
    ]


def _named_elsewhere(codes: Sequence[str]) -> set[str]:
    """The kernels that more than their definitions and declarations name."""
    heads = Counter(head.name for code in codes for head in kernel_heads(code))
    words = Counter(word for code in codes if heads for word in re.findall(r"\w+", code))
    return {name for name, count in heads.items() if words[name] > count}


def _defined(code: str) -> Iterator[_Kernel]:
    """The kernels that are defined outside of macros and whose end is certain."""
    for head in kernel_heads(code):
        parameters = closing_bracket(code, head.opening)
        after = _ATTRIBUTES.match(code, parameters + 1) if parameters is not None else None
        if after is None or code[after.end() : after.end() + 1] != "{" or _is_in_macro(code, head.begin):
            continue
        end = closing_bracket(code, after.end())
        if end is not None and not _DIRECTIVE.search(code, head.begin, end):
            yield _Kernel(head.name, after.end(), end + 1)


def _is_in_macro(code: str, position: int) -> bool:
    begin = code.rfind("\n", 0, position) + 1
    while begin > 1 and code[:begin].rstrip("\n\r").endswith("\\"):
        begin = code.rfind("\n", 0, begin - 1) + 1
    return code[begin:].lstrip().startswith("#")


def _declared_only(kernels: Sequence[_Kernel], text: str) -> str:
    for kernel in kernels:
        body = re.sub(r"[^\n]", " ", text[kernel.begin : kernel.end])
        text = f"{text[: kernel.begin]};{body[1:]}{text[kernel.end :]}"
    return text
