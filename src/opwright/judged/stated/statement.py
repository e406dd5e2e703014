"""The contract that a definition in JSON states: constant sizes are numbers, and the others are dims."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from opwright.contract.shapes.dims import evaluate, names_in
from opwright.contract.shapes.relations import parse_relation
from opwright.errors import ContractError, TargetError
from opwright.judged.contract import Inferred, InferredTensor
from opwright.judged.stated.definitions import Definition, TensorSpec, Workload

__all__ = ["RANGES", "Statement"]

# Integers that the formats draw at random.
RANGES = {"int8": (-128, 127), "int16": (-1024, 1023), "int32": (-1024, 1023), "int64": (-1024, 1023)}
_KNOWN = frozenset(
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    ]
)
# Of integers that nothing states: zero is an index of every tensor.
_ZEROS = "ow.values(0, 0)"
_LAST = re.compile(r"(\w+)\s*==\s*(\w+)\[-1\](?:\.item\(\))?")


@dataclass(frozen=True)
class Statement:
    """A definition with its workloads, and the file of its reference."""

    definition: Definition
    workloads: Sequence[Workload]
    file: str

    def contract(self) -> Inferred:
        """The contract.

        Raises:
            TargetError: it has a dtype or a size that no contract has.
        """
        outputs = self.definition.outputs
        return Inferred(
            arguments=tuple(self._argument(name, spec) for name, spec in self.definition.inputs.items()),
            outputs=tuple(InferredTensor("", _dtype(n, t), self.dims(t) or ()) for n, t in outputs.items()),
            own=self.sizes,
            where=tuple(self._where()),
            fixed=tuple(self._fixed()),
            is_random=self.definition.op_type == "sampling" and "torch.multinomial" in self.definition.reference,
            returns_tuple=len(outputs) > 1,
        )

    @cached_property
    def smallest(self) -> Workload | None:
        """The workload with the fewest elements."""
        return min(self.workloads, key=lambda w: sum(w.axes.values()), default=None)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the smallest workload."""
        axes = self.smallest.axes if self.smallest is not None else {}
        return {name: axes[name] for name in self.free if axes.get(name, 0) > 0}

    @cached_property
    def constants(self) -> dict[str, int]:
        return {n: a.value for n, a in self.definition.axes.items() if a.type == "const" and a.value is not None}

    @cached_property
    def free(self) -> list[str]:
        """The sizes that differ from call to call, as far as inputs have them."""
        return [name for name in self.definition.axes if name not in self.constants and name in self._shown]

    @cached_property
    def _shown(self) -> set[str]:
        dims = [dim for spec in self.definition.inputs.values() for dim in self.dims(spec) or ()]
        return {name for dim in dims if not dim.isdigit() for name in names_in(dim)}

    def dims(self, spec: TensorSpec) -> tuple[str, ...] | None:
        """The dims of a tensor as text; None of a number."""
        return None if spec.shape is None else tuple(map(self._dim, spec.shape))

    def _dim(self, axis: str) -> str:
        if axis.isdigit():
            return axis
        stated = self.definition.axes[axis]
        if stated.type == "expr":
            return self._expression(axis, stated.expression or "")
        return str(self.constants.get(axis, axis))

    def _expression(self, axis: str, text: str) -> str:
        """An axis that others determine. If these are no dims themselves, it has a size of its own."""
        try:
            tree = ast.parse(text.replace("//", "/").replace("/", "//"), mode="eval")
            dim = ast.unparse(_Constants(self).visit(tree)).replace(" ", "")
            names = names_in(dim)
            shapes = [a for spec in self.definition.inputs.values() for a in spec.shape or ()]
            return (dim if names <= set(shapes) else axis) if names else str(evaluate(dim, {}))
        except (SyntaxError, ValueError, ZeroDivisionError):
            raise TargetError(f"axis {axis!r} must be an expression of axes, got {text!r}", fix="correct it") from None

    def shapes(self) -> dict[str, list[int]] | None:
        """The shapes of the inputs of the smallest workload; None if it does not say them."""
        sizes = {**(self.smallest.axes if self.smallest else {}), **self.constants}
        try:
            return {n: [evaluate(d, sizes) for d in self.dims(t) or ()] for n, t in self.definition.inputs.items()}
        except KeyError:
            return None

    # --- arguments ---

    def _argument(self, name: str, spec: TensorSpec) -> InferredTensor:
        dtype = _dtype(name, spec)
        if spec.shape is None:
            kind = "float" if "float" in dtype else "bool" if dtype == "bool" else "int"
            return InferredTensor(name, kind, None, values=self._numbers(name, kind))
        return InferredTensor(name, dtype, self.dims(spec), values=self._values(name, dtype))

    def _numbers(self, name: str, kind: str) -> str:
        stated = [w.inputs[name].value for w in self.workloads if name in w.inputs and w.inputs[name].type == "scalar"]
        if stated:
            return f"ow.values(one_of={tuple(dict.fromkeys(stated))!r})"
        if kind == "float":
            return "ow.values(1e-06, 1e-05)" if "eps" in name else "ow.values(0.05, 1.0)"
        return "ow.values(one_of=(0,))" if kind == "int" else ""

    def _values(self, name: str, dtype: str) -> str:
        kinds = {w.inputs[name].type for w in self.workloads if name in w.inputs}
        if "custom" in kinds and self.definition.custom_inputs_entrypoint:
            call = (self.file, self.definition.custom_inputs_entrypoint, name, self.free, self.of_call())
            return f"ow.inputs.drawn_by(custom_values({', '.join(map(repr, call))}))"
        for total, offsets in self._totals:
            if offsets == name:
                return f"ow.inputs.offsets({self._named(total)!r})"
        if dtype in RANGES and "random" in kinds:
            return "ow.values({}, {})".format(*RANGES[dtype])
        return _ZEROS if dtype in ("int32", "int64") else ""

    def of_call(self) -> dict[str, Any]:
        """The sizes and numbers that a function of a task's inputs gets besides the dims."""
        numbers = {n: i.value for n, i in (self.smallest.inputs if self.smallest else {}).items() if i.type == "scalar"}
        return {**(self.smallest.axes if self.smallest else {}), **self.constants, **numbers}

    def _named(self, size: str) -> int | str:
        return self.constants.get(size, size)

    # --- relations ---

    @cached_property
    def _totals(self) -> list[tuple[str, str]]:
        """Each size that is the last element of an input, and this input."""
        found = [_LAST.fullmatch(text.strip()) for text in self.definition.constraints or ()]
        return [(m.group(1), m.group(2)) for m in found if m is not None]

    def _where(self) -> list[str]:
        relations = [f"{name} >= 1" for name in self.free]
        for text in self.definition.constraints or ():
            try:
                parsed = ast.unparse(_Constants(self).visit(ast.parse(text, mode="eval")))
                if (names := parse_relation(parsed).names) and names <= set(self.free):
                    relations.append(parsed)
            except (SyntaxError, ValueError, ContractError):
                continue  # it is about values
        return relations

    def _fixed(self) -> list[str]:
        sizes = [f"{name} = {value}: the definition states it" for name, value in self.constants.items()]
        tensors = {name: spec for name, spec in self.definition.inputs.items() if spec.shape is not None}
        zeros = [name for name, spec in tensors.items() if self._values(name, spec.dtype) == _ZEROS]
        return [*sizes, *(f"{name}: only zeros, because no workload states its values" for name in zeros)]


class _Constants(ast.NodeTransformer):
    """Writes numbers in the place of constant sizes."""

    def __init__(self, statement: Statement) -> None:
        self._values: Mapping[str, int] = statement.constants

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._values[node.id]) if node.id in self._values else node


def _dtype(name: str, spec: TensorSpec) -> str:
    if spec.dtype not in _KNOWN:
        raise TargetError(
            f"the dtype of {name!r} must be one of {', '.join(_KNOWN)}, got {spec.dtype!r}",
            fix="judge another definition",
        )
    return spec.dtype
