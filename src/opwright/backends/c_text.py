"""Scanning C-like text (C++, CUDA C++, demangled names, Mojo) without parsing it: comments, brackets, commas, includes.

This finds a function's declaration and the headers that a source includes, as far as that can be known before a
compiler runs. What a build has read is another matter (``compiler_inputs.py``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = [
    "INCLUDE", "blank_out", "closing_bracket", "enclosing_scopes", "find_header", "included_files",
    "included_header",
    "is_within_function", "opening_bracket", "outside_brackets", "source_text", "split_commas",
]  # fmt: skip

# An #include line: the text before the name, and the name.
INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)[<"]([^">\n]+)[>"]', re.MULTILINE)
_OPENING, _CLOSING = "([{", ")]}"
_BRACKET = re.compile(r"[()\[\]{}]")
# A comment, a literal, or a number. Numbers are matched because a quote in a number (1'000) opens no literal.
_TOKEN = re.compile(
    r"""
    //(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z)                                                            # comment
    | \b(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\(.*?(?:\)(?P=mark)"|\Z)                             # raw string
    | "(?:\\.|[^"\\\n])*" | (?:\b(?:u8|[uUL]))?'(?:\\.|[^'\\\n])+'                                # string, character
    | (?P<number>(?<!\w)\.?\d(?:[eEpP][+-]|'?\w|\.)*)
    """,
    re.DOTALL | re.VERBOSE,
)


@functools.lru_cache(maxsize=128)
def blank_out(text: str) -> str:
    """The text with comments and literals replaced by spaces. The remaining code keeps its positions."""

    def blank(found: re.Match[str]) -> str:
        return found[0] if found["number"] else re.sub(r"[^\n]", " ", found[0])

    return _TOKEN.sub(blank, text)


def closing_bracket(code: str, opening: int) -> int | None:
    """The position of the bracket that closes the one at ``opening``; None if it is not closed."""
    depth = 0
    for bracket in _BRACKET.finditer(code, opening):
        depth += 1 if bracket[0] in _OPENING else -1
        if depth == 0:
            return bracket.start()
    return None


def opening_bracket(code: str, closing: int) -> int | None:
    """The position of the bracket that opens the one at ``closing``; None if it was not opened."""
    depth = 0
    for position in range(closing, -1, -1):
        depth += (code[position] in _CLOSING) - (code[position] in _OPENING)
        if depth == 0:
            return position
    return None


def split_commas(text: str, *, angles: bool = True) -> list[str]:
    """The parts between the commas of a list, without the commas within brackets. Empty parts are left out.

    Args:
        angles: whether ``<`` and ``>`` are brackets, as in a list of C++ types; elsewhere they may be comparisons. The
            ``>`` of an arrow is none.
    """
    opening, closing = (_OPENING + "<", _CLOSING + ">") if angles else (_OPENING, _CLOSING)
    parts, depth = [""], 0
    for position, letter in enumerate(text):
        if not text.startswith("->", position - 1):
            depth += (letter in opening) - (letter in closing)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def outside_brackets(text: str) -> str:
    """The text without brackets and their contents."""
    kept, position = "", 0
    while position < len(text):
        if text[position] in _OPENING:
            position = (closing_bracket(text, position) or len(text)) + 1
        else:
            kept += text[position]
            position += 1
    return kept


def is_within_function(code: str, position: int) -> bool:
    """Whether an open brace at this position belongs to something other than a namespace or a linkage block.

    Args:
        code: without comments and literals.
    """
    return any(not re.search(r"\bnamespace\b[\w\s:]*$|\bextern\s*$", head) for head in _open_heads(code, position))


_SCOPE = re.compile(
    r"\b(?P<inline>inline\s+)?namespace\b(?P<name>[\w\s:]*)$|.*\b(?:struct|class)\s+(?P<class>\w+)[^()]*$", re.S
)


def enclosing_scopes(code: str, position: int) -> list[str]:
    """The names of the namespaces and classes around a position, from outside. Those without a name, and inline ones,
    are left out: what is in them is named without them.

    Args:
        code: without comments and literals.
    """
    names: list[str] = []
    for head in _open_heads(code, position):
        scope = _SCOPE.search(head)
        if scope and scope["class"]:
            names.append(scope["class"])
        elif scope and not scope["inline"]:
            names += re.findall(r"\w+", scope["name"])
    return names


def _open_heads(code: str, position: int) -> list[str]:
    """What stands before each brace that is open at a position, back to the end of what precedes it."""
    heads: list[str] = []
    begin = 0
    for found in re.finditer(r"[;{}]", code[:position]):
        if found[0] == "{":
            heads.append(code[begin : found.start()])
        elif found[0] == "}" and heads:
            heads.pop()
        begin = found.end()
    return heads


def source_text(path: Path) -> str:
    """The text of a source or header, of which a byte order mark is no part: compilers know one at a file's begin only.

    Raises:
        OSError: the file cannot be read.
    """
    return path.read_text(encoding="utf-8-sig", errors="replace")


def find_header(name: str, includer: Path | None, folders: Sequence[Path]) -> Path | None:
    """The user's file that an ``#include`` names. It is beside the file that includes it (in the working folder, for a
    text without a file), else in one of the folders. None for headers of the system."""
    beside = includer.parent if includer is not None else Path.cwd()
    found = next((folder / name for folder in (beside, *folders) if (folder / name).is_file()), None)
    return found.resolve() if found is not None else None


def included_header(
    line: re.Match[str], includer: Path | None, folders: Sequence[Path], leave_out: Callable[[str], bool]
) -> Path | None:
    """The user's file that a match of INCLUDE names; None for one whose name is left out.

    A name in quotes of a file beside the one that includes it means that file, whatever the name is.
    """
    name = line[2]
    is_beside = line[0].endswith('"') and includer is not None and (includer.parent / name).is_file()
    return find_header(name, includer, folders) if is_beside or not leave_out(name) else None


def included_files(
    text: str, path: Path | None, folders: Sequence[Path], *, leave_out: Callable[[str], bool] = lambda name: False
) -> list[Path]:
    """The user's own headers that a source includes, directly or not, each once.

    Headers of torch, CUDA and the compiler are not among them, nor those that only the preprocessor can name.

    Args:
        path: the source's file, whose folder is searched first; None for a text without a file.
        folders: the folders that are searched next.
        leave_out: whether to ignore a name, such as that of a header that is provided in another way.
    """
    found: list[Path] = []
    waiting = [(text, path)]
    while waiting:
        current, includer = waiting.pop()
        lines = list(INCLUDE.finditer(current))
        code = blank_out(current[: lines[-1].end()]) if lines else ""  # headers of libraries are long
        for line in lines:
            if code[line.start() : line.end(1)].strip() == "":
                continue  # in a comment or a literal
            header = included_header(line, includer, folders, leave_out)
            if header is not None and header not in found:
                found.append(header)
                waiting.append((source_text(header), header))
    return found
