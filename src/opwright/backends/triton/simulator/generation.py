"""Writes C++ from the operations of a TTIR module: each tensor is a flat array, each operation a loop over it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from opwright.backends.triton.simulator.elementwise import COMPARISONS, ELEMENTWISE, EXTERNAL, RMW, c_type
from opwright.backends.triton.simulator.reading import Block, Function, Operation, Type, parse_type, split_types
from opwright.errors import KernelRefusedError

__all__ = ["Generated", "Site", "generate"]


@dataclass(frozen=True)
class Site:
    """A place in the Triton program that may have a finding: an access or an assertion."""

    file: str
    line: int
    operation: str
    message: str
    bytes: int


@dataclass
class Generated:
    """The text of the C++, its sites by number, and the C types of the kernel's parameters."""

    text: str
    sites: list[Site]
    parameters: list[str]


def generate(functions: Sequence[Function]) -> Generated:
    """The C++ of a module.

    Raises:
        KernelRefusedError: the module has an operation or a type that the simulator does not have; it is named.
    """
    sites: list[Site] = []
    signatures = {f.name: f for f in functions}
    texts = [_FunctionWriter(f, signatures, sites).write() for f in functions]
    kernel = next(f for f in functions if f.public)
    types = [_c(t) for _, t in kernel.arguments]
    read = ", ".join(f"*({t}*)arguments[{i}]" for i, t in enumerate(types))
    entry = (
        'extern "C" __attribute__((visibility("default"))) void opwright_run(Request* asked, void** arguments) {\n'
        f"  run_programs(asked, [&] {{ {_ident(kernel.name)}({read}); }});\n}}\n"
    )
    prototypes = [_head(f) + ";" for f in functions]
    return Generated("\n".join(['#include "opwright_triton.h"', *prototypes, *texts, entry]), sites, types)


def _c(type_: Type) -> str:
    element = c_type(type_.element)
    if element is None:
        raise KernelRefusedError(
            f"the simulator has no Triton values of type {type_.element}", fix="check this kernel on a GPU"
        )
    return f"Tn<{element}, {type_.size}>" if type_.is_tensor else element


def _element(type_: Type) -> str:
    return _c(Type((), type_.element, is_tensor=False))


def _ident(name: str) -> str:
    return "f_" + re.sub(r"\W", "_", name)


def _value(name: str) -> str:
    return "v_" + re.sub(r"\W", "_", name.removeprefix("%").replace("-", "_m_"))


def _returned(types: Sequence[Type]) -> str:
    if not types:
        return "void"
    return _c(types[0]) if len(types) == 1 else f"std::tuple<{', '.join(map(_c, types))}>"


def _head(function: Function) -> str:
    arguments = ", ".join(f"{_c(t)} {_value(n)}" for n, t in function.arguments)
    return f"static inline {_returned(function.results)} {_ident(function.name)}({arguments})"


def _strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


