"""The C++ of operations on tensor descriptors: tiles by the coordinates of their first element, as TMA moves them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelsim.triton_sim.from_ttir.elementwise import RMW
from kernelsim.triton_sim.from_ttir.reading import NAME, Operation
from kernelsim.triton_sim.from_ttir.tensors import TensorWriter
from kernelsim.triton_sim.from_ttir.writer import element_of, strides_of, unsigned, value

__all__ = ["DescriptorWriter"]

_PADDED_WITH_NAN = "2"


class DescriptorWriter(TensorWriter):
    """Writes operations on descriptors. Elements outside of the shape are read as zero (or NaN) and not written."""

    def op_tt_make_tensor_descriptor(self, op: Operation, _: str) -> None:
        lists = re.findall(r"\[([^\]]*)\]", op.text)
        shape, strides = (", ".join(f"(int64_t){value(n)}" for n in re.findall(NAME, part)) for part in lists)
        nan = "true" if (op.attribute("padding") or "1") == _PADDED_WITH_NAN else "false"
        base = f"aligned_base({value(op.operands[0])}, {self.site(op, size='P')}, {self.source(op.operands[0])})"
        self.lines.append(f"{value(op.results[0])} = Desc{{{base}, {{{shape}}}, {{{strides}}}, {nan}}};")

    def op_tt_descriptor_load(self, op: Operation, _: str) -> None:
        descriptor, *at = op.operands
        element = element_of(self.types[op.results[0]])
        place = self.place(op, descriptor, self.coordinates(descriptor, at), element)
        self.each(op, lambda i: f"tile_load<{element}>({place})")

    def op_tt_descriptor_store(self, op: Operation, _: str) -> None:
        descriptor, *at, stored = op.operands
        element = element_of(self.types[stored])
        place = self.place(op, descriptor, self.coordinates(descriptor, at), element)
        self.over_stored(self.types[stored], f"tile_store<{element}>({self.at(stored)}, {place});")

    def op_tt_descriptor_reduce(self, op: Operation, _: str) -> None:
        kind = op.text.split(",")[0].strip()
        descriptor, *at, stored = op.operands
        t = element_of(self.types[stored])
        change = RMW[kind].format(t=t, u=unsigned(t))
        update = f"[&]({t} old) -> {t} {{ {t} x = {self.at(stored)}; return {change}; }}"
        place = self.place(op, descriptor, self.coordinates(descriptor, at), t)
        self.over(self.types[stored], f"tile_atomic<{t}>({update}, {place});")

    def op_tt_descriptor_gather(self, op: Operation, _: str) -> None:
        descriptor, rows, column = op.operands
        element = element_of(self.types[op.results[0]])
        place = self.place(op, descriptor, self.row(descriptor, rows, column), element)
        self.each(op, lambda i: f"tile_load<{element}>({place})")

    def op_tt_descriptor_scatter(self, op: Operation, _: str) -> None:
        descriptor, rows, column, stored = op.operands
        element = element_of(self.types[stored])
        place = self.place(op, descriptor, self.row(descriptor, rows, column), element)
        self.over_stored(self.types[stored], f"tile_store<{element}>({self.at(stored)}, {place});")

    def place(self, op: Operation, descriptor: str, coordinates: Sequence[str], element: str) -> str:
        site = self.site(op, size=element)
        return f"{value(descriptor)}, {site}, {self.source(descriptor)}, i, {', '.join(coordinates)}"

    def coordinates(self, descriptor: str, first: Sequence[str]) -> list[str]:
        """Those of element ``i`` of a tile that begins at ``first``."""
        shape = self.types[descriptor].shape
        steps = zip(first, strides_of(shape), shape, strict=True)
        return [f"(int64_t){value(name)} + i / {step} % {size}" for name, step, size in steps]

    def row(self, descriptor: str, rows: str, column: str) -> list[str]:
        """Those of element ``i`` of rows that are listed."""
        length = self.types[descriptor].shape[-1]
        return [f"(int64_t){self.at(rows, f'(i / {length})')}", f"(int64_t){value(column)} + i % {length}"]
