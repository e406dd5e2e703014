"""Writes C++ from the operations of a TTIR module: each tensor is a flat array, each operation a loop over it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelsim.triton_sim.from_ttir.descriptors import DescriptorWriter
from kernelsim.triton_sim.from_ttir.reading import Function, Operation
from kernelsim.triton_sim.from_ttir.writer import Site, c_of, head, identifier, unsigned, value

__all__ = ["Generated", "generate"]


@dataclass
class Generated:
    """The text of the C++, its sites by number, and the C types of the kernel's parameters.

    ``waits`` if programs may wait for each other, so that all have to run at the same time.
    """

    text: str
    sites: list[Site]
    parameters: list[str]
    waits: bool


def generate(functions: Sequence[Function]) -> Generated:
    """The C++ of a module.

    Raises:
        NotSimulatedError: the module has an operation or a type that the simulator does not have; it is named.
    """
    sites: list[Site] = []
    signatures = {f.name: f for f in functions}
    texts = [_ModuleWriter(f, signatures, sites).write() for f in functions]
    kernel = next(f for f in functions if f.public)
    types = [c_of(t) for _, t in kernel.arguments]
    read = ", ".join(f"*({t}*)arguments[{i}]" for i, t in enumerate(types))
    entry = f"EXPORTED kernelsim_kernel(void** arguments) {{ {identifier(kernel.name)}({read}); }}\n"
    prototypes = [head(f) + ";" for f in functions]
    operations = [op for f in functions for block in f.blocks for op in block.operations]
    waits = any(op.waits or any(inner.waits for inner in op.nested()) for op in operations)
    return Generated("\n".join(['#include "kernelsim_triton.h"', *prototypes, *texts, entry]), sites, types, waits)


class _ModuleWriter(DescriptorWriter):
    """Writes operations that direct the flow of control, and all others."""

    # --- control flow ---

    def assignments(self, targets: Sequence[str], sources: Sequence[str]) -> str:
        """Parallel assignments: all sources are read before any target is set."""
        pairs = list(zip(targets, sources, strict=True))
        reads = " ".join(f"auto n{i} = {value(s)};" for i, (_, s) in enumerate(pairs))
        return f"{{ {reads} " + " ".join(f"{value(t)} = n{i};" for i, (t, _) in enumerate(pairs)) + " }"

    def op_scf_yield(self, op: Operation, ends: str) -> None:
        targets = ends.split()
        if targets:
            self.lines.append(self.assignments(targets, op.operands))

    def op_scf_for(self, op: Operation, _: str) -> None:
        variable, low, high, step = re.findall(r"%[\w$.\-]+(?:#\d+)?", op.text)[:4]
        carried = re.findall(r"(%[\w$.\-]+) = (%[\w$.\-]+(?:#\d+)?)", op.text.partition("iter_args(")[2])
        kind = self.types[low]
        self.types[variable] = kind
        for (name, _first), type_ in zip(carried, self.result_types(op), strict=True):
            self.types[name] = type_
            self.lines.append(f"{c_of(type_)} {value(name)} = {value(_first)};")
        body = self.block(op.regions[0][0], ends=" ".join(name for name, _ in carried))
        wraps = "unsigned" in op.text.split("=")[0]
        c = unsigned(c_of(kind)) if wraps else c_of(kind)
        self.lines.append(f"for (int64_t at = ({c}){value(low)}; at < (int64_t)({c}){value(high)}; "
                          f"at += {value(step)}) {{ {c_of(kind)} {value(variable)} = ({c_of(kind)})at;")  # fmt: skip
        for number, (name, _first) in enumerate(carried, 1):  # of the block's arguments, the first is the variable
            self.lines += self.stated_multiples(op, name, f"_arg{number}")
        self.lines += [*body, "}"]
        self.lines += [f"{value(r)} = {value(n)};" for r, (n, _) in zip(op.results, carried, strict=True)]

    def op_scf_if(self, op: Operation, _: str) -> None:
        ends = " ".join(op.results)
        self.lines += [f"if ({value(op.operands[0])}) {{", *self.block(op.regions[0][0], ends=ends), "}"]
        if len(op.regions) > 1:
            self.lines += ["else {", *self.block(op.regions[1][0], ends=ends), "}"]

    def op_scf_while(self, op: Operation, _: str) -> None:
        """Both regions may give their arguments the same names, so values go from one to the other in names of ours."""
        carried = re.findall(r"(%[\w$.\-]+) = (%[\w$.\-]+(?:#\d+)?)", op.text)
        before, after = op.regions[0][0], op.regions[1][0]
        self.loops += 1
        inputs = [f"%in{self.loops}_{i}" for i in range(len(carried))]
        kept = [f"%out{self.loops}_{i}" for i in range(len(after.arguments))]
        for (name, first), mine in zip(carried, inputs, strict=True):
            self.types[name] = self.types[first]
            self.lines.append(f"{c_of(self.types[first])} {value(mine)} = {value(first)};")
        self.lines += [f"{c_of(t)} {value(n)};" for n, (_, t) in zip(kept, after.arguments, strict=True)]
        names = [name for name, _ in carried]
        pause = ["sched_yield();"] if op.waits else []  # whoever is waited for gets the core
        self.lines += [
            "for (;;) { {",
            *pause,
            *self.copies(names, inputs),
            *self.block(before, ends=" ".join(kept)),
            "} {",
        ]
        self.types.update(after.arguments)
        names = [name for name, _ in after.arguments]
        self.lines += [*self.copies(names, kept), *self.block(after, ends=" ".join(inputs)), "} }"]
        self.lines += [f"{value(r)} = {value(n)};" for r, n in zip(op.results, kept, strict=True)]

    def copies(self, names: Sequence[str], sources: Sequence[str]) -> list[str]:
        return [f"auto {value(n)} = {value(s)};" for n, s in zip(names, sources, strict=True)]

    def op_scf_condition(self, op: Operation, ends: str) -> None:
        condition, *values = op.operands
        self.lines += [self.assignments(ends.split(), values), f"if (!{value(condition)}) break;"]

    def op_tt_call(self, op: Operation, _: str) -> None:
        name = re.search(r'@(?:"([^"]+)"|([\w.$]+))', op.text)
        assert name is not None
        operands = ", ".join(value(n) for n in re.findall(r"%[\w$.\-]+(?:#\d+)?", op.text[name.end() :]))
        call = f"{identifier(name[1] or name[2])}({operands})"
        targets = ", ".join(map(value, op.results))
        tied = f"tie({targets}) = " if len(op.results) > 1 else f"{targets} = " if targets else ""
        self.lines.append(f"{tied}{call};")

    def op_tt_return(self, op: Operation, _: str) -> None:
        values = ", ".join(map(value, op.operands))
        self.lines.append(f"return {f'results({values})' if len(op.operands) > 1 else values};")

    def op_cf_br(self, op: Operation, _: str) -> None:
        label = re.search(r"\^\w+", op.text)
        assert label is not None
        self.lines += [
            self.assignments([n for n, _ in self.labels[label[0]].arguments], op.operands),
            f"goto {identifier(label[0])};",
        ]

    def op_cf_cond_br(self, op: Operation, _: str) -> None:
        jumps = re.findall(r"(\^\w+)(?:\(([^)]*)\))?", f"{op.text} : {op.types}")
        moves = []
        for label, values in jumps:
            names = re.findall(r"%[\w$.\-]+(?:#\d+)?", values)
            moves.append(
                self.assignments([n for n, _ in self.labels[label].arguments], names) + f" goto {identifier(label)};"
            )
        self.lines.append(f"if ({value(op.operands[0])}) {{ {moves[0]} }} else {{ {moves[1]} }}")
