"""Scanning C-like text (C++, CUDA C++, demangled names, Mojo) without parsing it: brackets, commas, scopes."""

from __future__ import annotations

import re

__all__ = [
    "closing_bracket", "enclosing_scopes", "is_within_function", "opening_bracket", "outside_brackets", "split_commas",
]  # fmt: skip

_OPENING, _CLOSING = "([{", ")]}"
_BRACKET = re.compile(r"[()\[\]{}]")


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
