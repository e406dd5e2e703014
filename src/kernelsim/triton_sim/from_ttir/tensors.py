"""The C++ of operations on tensors: constants, memory, shapes, reductions and scans."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelsim.triton_sim.from_ttir.elementwise import EXTERNAL, RMW
from kernelsim.triton_sim.from_ttir.products import ProductWriter
from kernelsim.triton_sim.from_ttir.reading import NAME, Operation, Type
from kernelsim.triton_sim.from_ttir.writer import (
    c_of,
    constant,
    element_of,
    returned,
    strides_of,
    unsigned,
    value,
)

__all__ = ["TensorWriter"]


class TensorWriter(ProductWriter):
    """Writes operations on tensors."""

    def op_arith_constant(self, op: Operation, _: str) -> None:
        type_ = self.types[op.results[0]]
        text = op.text.strip()
        if found := re.fullmatch(r"dense<(.*)>", text):
            text = found[1]
        if text.startswith("["):
            self.refuse(op, "the simulator has no constants with different elements")
        written = constant(text, type_.element)
        self.each(op, lambda i: written)

    def op_ub_poison(self, op: Operation, _: str) -> None:
        self.each(op, lambda i: "0")

    def op_tt_get_program_id(self, op: Operation, _: str) -> None:
        self.each(op, lambda i: f"program.id[{'xyz'.index(op.text.strip()[0])}]")

    def op_tt_get_num_programs(self, op: Operation, _: str) -> None:
        self.each(op, lambda i: f"request->grid[{'xyz'.index(op.text.strip()[0])}]")

    def op_tt_make_range(self, op: Operation, _: str) -> None:
        self.each(op, lambda i: f"{i} + {op.attribute('start')}")

    def op_tt_splat(self, op: Operation, _: str) -> None:
        self.each(op, lambda i: value(op.operands[0]))

    op_tt_unsplat = op_tt_splat

    def op_tt_addptr(self, op: Operation, _: str) -> None:
        element = element_of(Type((), self.types[op.operands[0]].element.removeprefix("ptr "), is_tensor=False))
        pointer, steps = op.operands
        self.each(op, lambda i: f"{self.at(pointer, i)} + (int64_t){self.at(steps, i)} * (int64_t)sizeof({element})")

    def op_tt_extern_elementwise(self, op: Operation, _: str) -> None:
        symbol = op.attribute("symbol") or ""
        name = symbol.removeprefix("__nv_")
        function = EXTERNAL.get(name) or EXTERNAL.get(name.removesuffix("f"))
        if function is None:
            self.refuse(op, f"the simulator has no {symbol}")
        self.each(op, lambda i: f"{function}({', '.join(self.at(n, i) for n in op.operands)})")

    # --- memory ---

    def op_tt_load(self, op: Operation, _: str) -> None:
        pointer, *rest = op.operands
        element = element_of(self.types[op.results[0]])
        where = f"{self.at(pointer)}, {self.site(op, size=element)}, {self.source(pointer)}"
        is_block = self.types[pointer].is_tensor
        access = (
            f"load<{element}>({where}, i)"
            if is_block
            else f"load_number<{element}>({where}, {self.is_used_by_all(op)})"
        )
        if rest:
            other = self.at(rest[1]) if len(rest) > 1 else f"left_out<{element}>()"
            access = f"{self.at(rest[0])} ? {access} : {other}"
        self.each(op, lambda i: access)

    def op_tt_store(self, op: Operation, _: str) -> None:
        pointer, stored, *mask = op.operands
        element = element_of(self.types[stored])
        guard = f"if ({self.at(mask[0])}) " if mask else ""
        site = self.site(op, size=element)
        self.over_stored(
            self.types[pointer],
            f"{guard}store<{element}>({self.at(pointer)}, {self.at(stored)}, {site}, {self.source(pointer)}, i);",
        )

    def op_tt_atomic_rmw(self, op: Operation, _: str) -> None:
        pointer, stored, *mask = op.operands
        t = element_of(self.types[stored])
        kind = op.text.split(",")[0].strip()
        change = RMW[kind].format(t=t, u=unsigned(t))
        call = (f"atomic<{t}>({self.at(pointer)}, {self.site(op, size=t)}, {self.source(pointer)}, "
                f"{'i' if self.types[pointer].is_tensor else '0'}, "
                f"[&]({t} old) -> {t} {{ {t} x = {self.at(stored)}; return {change}; }})")  # fmt: skip
        self.each(op, lambda i: f"{self.at(mask[0])} ? {call} : left_out<{t}>()" if mask else call)

    def op_tt_atomic_cas(self, op: Operation, _: str) -> None:
        pointer, compared, stored = op.operands
        t = element_of(self.types[stored])
        index = "i" if self.types[pointer].is_tensor else "0"
        change = f"[&]({t} old) -> {t} {{ return old == {self.at(compared)} ? {self.at(stored)} : old; }}"
        call = f"atomic<{t}>({self.at(pointer)}, {self.site(op, size=t)}, {self.source(pointer)}, {index}, {change})"
        self.each(op, lambda i: call)

    def op_tt_assert(self, op: Operation, _: str) -> None:
        message = re.search(r'"((?:[^"\\]|\\.)*)"', op.text)
        condition = op.operands[0]
        site = self.site(op, message[1] if message else "")
        self.over(self.types[condition], f"assert_that({self.at(condition)}, {site}, i);")

    def op_tt_print(self, op: Operation, _: str) -> None:
        prefix = re.search(r'"((?:[^"\\]|\\.)*)"', op.text)
        for name in re.findall(NAME, op.types):
            self.over(self.types[name], f'print("{prefix[1] if prefix else ""}", i, (double){self.at(name)});')

    def op_ttg_barrier(self, op: Operation, _: str) -> None:
        self.meet()

    op_gpu_barrier = op_ttg_barrier

    def op_tt_grid_dependency_wait(self, op: Operation, _: str) -> None:
        """Each launch ends before the next."""

    op_tt_grid_dependency_launch_dependents = op_tt_grid_dependency_wait

    def op_tt_elementwise_inline_asm(self, op: Operation, _: str) -> None:
        """Of all assembly only the two instructions that the operations above were before Triton 3.9."""
        if '"griddepcontrol.' not in op.text:
            self.refuse(op, f"the simulator has no {op.name}")
        self.lines.append(f"{value(op.results[0])} = 0;")

    def op_llvm_intr_assume(self, op: Operation, _: str) -> None:
        site = self.site(op, "what tl.assume states is not so")
        self.over(self.types[op.operands[0]], f"assert_that({self.at(op.operands[0])}, {site}, i);")

    # --- shapes ---

    def op_tt_reshape(self, op: Operation, _: str) -> None:
        self.each(op, lambda i: self.at(op.operands[0], i))

    op_tt_expand_dims = op_tt_reshape

    def gather(self, op: Operation, shape: Sequence[int], strides: Sequence[int]) -> None:
        """A result whose element is that of the operand at these strides; 0 for a dim that is repeated."""
        steps = [(size, step, stride) for size, step, stride in zip(shape, strides_of(shape), strides, strict=True)
                 if stride and size > 1]  # fmt: skip
        outermost = steps[0][1] * steps[0][0] == self.types[op.results[0]].size if steps else False

        def expression(i: str) -> str:
            parts = [
                f"({i}) / {step}{'' if k == 0 and outermost else f' % {size}'} * {stride}"
                for k, (size, step, stride) in enumerate(steps)
            ]
            return self.at(op.operands[0], " + ".join(parts) or "0")

        self.each(op, expression)

    def op_tt_broadcast(self, op: Operation, _: str) -> None:
        source, target = self.types[op.operands[0]].shape, self.types[op.results[0]].shape
        steps = zip(source, strides_of(source), strict=True)
        self.gather(op, target, [0 if n == 1 else stride for n, stride in steps])

    def op_tt_trans(self, op: Operation, _: str) -> None:
        order = [int(n) for n in re.findall(r"\d+", (op.attribute("order") or "").split(":")[-1])]
        strides = strides_of(self.types[op.operands[0]].shape)
        self.gather(op, self.types[op.results[0]].shape, [strides[k] for k in order])

    def op_tt_join(self, op: Operation, _: str) -> None:
        a, b = op.operands
        self.each(op, lambda i: f"i % 2 ? {self.at(b, 'i / 2')} : {self.at(a, 'i / 2')}")

    def op_tt_split(self, op: Operation, _: str) -> None:
        source = op.operands[0]
        for k, name in enumerate(op.results):
            target = self.types[name]
            half = self.at(source, f"i * 2 + {k}")
            self.over(target, f"{self.at(name)} = {half};")

    def op_tt_cat(self, op: Operation, _: str) -> None:
        half = self.types[op.operands[0]].size
        a, b = op.operands
        self.each(op, lambda i: f"i < {half} ? {self.at(a)} : {self.at(b, f'i - {half}')}")

    def op_tt_gather(self, op: Operation, _: str) -> None:
        self.meet()
        source, indices = op.operands
        axis = int(op.attribute("axis") or 0)
        shape, result = self.types[source].shape, self.types[op.results[0]].shape
        inner, length = strides_of(result)[axis], result[axis]
        site = self.site(op, "tl.gather has an index outside of its tensor")
        index = f"gathered({self.at(indices)}, {shape[axis]}, {site}, i)"
        at = f"(i / {inner * length} * {inner * shape[axis]} + {index} * {inner} + i % {inner})"
        self.each(op, lambda i: self.at(source, at))

    def op_tt_histogram(self, op: Operation, _: str) -> None:
        self.meet()
        result, source = value(op.results[0]), self.types[op.operands[0]]
        self.each(op, lambda i: "0")
        masked = f"{self.at(op.operands[1])} && " if len(op.operands) > 1 else ""
        bin_, size = self.at(op.operands[0]), self.types[op.results[0]].size
        self.over(source, f"if ({masked}{bin_} >= 0 && {bin_} < {size}) {result}[{bin_}]++;")

    # --- reductions, scans ---

    def combiner(self, op: Operation) -> str:
        block = op.regions[0][0]
        half = len(block.arguments) // 2
        names = ", ".join(f"{c_of(t)} {value(n)}" for n, t in block.arguments)
        types = [t for _, t in block.arguments[:half]]
        body = "\n".join(self.block(block, ends="return {};" if half == 1 else "return results({});"))
        return f"auto combine = [&]({names}) -> {returned(types)} {{\n{body}\n}};"

    def along_axis(self, op: Operation) -> tuple[int, int, int]:
        shape, axis = self.types[op.operands[0]].shape, int(op.attribute("axis") or 0)
        inner = strides_of(shape)[axis]
        return self.types[op.operands[0]].size // (inner * shape[axis]), shape[axis], inner

    def op_tt_reduce(self, op: Operation, _: str) -> None:
        """Halves the axis again and again, as GPUs do: g++ vectorises each step, and sums keep their precision."""
        self.meet()
        outer, length, inner = self.along_axis(op)
        inputs = op.operands[: len(op.results)]
        copies = "".join(f"{c_of(self.types[n])} t{i};" for i, n in enumerate(inputs))
        fill = " ".join(f"t{i}[i] = {self.at(n)};" for i, n in enumerate(inputs))
        size = self.types[inputs[0]].size
        a, b = f"o * {length * inner} + j", f"o * {length * inner} + h * {inner} + j"
        values = ", ".join([*(f"t{i}[{a}]" for i in range(len(inputs))), *(f"t{i}[{b}]" for i in range(len(inputs)))])
        targets = ", ".join(f"t{i}[{a}]" for i in range(len(inputs)))
        target = targets if len(inputs) == 1 else f"tie({targets})"
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
        self.meet()
        outer, length, inner = self.along_axis(op)
        inputs, results = op.operands[: len(op.results)], op.results
        backwards = op.attribute("reverse") == "true"
        k, before = (f"({length - 1} - k)", f"({length} - k)") if backwards else ("k", "(k - 1)")
        here, there = (f"(o * {length} + {x}) * {inner} + j" for x in (k, before))
        first = " ".join(
            f"{value(r)}[{here}] = {self.at(n, f'({here})')};" for r, n in zip(results, inputs, strict=True)
        )
        values = ", ".join([*(f"{value(r)}[{there}]" for r in results), *(self.at(n, f"({here})") for n in inputs)])
        targets = ", ".join(f"{value(r)}[{here}]" for r in results)
        target = targets if len(results) == 1 else f"tie({targets})"
        self.lines.append(
            f"{{ {self.combiner(op)}\nfor (int o = 0; o < {outer}; o++) for (int k = 0; k < {length}; k++) "
            f"for (int j = 0; j < {inner}; j++) {{ if (k == 0) {{ {first} }} else {target} = combine({values}); }} }}"
        )

    def ending(self, op: Operation, ends: str) -> None:
        self.lines.append(ends.format(", ".join(map(value, op.operands))))

    op_tt_reduce_return = op_tt_scan_return = ending
