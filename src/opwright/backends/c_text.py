"""Scanning C-like text (C++, CUDA C++, demangled names, Mojo) without parsing it: comments, brackets, commas, includes.

Enough to find a function's declaration and the files that a source includes before any compiler runs. Whoever needs
more asks a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = [
    "INCLUDE", "blank_out", "closing_bracket", "find_header", "included_files", "is_within_function",
    "opening_bracket", "outside_brackets", "split_commas",
]  # fmt: skip

# An #include line: what stands before the name, and the name.
INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)[<"]([^">\n]+)[>"]', re.MULTILINE)
_OPENING, _CLOSING = "([{", ")]}"
_COMMENT_OR_STRING = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


def blank_out(text: str) -> str:
    """The text with comments and literals as spaces: what is left is code, and stands where it stood."""

    def blank(found: re.Match[str]) -> str:
        if found[0][0] == "'" and text[found.start() - 1 : found.start()].isalnum():
            return found[0]  # 1'000'000: a digit separator
        return re.sub(r"[^\n]", " ", found[0])

    return _COMMENT_OR_STRING.sub(blank, text)


def closing_bracket(code: str, opening: int) -> int | None:
    """Where the bracket at a position is closed; None if it is not."""
    depth = 0
    for position in range(opening, len(code)):
        depth += (code[position] in _OPENING) - (code[position] in _CLOSING)
        if depth == 0:
            return position
    return None


def opening_bracket(code: str, closing: int) -> int | None:
    """Where the bracket that is closed at a position was opened; None if it was not."""
    depth = 0
    for position in range(closing, -1, -1):
        depth += (code[position] in _CLOSING) - (code[position] in _OPENING)
        if depth == 0:
            return position
    return None


def split_commas(text: str, *, angles: bool = True) -> list[str]:
    """The parts of a list between its own commas, not those within brackets; empty parts are left out.

    Args:
        angles: whether ``<`` and ``>`` are brackets, as in a list of C++ types; elsewhere they may be comparisons.
    """
    opening, closing = (_OPENING + "<", _CLOSING + ">") if angles else (_OPENING, _CLOSING)
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in opening) - (letter in closing)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def outside_brackets(text: str) -> str:
    """A text without what stands in brackets, and without these."""
    kept, position = "", 0
    while position < len(text):
        if text[position] in _OPENING:
            position = (closing_bracket(text, position) or len(text)) + 1
        else:
            kept += text[position]
            position += 1
    return kept


def is_within_function(code: str, position: int) -> bool:
    """Whether some brace that is open here opens something other than a namespace or a linkage block.

    Args:
        code: without comments and literals.
    """
    open_braces: list[bool] = []
    head = 0
    for found in re.finditer(r"[;{}]", code[:position]):
        if found[0] == "{":
            before = code[head : found.start()]
            open_braces.append(not re.search(r"\bnamespace\b[\w\s:]*$|\bextern\s*$", before))
        elif found[0] == "}" and open_braces:
            open_braces.pop()
        head = found.end()
    return any(open_braces)


def find_header(name: str, includer: Path | None, folders: Sequence[Path]) -> Path | None:
    """The user's file that an ``#include`` means: beside the file that includes it (in the working folder, for a text
    without one), else in one of the folders. None for headers of the system."""
    beside = includer.parent if includer is not None else Path.cwd()
    found = next((folder / name for folder in (beside, *folders) if (folder / name).is_file()), None)
    return found.resolve() if found is not None else None


def included_files(
    text: str, path: Path | None, folders: Sequence[Path], *, leave_out: Callable[[str], bool] = lambda name: False
) -> list[Path]:
    """The user's own headers that a source includes, directly or not, each once.

    Headers of torch, CUDA and the compiler are not among them: whoever keys on headers has their versions in the key.

    Args:
        path: the source's file, beside which headers are looked for first; None for a text without one.
        folders: where they are looked for after that.
        leave_out: names that somebody else provides.
    """
    found: list[Path] = []
    waiting = [(text, path)]
    while waiting:
        current, includer = waiting.pop()
        for _, name in INCLUDE.findall(current):
            header = None if leave_out(name) else find_header(name, includer, folders)
            if header is not None and header not in found:
                found.append(header)
                waiting.append((header.read_text(errors="replace"), header))
    return found
