"""Gives each value of a function a name of its own: regions beside each other may repeat one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from kernelsim.triton_sim.from_ttir.reading import NAME, Block, Function, Operation

__all__ = ["make_names_unique"]

_DEFINED_OR_USED = re.compile(rf"({NAME})( = )?")


def make_names_unique(function: Function) -> None:
    """Rename all values of a function."""
    numbers = itertools.count()

    def fresh(name: str) -> str:
        return f"%{re.sub(r'[^A-Za-z0-9_]', '_', name[1:])}.{next(numbers)}"

    names = {name: fresh(name) for name, _ in function.arguments}
    function.arguments = [(names[name], type_) for name, type_ in function.arguments]
    _rename(function.blocks, names, fresh)


def _rename(blocks: Sequence[Block], names: dict[str, str], fresh: Callable[[str], str]) -> None:
    """Rename what a region defines, and what it uses of the regions around it."""
    for block in blocks:
        names |= {name: fresh(name) for name, _ in block.arguments}
        block.arguments = [(names[name], type_) for name, type_ in block.arguments]
        for op in block.operations:
            inner = _rename_in_text(op, names, fresh)
            for region in op.regions:
                _rename(region, dict(inner), fresh)
            names |= {name: fresh(name) for name in op.results}
            op.results = [names[name] for name in op.results]


def _rename_in_text(op: Operation, names: dict[str, str], fresh: Callable[[str], str]) -> dict[str, str]:
    """Rename what an operation uses. The text of a loop defines names as well (``%i =``), for its regions: returned."""
    inner = dict(names)

    def renamed(found: re.Match[str]) -> str:
        name, defines = found[1], found[2] or ""
        if defines:
            inner[name] = fresh(name)
            return inner[name] + defines
        return names.get(name, name)

    op.text = "".join(part if i % 2 else _DEFINED_OR_USED.sub(renamed, part) for i, part in enumerate(_parts(op.text)))
    op.types = _DEFINED_OR_USED.sub(renamed, op.types)
    return inner


def _parts(text: str) -> list[str]:
    """The text outside of strings, and the strings, in turn."""
    return re.split(r'("(?:[^"\\]|\\.)*")', text)