@dataclass
class _FunctionWriter:
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
            body += [f"{_ident(block.label)}: ;"] if block.label else []
            body += self.block(block, top=True)
        declared = [f"{_c(t)} {_value(n)};" for b in blocks for n, t in b.arguments]
        if self.hoisted:
            names = [n for b in blocks for o in b.operations for n in o.results]
            declared += [f"{_c(self.types[n])} {_value(n)};" for n in names]
        return "\n".join([_head(self.function) + " {", *declared, *body, "}"])

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
                self.lines.append(f"{_c(type_)} {_value(name)};")
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
            self.over(type_, f"{_value(op.results[0])}[i] = ({_element(type_)})({expression});")
        else:
            self.lines.append(f"{_value(op.results[0])} = ({_c(type_)})({expression});")

    def at(self, name: str, index: str = "i") -> str:
        return f"{_value(name)}[{index}]" if self.types[name].is_tensor else _value(name)

    def elementwise(self, op: Operation, form: str) -> None:
        first = self.types[op.operands[0]]
        s, t = _element(first), _element(self.types[op.results[0]])
        wide = "double" if t == "double" else "float"
        from_wide = "double" if s == "double" else "float"
        narrow_float = s in ("f16", "bf16", "f8e4m3", "f8e5m2")
        values = [self.at(name) for name in op.operands]
        if narrow_float and "{g}" not in form and "bits_as" not in form:
            values = [f"(float){v}" if self.types[n].element == first.element else v
                      for v, n in zip(values, op.operands, strict=True)]  # fmt: skip
        if op.name == "arith.select":
            values = [values[0], *(f"({t}){v}" for v in values[1:])]
        self.each(op, form.format(*values, t=t, s=s, f=wide, g=from_wide, u=_unsigned(s), v=_unsigned(t)))

    def op_arith_cmpi(self, op: Operation, _: str) -> None:
        kind = op.text.split(",")[0].split()[0]
        if kind in COMPARISONS:
            self.elementwise(op, COMPARISONS[kind])
        elif kind in ("ueq", "ult", "ord", "uno"):
            self.refuse(op, f"the simulator has no comparison {kind}")

    def op_arith_cmpf(self, op: Operation, _: str) -> None:
        kind = op.text.split(",")[0].split()[0]
        unordered = {"ult": "!({0} >= {1})", "ule": "!({0} > {1})", "ugt": "!({0} <= {1})", "uge": "!({0} < {1})",
                     "ueq": "!({0} < {1} || {0} > {1})", "ord": "({0} == {0} && {1} == {1})",
                     "uno": "({0} != {0} || {1} != {1})"}  # fmt: skip
        form = unordered.get(kind, COMPARISONS.get(kind))
        if form is None:
            self.refuse(op, f"the simulator has no comparison {kind}")
        self.elementwise(op, form or "")

    def op_arith_constant(self, op: Operation, _: str) -> None:
        type_ = self.types[op.results[0]]
        text = op.text.strip()
        if found := re.fullmatch(r"dense<(.*)>", text):
            text = found[1]
        if text.startswith("["):
            self.refuse(op, "the simulator has no constants with different elements")
        self.each(op, _constant(text, type_.element))

    def op_ub_poison(self, op: Operation, _: str) -> None:
        self.each(op, "0")

    def op_tt_get_program_id(self, op: Operation, _: str) -> None:
        self.each(op, f"program.id[{'xyz'.index(op.text.strip()[0])}]")

    def op_tt_get_num_programs(self, op: Operation, _: str) -> None:
        self.each(op, f"request->grid[{'xyz'.index(op.text.strip()[0])}]")

    def op_tt_make_range(self, op: Operation, _: str) -> None:
        self.each(op, f"i + {op.attribute('start')}")

    def op_tt_splat(self, op: Operation, _: str) -> None:
        self.each(op, _value(op.operands[0]))

    op_tt_unsplat = op_tt_splat

    def op_tt_addptr(self, op: Operation, _: str) -> None:
        element = _element(Type((), self.types[op.operands[0]].element.removeprefix("ptr "), is_tensor=False))
        self.each(op, f"{self.at(op.operands[0])} + (int64_t){self.at(op.operands[1])} * (int64_t)sizeof({element})")

    def op_tt_extern_elementwise(self, op: Operation, _: str) -> None:
        symbol = op.attribute("symbol") or ""
        name = symbol.removeprefix("__nv_")
        function = EXTERNAL.get(name) or EXTERNAL.get(name.removesuffix("f"))
        if function is None:
            self.refuse(op, f"the simulator has no {symbol}")
        self.each(op, f"{function}({', '.join(self.at(n) for n in op.operands)})")

    # --- memory ---

    def site(self, op: Operation, message: str = "", size: str = "") -> int:
        bits = re.sub(r"\D+", " ", size.replace("int", "i ")).split()
        known = {"float": 4, "double": 8, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "bool": 1, "P": 8}
        width = known.get(size) or (int(bits[0]) // 8 if bits else 0)
        self.sites.append(Site(op.location[0], op.location[1], op.name, message, width))
        return len(self.sites) - 1

    def op_tt_load(self, op: Operation, _: str) -> None:
        pointer, *rest = op.operands
        element = _element(self.types[op.results[0]])
        index = "i" if self.types[pointer].is_tensor else "0"
        access = f"load<{element}>({self.at(pointer)}, {self.site(op, size=element)}, {index})"
        if rest:
            other = self.at(rest[1]) if len(rest) > 1 else f"({element})0"
            access = f"{self.at(rest[0])} ? {access} : {other}"
        self.each(op, access)

    def over(self, type_: Type, statement: str) -> None:
        self.lines.append(f"for (int i = 0; i < {type_.size}; i++) {{ {statement} }}")

    def op_tt_store(self, op: Operation, _: str) -> None:
        pointer, value, *mask = op.operands
        element = _element(self.types[value])
        guard = f"if ({self.at(mask[0])}) " if mask else ""
        site = self.site(op, size=element)
        self.over(self.types[pointer], f"{guard}store<{element}>({self.at(pointer)}, {self.at(value)}, {site}, i);")

    def op_tt_atomic_rmw(self, op: Operation, _: str) -> None:
        pointer, value, *mask = op.operands
        t = _element(self.types[value])
        kind = op.text.split(",")[0].strip()
        change = RMW[kind].format(t=t, u=_unsigned(t))
        call = (f"atomic<{t}>({self.at(pointer)}, {self.site(op, size=t)}, "
                f"{'i' if self.types[pointer].is_tensor else '0'}, "
                f"[&]({t} old) -> {t} {{ {t} x = {self.at(value)}; return {change}; }})")  # fmt: skip
        self.each(op, f"{self.at(mask[0])} ? {call} : ({t})0" if mask else call)

    def op_tt_atomic_cas(self, op: Operation, _: str) -> None:
        pointer, compared, value = op.operands
        t = _element(self.types[value])
        index = "i" if self.types[pointer].is_tensor else "0"
        self.each(op, f"atomic<{t}>({self.at(pointer)}, {self.site(op, size=t)}, {index}, [&]({t} old) -> {t} "
                      f"{{ return old == {self.at(compared)} ? {self.at(value)} : old; }})")  # fmt: skip

    def op_tt_assert(self, op: Operation, _: str) -> None:
        message = re.search(r'"((?:[^"\\]|\\.)*)"', op.text)
        condition = op.operands[0]
        site = self.site(op, message[1] if message else "")
        self.over(self.types[condition], f"assert_that({self.at(condition)}, {site}, i);")

    # --- shapes ---

    def op_tt_reshape(self, op: Operation, _: str) -> None:
        self.each(op, self.at(op.operands[0]))

    op_tt_expand_dims = op_tt_reshape

    def gather(self, op: Operation, shape: Sequence[int], strides: Sequence[int]) -> None:
        loops = "".join(f"for (int d{i} = 0; d{i} < {n}; d{i}++) " for i, n in enumerate(shape))
        source = " + ".join(f"d{i} * {s}" for i, s in enumerate(strides))
        target = " + ".join(f"d{i} * {s}" for i, s in enumerate(_strides(shape)))
        self.lines.append(f"{loops}{_value(op.results[0])}[{target}] = {_value(op.operands[0])}[{source}];")

    def op_tt_broadcast(self, op: Operation, _: str) -> None:
        source, target = self.types[op.operands[0]].shape, self.types[op.results[0]].shape
        steps = zip(source, _strides(source), strict=True)
        self.gather(op, target, [0 if n == 1 else stride for n, stride in steps])

    def op_tt_trans(self, op: Operation, _: str) -> None:
        order = [int(n) for n in re.findall(r"\d+", (op.attribute("order") or "").split(":")[-1])]
        strides = _strides(self.types[op.operands[0]].shape)
        self.gather(op, self.types[op.results[0]].shape, [strides[k] for k in order])

    def op_tt_join(self, op: Operation, _: str) -> None:
        self.each(op, f"i % 2 ? {self.at(op.operands[1], 'i / 2')} : {self.at(op.operands[0], 'i / 2')}")

    def op_tt_split(self, op: Operation, _: str) -> None:
        source = op.operands[0]
        for k, name in enumerate(op.results):
            target = self.types[name]
            half = self.at(source, f"i * 2 + {k}")
            self.over(target, f"{self.at(name)} = {half};")

    def op_tt_cat(self, op: Operation, _: str) -> None:
        half = self.types[op.operands[0]].size
        self.each(op, f"i < {half} ? {self.at(op.operands[0])} : {self.at(op.operands[1], f'i - {half}')}")

    def op_tt_gather(self, op: Operation, _: str) -> None:
        source, indices = op.operands
        axis = int(op.attribute("axis") or 0)
        shape, result = self.types[source].shape, self.types[op.results[0]].shape
        inner, length = _strides(result)[axis], result[axis]
        self.each(op, f"{_value(source)}[i / {inner * length} * {inner * shape[axis]} + "
                      f"{_value(indices)}[i] * {inner} + i % {inner}]")  # fmt: skip

    def op_tt_histogram(self, op: Operation, _: str) -> None:
        result, source = _value(op.results[0]), self.types[op.operands[0]]
        self.each(op, "0")
        masked = f"{self.at(op.operands[1])} && " if len(op.operands) > 1 else ""
        value, size = self.at(op.operands[0]), self.types[op.results[0]].size
        self.over(source, f"if ({masked}{value} >= 0 && {value} < {size}) {result}[{value}]++;")

    # --- matrices ---

    def op_tt_dot(self, op: Operation, _: str) -> None:
        a, b, c = op.operands
        shape, k = self.types[op.results[0]].shape, self.types[a].shape[-1]
        m, n = shape[-2:]
        batch = self.types[op.results[0]].size // (m * n)
        result, t = _value(op.results[0]), _element(self.types[op.results[0]])
        wide = "float" if t == "f16" else t
        tf32 = _element(self.types[a]) == "float" and "tf32" in f"{op.text} {op.attributes}"
        left, right = (f"tf32({_value(x)}[{{}}])" if tf32 else f"({wide}){_value(x)}[{{}}]" for x in (a, b))
        self.lines.append(
            f"{{ Tn<{wide}, {k * n}> right; {wide} sums[{n}]; for (int g = 0; g < {batch}; g++) {{\n"
            f"for (int i = 0; i < {k * n}; i++) right[i] = {right.format(f'g * {k * n} + i')};\n"
            f"for (int m = 0; m < {m}; m++) {{ for (int j = 0; j < {n}; j++) "
            f"sums[j] = {_value(c)}[(g * {m} + m) * {n} + j];\n"
            f"for (int k = 0; k < {k}; k++) {{ {wide} x = {left.format(f'(g * {m} + m) * {k} + k')};\n"
            f"for (int j = 0; j < {n}; j++) sums[j] += x * right[k * {n} + j]; }}\n"
            f"for (int j = 0; j < {n}; j++) {result}[(g * {m} + m) * {n} + j] = sums[j]; }} }} }}"
        )

    # --- reductions, scans ---

    def combiner(self, op: Operation) -> str:
        block = op.regions[0][0]
        half = len(block.arguments) // 2
        names = ", ".join(f"{_c(t)} {_value(n)}" for n, t in block.arguments)
        types = [t for _, t in block.arguments[:half]]
        body = "\n".join(self.block(block, ends="return {};" if half == 1 else "return std::make_tuple({});"))
        return f"auto combine = [&]({names}) -> {_returned(types)} {{\n{body}\n}};"

    def along_axis(self, op: Operation) -> tuple[int, int, int]:
        shape, axis = self.types[op.operands[0]].shape, int(op.attribute("axis") or 0)
        inner = _strides(shape)[axis]
        return self.types[op.operands[0]].size // (inner * shape[axis]), shape[axis], inner

    def op_tt_reduce(self, op: Operation, _: str) -> None:
        """Halves the axis again and again, as GPUs do: g++ vectorises each step, and sums keep their precision."""
        outer, length, inner = self.along_axis(op)
        inputs = op.operands[: len(op.results)]
        copies = "".join(f"{_c(self.types[n])} t{i};" for i, n in enumerate(inputs))
        fill = " ".join(f"t{i}[i] = {self.at(n)};" for i, n in enumerate(inputs))
        size = self.types[inputs[0]].size
        a, b = f"o * {length * inner} + j", f"o * {length * inner} + h * {inner} + j"
        values = ", ".join([*(f"t{i}[{a}]" for i in range(len(inputs))), *(f"t{i}[{b}]" for i in range(len(inputs)))])
        targets = ", ".join(f"t{i}[{a}]" for i in range(len(inputs)))
        target = targets if len(inputs) == 1 else f"std::tie({targets})"
        done = " ".join(
            f"{_value(r)}[o * {inner} + j] = t{i}[{a}];" if self.types[r].is_tensor else f"{_value(r)} = t{i}[0];"
            for i, r in enumerate(op.results)
        )
        self.lines.append(
            f"{{ {self.combiner(op)}\n{copies} for (int i = 0; i < {size}; i++) {{ {fill} }}\n"
            f"for (int o = 0; o < {outer}; o++) {{ for (int h = {length} / 2; h; h /= 2)\n"
            f"for (int j = 0; j < h * {inner}; j++) {target} = combine({values});\n"
            f"for (int j = 0; j < {inner}; j++) {{ {done} }} }} }}"
        )

    def op_tt_scan(self, op: Operation, _: str) -> None:
        outer, length, inner = self.along_axis(op)
        inputs, results = op.operands[: len(op.results)], op.results
        backwards = op.attribute("reverse") == "true"
        k, before = (f"({length - 1} - k)", f"({length} - k)") if backwards else ("k", "(k - 1)")
        here, there = (f"(o * {length} + {x}) * {inner} + j" for x in (k, before))
        first = " ".join(f"{_value(r)}[{here}] = {_value(n)}[{here}];" for r, n in zip(results, inputs, strict=True))
        values = ", ".join([*(f"{_value(r)}[{there}]" for r in results), *(f"{_value(n)}[{here}]" for n in inputs)])
        targets = ", ".join(f"{_value(r)}[{here}]" for r in results)
        target = targets if len(results) == 1 else f"std::tie({targets})"
        self.lines.append(
            f"{{ {self.combiner(op)}\nfor (int o = 0; o < {outer}; o++) for (int k = 0; k < {length}; k++) "
            f"for (int j = 0; j < {inner}; j++) {{ if (k == 0) {{ {first} }} else {target} = combine({values}); }} }}"
        )

    def ending(self, op: Operation, ends: str) -> None:
        self.lines.append(ends.format(", ".join(map(_value, op.operands))))

    op_tt_reduce_return = op_tt_scan_return = ending

    # --- control flow ---

    def assignments(self, targets: Sequence[str], sources: Sequence[str]) -> str:
        """Parallel assignments: all sources are read before any target is set."""
        pairs = list(zip(targets, sources, strict=True))
        reads = " ".join(f"auto n{i} = {_value(s)};" for i, (_, s) in enumerate(pairs))
        return f"{{ {reads} " + " ".join(f"{_value(t)} = n{i};" for i, (t, _) in enumerate(pairs)) + " }"

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
            self.lines.append(f"{_c(type_)} {_value(name)} = {_value(_first)};")
        body = self.block(op.regions[0][0], ends=" ".join(name for name, _ in carried))
        unsigned = "unsigned" in op.text.split("=")[0]
        c = _unsigned(_c(kind)) if unsigned else _c(kind)
        self.lines.append(f"for (int64_t at = ({c}){_value(low)}; at < (int64_t)({c}){_value(high)}; "
                          f"at += {_value(step)}) {{ {_c(kind)} {_value(variable)} = ({_c(kind)})at;")  # fmt: skip
        self.lines += [*body, "}"]
        self.lines += [f"{_value(r)} = {_value(n)};" for r, (n, _) in zip(op.results, carried, strict=True)]

    def op_scf_if(self, op: Operation, _: str) -> None:
        ends = " ".join(op.results)
        self.lines += [f"if ({_value(op.operands[0])}) {{", *self.block(op.regions[0][0], ends=ends), "}"]
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
            self.lines.append(f"{_c(self.types[first])} {_value(mine)} = {_value(first)};")
        self.lines += [f"{_c(t)} {_value(n)};" for n, (_, t) in zip(kept, after.arguments, strict=True)]
        names = [name for name, _ in carried]
        self.lines += ["for (;;) { {", *self.copies(names, inputs), *self.block(before, ends=" ".join(kept)), "} {"]
        self.types.update(after.arguments)
        names = [name for name, _ in after.arguments]
        self.lines += [*self.copies(names, kept), *self.block(after, ends=" ".join(inputs)), "} }"]
        self.lines += [f"{_value(r)} = {_value(n)};" for r, n in zip(op.results, kept, strict=True)]

    def copies(self, names: Sequence[str], sources: Sequence[str]) -> list[str]:
        return [f"auto {_value(n)} = {_value(s)};" for n, s in zip(names, sources, strict=True)]

    def op_scf_condition(self, op: Operation, ends: str) -> None:
        condition, *values = op.operands
        self.lines += [self.assignments(ends.split(), values), f"if (!{_value(condition)}) break;"]

    def op_tt_call(self, op: Operation, _: str) -> None:
        name = re.search(r'@(?:"([^"]+)"|([\w.$]+))', op.text)
        assert name is not None
        operands = ", ".join(_value(n) for n in re.findall(r"%[\w$.\-]+(?:#\d+)?", op.text[name.end() :]))
        call = f"{_ident(name[1] or name[2])}({operands})"
        targets = ", ".join(map(_value, op.results))
        tied = f"std::tie({targets}) = " if len(op.results) > 1 else f"{targets} = " if targets else ""
        self.lines.append(f"{tied}{call};")

    def op_tt_return(self, op: Operation, _: str) -> None:
        values = ", ".join(map(_value, op.operands))
        self.lines.append(f"return {f'std::make_tuple({values})' if len(op.operands) > 1 else values};")

    def op_cf_br(self, op: Operation, _: str) -> None:
        label = re.search(r"\^\w+", op.text)
        assert label is not None
        self.lines += [
            self.assignments([n for n, _ in self.labels[label[0]].arguments], op.operands),
            f"goto {_ident(label[0])};",
        ]

    def op_cf_cond_br(self, op: Operation, _: str) -> None:
        jumps = re.findall(r"(\^\w+)(?:\(([^)]*)\))?", f"{op.text} : {op.types}")
        moves = []
        for label, values in jumps:
            names = re.findall(r"%[\w$.\-]+(?:#\d+)?", values)
            moves.append(
                self.assignments([n for n, _ in self.labels[label].arguments], names) + f" goto {_ident(label)};"
            )
        self.lines.append(f"if ({_value(op.operands[0])}) {{ {moves[0]} }} else {{ {moves[1]} }}")


def _unsigned(c: str) -> str:
    return f"u{c}" if c.startswith("int") else c


def _constant(text: str, element: str) -> str:
    if text in ("true", "false"):
        return text
    if text.startswith("0x") and not element.startswith("i"):
        width = {"f64": "uint64_t", "f32": "uint32_t", "f8E4M3FN": "uint8_t", "f8E5M2": "uint8_t"}
        return f"bits_as<{c_type(element)}>(({width.get(element, 'uint16_t')}){text})"
    if element.startswith("i"):
        return f"(int64_t){int(text, 0)}ull" if not text.startswith("-") else f"-(int64_t){-int(text)}ull"
    return text if element == "f64" else f"{text}f"
