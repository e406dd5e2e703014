"""The C++ of products of matrices, plain and with a scale for each group of elements."""

from __future__ import annotations

import re

from kernelsim.triton_sim.from_ttir.reading import Operation
from kernelsim.triton_sim.from_ttir.writer import FunctionWriter, element_of, value

__all__ = ["ProductWriter"]


class ProductWriter(FunctionWriter):
    """Writes products of matrices. Sums are in the type of the result, those of float16 in float32."""

    def op_tt_dot(self, op: Operation, _: str) -> None:
        self.meet()
        a, b, c = op.operands
        shape, k = self.types[op.results[0]].shape, self.types[a].shape[-1]
        m, n = shape[-2:]
        batch = self.types[op.results[0]].size // (m * n)
        result, t = value(op.results[0]), element_of(self.types[op.results[0]])
        wide = "float" if t == "f16" else t
        # With tf32x3, the sum of three products is about that of float32.
        tf32 = element_of(self.types[a]) == "float" and re.search(r"\btf32\b", f"{op.text} {op.attributes}")
        rounded = "tf32" if tf32 else f"({wide})"
        left = f"{rounded}({self.at(a, f'((g * {m} + m) * {k} + k)')})"
        right = f"{rounded}({self.at(b, f'(g * {k * n} + i)')})"
        self.lines.append(
            f"{{ Tn<{wide}, {k * n}> right; {wide} sums[{n}]; for (int g = 0; g < {batch}; g++) {{\n"
            f"for (int i = 0; i < {k * n}; i++) right[i] = {right};\n"
            f"for (int m = 0; m < {m}; m++) {{ for (int j = 0; j < {n}; j++) "
            f"sums[j] = {self.at(c, f'((g * {m} + m) * {n} + j)')};\n"
            f"for (int k = 0; k < {k}; k++) {{ {wide} x = {left};\n"
            f"for (int j = 0; j < {n}; j++) sums[j] += x * right[k * {n} + j]; }}\n"
            f"for (int j = 0; j < {n}; j++) {result}[(g * {m} + m) * {n} + j] = sums[j]; }} }} }}"
        )

    def op_tt_dot_scaled(self, op: Operation, _: str) -> None:
        """Each element times the scale of its group along the axis of the sum (OCP Microscaling Formats 1.0). Products
        are float32, where some GPUs round both operands to bfloat16 first."""
        self.meet()
        names = re.match(r"(\S+?)(?: scale (\S+?))?, (\S+?)(?: scale (\S+?))?, (\S+) lhs = (\w+) rhs = (\w+)", op.text)
        assert names is not None
        a, a_scale, b, b_scale, c, a_format, b_format = names.groups()
        shape = self.types[op.results[0]].shape
        m, n = shape[-2:]
        packs = {side: op.attribute(f"{side}_k_pack") != "false" for side in ("lhs", "rhs")}
        k = self.types[a].shape[-1] * (2 if a_format == "e2m1" and packs["lhs"] else 1)
        left = self.decoded(a, a_format, ("m", m), ("k", k), along=1 if packs["lhs"] else 0)
        right = self.decoded(b, b_format, ("k", k), ("j", n), along=0 if packs["rhs"] else 1)
        left = f"{left} * {self.scale(a_scale, 'm', m, k)}" if a_scale else left
        right = f"{right} * {self.scale(b_scale, 'j', n, k)}" if b_scale else right
        result = value(op.results[0])
        self.lines.append(
            f"for (int g = 0; g < {self.types[op.results[0]].size // (m * n)}; g++) {{ Tn<float, {k * n}> right;\n"
            f"for (int k = 0; k < {k}; k++) for (int j = 0; j < {n}; j++) right[k * {n} + j] = {right};\n"
            f"for (int m = 0; m < {m}; m++) {{ float* sums = &{result}[(g * {m} + m) * {n}];\n"
            f"for (int j = 0; j < {n}; j++) sums[j] = {self.at(c, f'((g * {m} + m) * {n} + j)')};\n"
            f"for (int k = 0; k < {k}; k++) {{ float x = {left};\n"
            f"for (int j = 0; j < {n}; j++) sums[j] += x * right[k * {n} + j]; }} }} }}"
        )

    def decoded(self, name: str, kind: str, row: tuple[str, int], column: tuple[str, int], *, along: int) -> str:
        """An element of matrix ``g`` as float32. Numbers of four bits come in pairs along an axis, the first one in the
        lower bits."""
        (i, rows), (j, columns) = row, column
        if kind != "e2m1":
            return f"(float){self.at(name, f'((g * {rows} + {i}) * {columns} + {j})')}"
        index = (f"(g * {rows} + {i}) * {columns // 2} + {j} / 2" if along
                 else f"(g * {rows // 2} + {i} / 2) * {columns} + {j}")  # fmt: skip
        return f"e2m1((uint8_t){self.at(name, f'({index})')} >> {(j if along else i)} % 2 * 4)"

    def scale(self, name: str, row: str, rows: int, k: int) -> str:
        groups = self.types[name].shape[-1]
        held = self.at(name, f"((g * {rows} + {row}) * {groups} + k / {k // groups})")
        return f"e8m0((uint8_t){held})" if self.types[name].element == "i8" else f"(float){held}"
