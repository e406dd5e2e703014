"""What writing the C++ of a function needs: names, types, and loops over the elements of a tensor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from opwright.backends.triton.simulator.elementwise import ELEMENTWISE, c_type
from opwright.backends.triton.simulator.reading import Block, Function, Operation, Type, parse_type, split_types
from opwright.errors import KernelRefusedError

__all__ = [
    "FunctionWriter",
    "Site",
    "c_of",
    "constant",
    "element_of",
    "head",
    "identifier",
    "returned",
    "strides_of",
    "unsigned",
    "value",
]


@dataclass(frozen=True)
class Site:
    """A place in the Triton program that may have a finding: an access or an assertion."""

    file: str
    line: int
    operation: str
    message: str
    bytes: int


def c_of(type_: Type) -> str:
    element = c_type(type_.element)
    if element is None:
        raise KernelRefusedError(
            f"the simulator has no Triton values of type {type_.element}", fix="check this kernel on a GPU"
        )
    return f"Tn<{element}, {type_.size}>" if type_.is_tensor else element


def element_of(type_: Type) -> str:
    return c_of(Type((), type_.element, is_tensor=False))


def identifier(name: str) -> str:
    return "f_" + re.sub(r"\W", "_", name)


def value(name: str) -> str:
    return "v_" + re.sub(r"\W", "_", name.removeprefix("%").replace("-", "_m_"))


def returned(types: Sequence[Type]) -> str:
    if not types:
        return "void"
    return c_of(types[0]) if len(types) == 1 else f"std::tuple<{', '.join(map(c_of, types))}>"


def head(function: Function) -> str:
    arguments = ", ".join(f"{c_of(t)} {value(n)}" for n, t in function.arguments)
    return f"static inline {returned(function.results)} {identifier(function.name)}({arguments})"


def strides_of(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


def unsigned(c: str) -> str:
    return f"u{c}" if c.startswith("int") else c


def constant(text: str, element: str) -> str:
    if text in ("true", "false"):
        return text
    if text.startswith("0x") and not element.startswith("i"):
        width = {"f64": "uint64_t", "f32": "uint32_t", "f8E4M3FN": "uint8_t", "f8E5M2": "uint8_t"}
        return f"bits_as<{c_type(element)}>(({width.get(element, 'uint16_t')}){text})"
    if element.startswith("i"):
        return f"(int64_t){int(text, 0)}ull" if not text.startswith("-") else f"-(int64_t){-int(text)}ull"
    return text if element == "f64" else f"{text}f"


@dataclass
class FunctionWriter:
    function: Function
    signatures: dict[str, Function]
    sites: list[Site]
    types: dict[str, Type] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    labels: dict[str, Block] = field(default_factory=dict)
    hoisted: bool = False
    loops: int = 0

    def write(self) -> str:
        self.types.update(self.function.arguments)
        blocks = [b for b in self.function.blocks if b.reachable]
        self.hoisted = len(blocks) > 1
        for block in blocks:
            self.types.update(block.arguments)
        self.labels = {b.label: b for b in blocks}
        body: list[str] = []
        for block in blocks:
            body += [f"{identifier(block.label)}: ;"] if block.label else []
            body += self.block(block, top=True)
        declared = [f"{c_of(t)} {value(n)};" for b in blocks for n, t in b.arguments]
        if self.hoisted:
            names = [n for b in blocks for o in b.operations for n in o.results]
            declared += [f"{c_of(self.types[n])} {value(n)};" for n in names]
        return "\n".join([head(self.function) + " {", *declared, *body, "}"])

    def block(self, block: Block, *, top: bool = False, ends: str = "") -> list[str]:
        """The statements of a block. ``ends`` is what its terminator does with its operands, as a format."""
        before, self.lines = self.lines, []
        self.types.update(block.arguments)
        for op in block.operations:
            self.operation(op, ends, declares=not (top and self.hoisted))
        written, self.lines = self.lines, before
        return written

    # --- one operation ---

    def operation(self, op: Operation, ends: str, *, declares: bool) -> None:
        for name, type_ in zip(op.results, self.result_types(op), strict=False):
            self.types[name] = type_
            if declares:
                self.lines.append(f"{c_of(type_)} {value(name)};")
        method = getattr(self, "op_" + op.name.replace(".", "_"), None)
        if op.name in ELEMENTWISE:
            self.elementwise(op, ELEMENTWISE[op.name])
        elif method is not None:
            method(op, ends)
        else:
            self.refuse(op, f"the simulator has no {op.name}")

    def refuse(self, op: Operation, why: str) -> None:
        place = f" (line {op.location[1]} of {op.location[0]})" if op.location[0] else ""
        raise KernelRefusedError(f"{why}{place}", fix="check this kernel on a GPU, or in Triton's interpreter")

    def result_types(self, op: Operation) -> list[Type]:
        if op.name in ("scf.for", "scf.if"):
            return split_types(op.types)
        if op.name == "arith.constant" and not op.types:  # true or false
            return [Type((), "i1", is_tensor=False)]
        if op.name == "tt.split":
            return split_types(op.types.split(" -> ")[-1]) * 2
        if " -> " in op.types:
            return split_types(op.types.split(" -> ")[-1])
        if " to " in op.types:
            return [parse_type(op.types.split(" to ")[-1])]
        types = split_types(op.types)
        if op.name in ("arith.cmpi", "arith.cmpf"):
            return [Type(types[0].shape, "i1", types[0].is_tensor)]
        if op.name == "tt.load":
            return [Type(types[0].shape, types[0].element.removeprefix("ptr "), types[0].is_tensor)]
        return [types[-1]] if op.name == "arith.select" else types[:1]

    def each(self, op: Operation, expression: str) -> None:
        """Set each element of the result, with ``i`` in the expression as the index."""
        type_ = self.types[op.results[0]]
        if type_.is_tensor:
            self.over(type_, f"{value(op.results[0])}[i] = ({element_of(type_)})({expression});")
        else:
            self.lines.append(f"{value(op.results[0])} = ({c_of(type_)})({expression});")

    def over(self, type_: Type, statement: str) -> None:
        self.lines.append(f"for (int i = 0; i < {type_.size}; i++) {{ {statement} }}")

    def at(self, name: str, index: str = "i") -> str:
        return f"{value(name)}[{index}]" if self.types[name].is_tensor else value(name)

    def elementwise(self, op: Operation, form: str) -> None:
        first = self.types[op.operands[0]]
        s, t = element_of(first), element_of(self.types[op.results[0]])
        wide = "double" if t == "double" else "float"
        from_wide = "double" if s == "double" else "float"
        narrow_float = s in ("f16", "bf16", "f8e4m3", "f8e5m2")
        values = [self.at(name) for name in op.operands]
        if narrow_float and "{g}" not in form and "bits_as" not in form:
            values = [f"(float){v}" if self.types[n].element == first.element else v
                      for v, n in zip(values, op.operands, strict=True)]  # fmt: skip
        if op.name == "arith.select":
            values = [values[0], *(f"({t}){v}" for v in values[1:])]
        self.each(op, form.format(*values, t=t, s=s, f=wide, g=from_wide, u=unsigned(s), v=unsigned(t)))
