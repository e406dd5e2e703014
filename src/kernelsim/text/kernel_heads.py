"""Where kernels stand in a source: a token scan and no syntax tree, since in a macro's body there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelsim.text.c_text import closing_bracket

__all__ = ["KernelHead", "kernel_heads"]

_TO_A_BRACKET = re.compile(r"[^;{}()]*\(")
_NAME = re.compile(r"(\w+)\s*\($")
_ATTRIBUTE = re.compile(r"__\w+__|alignas")
_TEMPLATE = re.compile(r"\btemplate\s*<[^;{}]*?>\s*[\w\s]*?\Z")


@dataclass(frozen=True)
class KernelHead:
    """The head of a kernel's definition or declaration.

    Attributes:
        begin: the position of ``__global__``.
        name: with ``at``, its position.
        opening: the position of the bracket before the parameters.
    """

    begin: int
    name: str
    at: int
    opening: int

    def is_template(self, code: str) -> bool:
        return _TEMPLATE.search(code, 0, self.begin) is not None


def kernel_heads(code: str) -> Iterator[KernelHead]:
    """The kernels of a source without comments and literals. A name is what stands before the first bracket that is not
    an attribute's; an explicit instance of a template has none."""
    for found in re.finditer(r"\b__global__\b", code):
        position: int | None = found.end()
        while position is not None:
            bracket = _TO_A_BRACKET.match(code, position)
            name = _NAME.search(bracket[0]) if bracket is not None else None
            if bracket is None or name is None:
                break
            opening = bracket.end() - 1
            if not _ATTRIBUTE.fullmatch(name[1]):
                yield KernelHead(found.start(), name[1], position + name.start(1), opening)
                break
            closing = closing_bracket(code, opening)
            position = closing + 1 if closing is not None else None
