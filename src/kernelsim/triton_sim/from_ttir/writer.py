"""What writing the C++ of a function needs: names, types, and loops over the elements of a tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernelsim.errors import NotSimulatedError
from kernelsim.triton_sim.from_ttir.elementwise import c_type, form_of
from kernelsim.triton_sim.from_ttir.naming import make_names_unique
from kernelsim.triton_sim.from_ttir.provenance import only_for_first_thread, sources_of_pointers
from kernelsim.triton_sim.from_ttir.reading import Block, Function, Operation, Type, parse_type, split_types
from kernelsim.triton_sim.from_ttir.simplification import INDEXED, Uses, simplify

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


_SIGNS = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*"}
_CHEAP = frozenset({"arith.constant", "tt.splat", "tt.make_range"})
_VIEWS = frozenset({"tt.expand_dims", "tt.reshape", "tt.broadcast", "tt.trans"})
# Bytes: torch's memory on a CPU begins at multiples of them; a GPU's at multiples of more.
_ALIGNMENT = 64
_WRITING = frozenset({
    "tt.store", "tt.atomic_rmw", "tt.atomic_cas",
    "tt.descriptor_store", "tt.descriptor_reduce", "tt.descriptor_scatter",
})  # fmt: skip
# Letters of C++; longer expressions become arrays.
_LONGEST_EXPRESSION = 1500


@dataclass(frozen=True)
class Site:
    """A place in the Triton program that may have a finding: an access or an assertion.

    ``source`` is the parameter that an access goes through, as of ``sources_of_pointers``.
    """

    file: str
    line: int
    operation: str
    message: str
    bytes: int
    source: int

    @property
    def writes(self) -> bool:
        return self.operation in _WRITING


def c_of(type_: Type) -> str:
    element = c_type(type_.element)
    if element is None:
        raise NotSimulatedError(
            f"the simulator has no Triton values of type {type_.element}", fix="check this kernel on a GPU"
        )
    return f"Tn<{element}, {type_.size}>" if type_.is_tensor else element


def element_of(type_: Type) -> str:
    return c_of(Type((), type_.element, is_tensor=False))


def identifier(name: str) -> str:
    return "f_" + re.sub(r"\W", lambda found: f"_{ord(found[0]):x}_", name)


def value(name: str) -> str:
    return "v_" + re.sub(r"\W", "_", name.removeprefix("%").replace("-", "_m_"))


def returned(types: Sequence[Type]) -> str:
    if not types:
        return "void"
    return c_of(types[0]) if len(types) == 1 else f"Results<{', '.join(map(c_of, types))}>"


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
    uses: Uses = field(default_factory=Uses)
    sources: dict[str, int] = field(default_factory=dict)
    # Numbers that are loaded for nothing but what one thread stores.
    for_first_thread: frozenset[str] = frozenset()
    # Tensors that cost nothing to compute again.
    cheap: set[str] = field(default_factory=set)
    # Tensors that are no arrays in the C++: for each, the expression of an element with a given index.
    inlined: dict[str, Callable[[str], str]] = field(default_factory=dict)

    def write(self) -> str:
        make_names_unique(self.function)
        self.uses = simplify(self.function)
        self.for_first_thread = only_for_first_thread(self.function)
        if self.function.public:
            self.sources = sources_of_pointers(self.function)
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
            names = [n for b in blocks for o in b.operations for n in o.results if n not in self.inlined]
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
        before = len(self.lines)
        self.types.update(zip(op.results, self.result_types(op), strict=False))
        self.write_operation(op, ends)
        self.promise(op)
        if declares:
            kept = [name for name in op.results if name not in self.inlined]
            self.lines[before:before] = [f"{c_of(self.types[name])} {value(name)};" for name in kept]
        elif len(self.lines) > before + 1:  # C++ lets no jump to a later block pass a declaration
            self.lines[before:] = ["{", *self.lines[before:], "}"]

    def write_operation(self, op: Operation, ends: str) -> None:
        method = getattr(self, "op_" + op.name.replace(".", "_"), None)
        if op.overflow is not None:
            self.checked(op, op.overflow)
        elif (form := form_of(op.name, op.text)) is not None:
            self.elementwise(op, form)
        elif method is not None:
            method(op, ends)
        else:
            self.refuse(op, f"the simulator has no {op.name}")

    def promise(self, op: Operation) -> None:
        """Check what ``tl.multiple_of`` states of a result."""
        if len(op.results) == 1:
            self.lines += self.stated_multiples(op, op.results[0], "")

    def stated_multiples(self, op: Operation, name: str, place: str) -> list[str]:
        """Checks of what an operation states of an integer or an address: of a tensor's, that it holds where the tensor
        begins, which is what the compiler makes of it for consecutive ones."""
        stated = re.search(rf"tt\.divisibility{place} = dense<\[?([\d, ]+)", op.attributes)
        element = self.types[name].element
        is_address = element.startswith("ptr ")
        if stated is None or not (is_address or re.fullmatch(r"i\d+", element)):
            return []
        divisor, first = max(int(n) for n in stated[1].split(",")), self.at(name, "0")
        if is_address:
            divisor, first = min(divisor, _ALIGNMENT), f"(uint64_t){first}"
        what = f"{divisor} bytes" if is_address else str(divisor)
        site = self.site(op, f"what tl.multiple_of states is not so: no multiple of {what}")
        return [f"assert_that({first} % {divisor} == 0, {site}, 0);"]

    def refuse(self, op: Operation, why: str) -> None:
        place = f" (line {op.location[1]} of {op.location[0]})" if op.location[0] else ""
        raise NotSimulatedError(f"{why}{place}", fix="check this kernel on a GPU, or in Triton's interpreter")

    def result_types(self, op: Operation) -> list[Type]:
        if op.name in ("scf.for", "scf.if"):
            return split_types(op.types)
        if op.name == "arith.constant" and not op.types:  # true or false
            return [Type((), "i1", is_tensor=False)]
        if op.name == "tt.make_tensor_descriptor":
            return split_types(op.types)[-1:]
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

    def each(self, op: Operation, expression: Callable[[str], str]) -> None:
        """Define each element of the result by its index; in place where it is used, if it is used once."""
        name, type_ = op.results[0], self.types[op.results[0]]
        whole = f"({element_of(type_)})({expression('i')})"
        if not type_.is_tensor:
            self.lines.append(f"{value(name)} = {whole};")
        elif self.is_inlined(op) and len(whole) < _LONGEST_EXPRESSION:
            self.inlined[name] = lambda i: f"({element_of(type_)})({expression(i)})"
        else:
            self.over(type_, f"{value(name)}[i] = {whole};")

    def is_inlined(self, op: Operation) -> bool:
        name = op.results[0]
        if op.name not in INDEXED or name in self.uses.whole:
            return False
        is_view = op.name in _VIEWS and all(n not in self.inlined or n in self.cheap for n in op.operands)
        if is_view or op.name in _CHEAP:
            self.cheap.add(name)
            return True
        return self.uses.once(name)

    def source(self, pointer: str) -> int:
        """The argument of the kernel that a pointer comes from; -1 if it is not known."""
        return self.sources.get(pointer, -1)

    def is_used_by_all(self, load: Operation) -> str:
        """Whether all threads of a program use a number that is loaded, in C++."""
        return "false" if load.results[0] in self.for_first_thread else "true"

    def over(self, type_: Type, statement: str) -> None:
        self.lines.append(f"for (int i = 0; i < {type_.size}; i++) {{ {statement} }}")

    def over_stored(self, type_: Type, statement: str) -> None:
        """The elements of one store, which is told from others: the order of its elements is undefined on a GPU."""
        self.lines.append(f"program.stores++; program.is_block = {int(type_.size > 1)};")
        self.over(type_, statement)

    def meet(self) -> None:
        """A point that all threads of a program reach before any goes on."""
        self.lines.append("program.ordered = program.stores;")

    def at(self, name: str, index: str = "i") -> str:
        if name in self.inlined:
            return self.inlined[name](index)
        return f"{value(name)}[{index}]" if self.types[name].is_tensor else value(name)

    def elementwise(self, op: Operation, form: str) -> None:
        first = self.types[op.operands[0]]
        s, t = element_of(first), element_of(self.types[op.results[0]])
        wide = "double" if t == "double" else "float"
        from_wide = "double" if s == "double" else "float"
        if s == "bool":  # numbers of one bit
            form = {"arith.addi": "({0} ^ {1})", "arith.subi": "({0} ^ {1})"}.get(op.name, form)
        if op.name == "tt.clampf" and "propagateNan = all" in f"{op.text} {op.attributes}":
            form = f"({{0}} != {{0}} ? {{0}} : {form})"
        if op.name == "tt.fp_to_fp" and "rtz" in f"{op.text} {op.attributes}":
            form = "toward_zero<{t}>(({g}){0})"
        narrow_float = s in ("f16", "bf16", "f8e4m3", "f8e5m2")

        def expression(i: str) -> str:
            values = [self.at(name, i) for name in op.operands]
            if narrow_float and "{g}" not in form and "bits_as" not in form:
                values = [f"(float){v}" if self.types[n].element == first.element else v
                          for v, n in zip(values, op.operands, strict=True)]  # fmt: skip
            if op.name == "arith.select":
                values = [values[0], *(f"({t}){v}" for v in values[1:])]
            return form.format(*values, t=t, s=s, f=wide, g=from_wide, u=unsigned(s), v=unsigned(t))

        self.each(op, expression)

    def checked(self, op: Operation, message: str) -> None:
        """Arithmetic in 64 bits, in a loop that g++ vectorises; a second one names the elements that overflow."""
        name, type_ = op.results[0], self.types[op.results[0]]
        t = element_of(type_)
        a, b = (f"(int64_t){self.at(operand)}" for operand in op.operands)
        exact = f"int64_t exact = {a} {_SIGNS[op.name]} {b};"
        self.lines.append("{ bool fits = true;")
        self.over(type_, f"{exact} {self.at(name)} = ({t})exact; fits &= exact == ({t})exact;")
        self.lines.append("if (!fits)")
        self.over(type_, f"{exact} assert_that(exact == ({t})exact, {self.site(op, message)}, i);")
        self.lines.append("}")

    def site(self, op: Operation, message: str = "", size: str = "") -> int:
        bits = re.sub(r"\D+", " ", size.replace("int", "i ")).split()
        known = {"float": 4, "double": 8, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "bool": 1, "P": 8}
        width = known.get(size) or (int(bits[0]) // 8 if bits else 0)
        source = self.source(op.operands[0]) if op.operands else -1
        self.sites.append(Site(op.location[0], op.location[1], op.name, message, width, source))
        return len(self.sites) - 1
