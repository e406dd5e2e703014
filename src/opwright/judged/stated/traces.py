"""Files of traces: which calls of torch's operators a model made, as text.

``Operator: aten.add.Tensor`` is followed by lines such as ``cnt: 3, ((T([2, 5], f16), T([5], f16)), {'alpha': 2})``.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Traced", "forms_of", "read_traces"]

_OPERATOR = re.compile(r"Operator:\s*aten\.(\w+)\.(\w+)")
_CALL = re.compile(r"cnt:\s*(\d+),\s*(.+)")
_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "b8": "bool",
}  # fmt: skip
# Of the forms of an operator's calls, the most frequent ones.
_MOST_FORMS = 4


@dataclass(frozen=True)
class Traced:
    """One call: the text that makes each tensor, and the call with names in their place.

    Attributes:
        form: what calls have in common that differ in sizes only.
    """

    inputs: tuple[str, ...]
    call: str
    form: str
    elements: int
    count: int


class _Untold(ValueError):
    """A line that is no call, or has what no contract states."""


def read_traces(text: str) -> dict[tuple[str, str], list[Traced]]:
    """The calls by operator and overload. Those that write their arguments, or take others than tensors and plain
    values, are left out."""
    found: dict[tuple[str, str], list[Traced]] = {}
    key = ("", "")
    for line in text.splitlines():
        if named := _OPERATOR.match(line.strip()):
            key = named.group(1), named.group(2)
        elif (called := _CALL.match(line.strip())) and not key[0].endswith("_") and "out" not in key[1]:
            try:
                found.setdefault(key, []).append(_traced(int(called.group(1)), called.group(2)))
            except (_Untold, SyntaxError):
                continue
    return {key: calls for key, calls in found.items() if calls}


def forms_of(calls: Sequence[Traced]) -> list[Traced]:
    """For each of the most frequent forms, the call with the fewest elements."""
    counts: dict[str, int] = {}
    for each in calls:
        counts[each.form] = counts.get(each.form, 0) + each.count
    frequent = sorted(counts, key=lambda form: -counts[form])[:_MOST_FORMS]
    return [min((c for c in calls if c.form == form), key=lambda c: c.elements) for form in frequent]


def _traced(count: int, text: str) -> Traced:
    """A call, of the text of its arguments.

    Raises:
        _Untold, SyntaxError: it is no pair of arguments and keywords.
    """
    match ast.parse(text, mode="eval").body:
        case ast.Tuple(elts=[ast.Tuple(elts=positional), ast.Dict(keys=keys, values=values)]):
            pass
        case _:
            raise _Untold
    naming = _Naming()
    arguments = [ast.unparse(naming.visit(node)) for node in positional]
    for key, value in zip(keys, values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise _Untold
        arguments.append(f"{key.value}={ast.unparse(naming.visit(value))}")
    if not naming.inputs:
        raise _Untold
    call = ", ".join(arguments)
    return Traced(tuple(naming.inputs), call, f"{call} {naming.forms}", naming.elements, count)


class _Naming(ast.NodeTransformer):
    """Writes a name in the place of each tensor, and the first tensor's device in the place of a named one."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.forms: list[tuple[int, str]] = []
        self.elements = 0

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(func=ast.Name(id="T"), args=[shape, ast.Name(id=dtype)], keywords=[]) if dtype in _DTYPES:
                sizes = [int(size) for size in ast.literal_eval(shape)]
            case _:
                raise _Untold
        self.inputs.append(_drawn(sizes, _DTYPES[dtype]))
        self.forms.append((len(sizes), dtype))
        self.elements += math.prod(sizes)
        return ast.Name(f"x{len(self.inputs) - 1}")

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        is_device = isinstance(node.value, str) and re.fullmatch(r"(cuda|cpu)(:\d+)?", node.value)
        return ast.Name("x0.device") if is_device else node


def _drawn(sizes: Sequence[int], dtype: str) -> str:
    if dtype == "bool":
        return f"torch.randint(0, 2, {list(sizes)}).bool()"
    if "int" in dtype:
        return f"torch.randint(0, 10, {list(sizes)}, dtype=torch.{dtype})"
    return f"torch.randn({list(sizes)}, dtype=torch.{dtype})"
