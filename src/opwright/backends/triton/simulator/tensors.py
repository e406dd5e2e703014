"""The C++ of operations on tensors: constants, memory, shapes, matrices, reductions and scans."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opwright.backends.triton.simulator.elementwise import COMPARISONS, EXTERNAL, RMW
from opwright.backends.triton.simulator.reading import Operation, Type
from opwright.backends.triton.simulator.writer import (
    FunctionWriter,
    Site,
    c_of,
    constant,
    element_of,
    returned,
    strides_of,
    unsigned,
    value,
)

__all__ = ["TensorWriter"]


class TensorWriter(FunctionWriter):
    """Writes operations on tensors."""

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
        self.each(op, constant(text, type_.element))

    def op_ub_poison(self, op: Operation, _: str) -> None:
        self.each(op, "0")

    def op_tt_get_program_id(self, op: Operation, _: str) -> None:
        self.each(op, f"program.id[{'xyz'.index(op.text.strip()[0])}]")

    def op_tt_get_num_programs(self, op: Operation, _: str) -> None:
        self.each(op, f"request->grid[{'xyz'.index(op.text.strip()[0])}]")

    def op_tt_make_range(self, op: Operation, _: str) -> None:
        self.each(op, f"i + {op.attribute('start')}")

    def op_tt_splat(self, op: Operation, _: str) -> None:
        self.each(op, value(op.operands[0]))

    op_tt_unsplat = op_tt_splat

    def op_tt_addptr(self, op: Operation, _: str) -> None:
        element = element_of(Type((), self.types[op.operands[0]].element.removeprefix("ptr "), is_tensor=False))
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
        element = element_of(self.types[op.results[0]])
        index = "i" if self.types[pointer].is_tensor else "0"
        access = f"load<{element}>({self.at(pointer)}, {self.site(op, size=element)}, {index})"
        if rest:
            other = self.at(rest[1]) if len(rest) > 1 else f"({element})0"
            access = f"{self.at(rest[0])} ? {access} : {other}"
        self.each(op, access)

    def op_tt_store(self, op: Operation, _: str) -> None:
        pointer, stored, *mask = op.operands
        element = element_of(self.types[stored])
        guard = f"if ({self.at(mask[0])}) " if mask else ""
        site = self.site(op, size=element)
        self.over(self.types[pointer], f"{guard}store<{element}>({self.at(pointer)}, {self.at(stored)}, {site}, i);")

    def op_tt_atomic_rmw(self, op: Operation, _: str) -> None:
        pointer, stored, *mask = op.operands
        t = element_of(self.types[stored])
        kind = op.text.split(",")[0].strip()
        change = RMW[kind].format(t=t, u=unsigned(t))
        call = (f"atomic<{t}>({self.at(pointer)}, {self.site(op, size=t)}, "
                f"{'i' if self.types[pointer].is_tensor else '0'}, "
                f"[&]({t} old) -> {t} {{ {t} x = {self.at(stored)}; return {change}; }})")  # fmt: skip
        self.each(op, f"{self.at(mask[0])} ? {call} : ({t})0" if mask else call)

    def op_tt_atomic_cas(self, op: Operation, _: str) -> None:
        pointer, compared, stored = op.operands
        t = element_of(self.types[stored])
        index = "i" if self.types[pointer].is_tensor else "0"
        self.each(op, f"atomic<{t}>({self.at(pointer)}, {self.site(op, size=t)}, {index}, [&]({t} old) -> {t} "
                      f"{{ return old == {self.at(compared)} ? {self.at(stored)} : old; }})")  # fmt: skip

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
        target = " + ".join(f"d{i} * {s}" for i, s in enumerate(strides_of(shape)))
        self.lines.append(f"{loops}{value(op.results[0])}[{target}] = {value(op.operands[0])}[{source}];")

    def op_tt_broadcast(self, op: Operation, _: str) -> None:
        source, target = self.types[op.operands[0]].shape, self.types[op.results[0]].shape
        steps = zip(source, strides_of(source), strict=True)
        self.gather(op, target, [0 if n == 1 else stride for n, stride in steps])

    def op_tt_trans(self, op: Operation, _: str) -> None:
        order = [int(n) for n in re.findall(r"\d+", (op.attribute("order") or "").split(":")[-1])]
        strides = strides_of(self.types[op.operands[0]].shape)
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
        inner, length = strides_of(result)[axis], result[axis]
        self.each(op, f"{value(source)}[i / {inner * length} * {inner * shape[axis]} + "
                      f"{value(indices)}[i] * {inner} + i % {inner}]")  # fmt: skip

    def op_tt_histogram(self, op: Operation, _: str) -> None:
        result, source = value(op.results[0]), self.types[op.operands[0]]
        self.each(op, "0")
        masked = f"{self.at(op.operands[1])} && " if len(op.operands) > 1 else ""
        bin_, size = self.at(op.operands[0]), self.types[op.results[0]].size
        self.over(source, f"if ({masked}{bin_} >= 0 && {bin_} < {size}) {result}[{bin_}]++;")

    # --- matrices ---

    def op_tt_dot(self, op: Operation, _: str) -> None:
        a, b, c = op.operands
        shape, k = self.types[op.results[0]].shape, self.types[a].shape[-1]
        m, n = shape[-2:]
        batch = self.types[op.results[0]].size // (m * n)
        result, t = value(op.results[0]), element_of(self.types[op.results[0]])
        wide = "float" if t == "f16" else t
        tf32 = element_of(self.types[a]) == "float" and "tf32" in f"{op.text} {op.attributes}"
        left, right = (f"tf32({value(x)}[{{}}])" if tf32 else f"({wide}){value(x)}[{{}}]" for x in (a, b))
        self.lines.append(
            f"{{ Tn<{wide}, {k * n}> right; {wide} sums[{n}]; for (int g = 0; g < {batch}; g++) {{\n"
            f"for (int i = 0; i < {k * n}; i++) right[i] = {right.format(f'g * {k * n} + i')};\n"
            f"for (int m = 0; m < {m}; m++) {{ for (int j = 0; j < {n}; j++) "
            f"sums[j] = {value(c)}[(g * {m} + m) * {n} + j];\n"
            f"for (int k = 0; k < {k}; k++) {{ {wide} x = {left.format(f'(g * {m} + m) * {k} + k')};\n"
            f"for (int j = 0; j < {n}; j++) sums[j] += x * right[k * {n} + j]; }}\n"
            f"for (int j = 0; j < {n}; j++) {result}[(g * {m} + m) * {n} + j] = sums[j]; }} }} }}"
        )

    # --- reductions, scans ---

    def combiner(self, op: Operation) -> str:
        block = op.regions[0][0]
        half = len(block.arguments) // 2
        names = ", ".join(f"{c_of(t)} {value(n)}" for n, t in block.arguments)
        types = [t for _, t in block.arguments[:half]]
        body = "\n".join(self.block(block, ends="return {};" if half == 1 else "return std::make_tuple({});"))
        return f"auto combine = [&]({names}) -> {returned(types)} {{\n{body}\n}};"

    def along_axis(self, op: Operation) -> tuple[int, int, int]:
        shape, axis = self.types[op.operands[0]].shape, int(op.attribute("axis") or 0)
        inner = strides_of(shape)[axis]
        return self.types[op.operands[0]].size // (inner * shape[axis]), shape[axis], inner

    def op_tt_reduce(self, op: Operation, _: str) -> None:
        """Halves the axis again and again, as GPUs do: g++ vectorises each step, and sums keep their precision."""
        outer, length, inner = self.along_axis(op)
        inputs = op.operands[: len(op.results)]
        copies = "".join(f"{c_of(self.types[n])} t{i};" for i, n in enumerate(inputs))
        fill = " ".join(f"t{i}[i] = {self.at(n)};" for i, n in enumerate(inputs))
        size = self.types[inputs[0]].size
        a, b = f"o * {length * inner} + j", f"o * {length * inner} + h * {inner} + j"
        values = ", ".join([*(f"t{i}[{a}]" for i in range(len(inputs))), *(f"t{i}[{b}]" for i in range(len(inputs)))])
        targets = ", ".join(f"t{i}[{a}]" for i in range(len(inputs)))
        target = targets if len(inputs) == 1 else f"std::tie({targets})"
        done = " ".join(
            f"{value(r)}[o * {inner} + j] = t{i}[{a}];" if self.types[r].is_tensor else f"{value(r)} = t{i}[0];"
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
        first = " ".join(f"{value(r)}[{here}] = {value(n)}[{here}];" for r, n in zip(results, inputs, strict=True))
        values = ", ".join([*(f"{value(r)}[{there}]" for r in results), *(f"{value(n)}[{here}]" for n in inputs)])
        targets = ", ".join(f"{value(r)}[{here}]" for r in results)
        target = targets if len(results) == 1 else f"std::tie({targets})"
        self.lines.append(
            f"{{ {self.combiner(op)}\nfor (int o = 0; o < {outer}; o++) for (int k = 0; k < {length}; k++) "
            f"for (int j = 0; j < {inner}; j++) {{ if (k == 0) {{ {first} }} else {target} = combine({values}); }} }}"
        )

    def ending(self, op: Operation, ends: str) -> None:
        self.lines.append(ends.format(", ".join(map(value, op.operands))))

    op_tt_reduce_return = op_tt_scan_return = ending
