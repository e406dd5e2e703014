"""The shape language: ``"*batch n k"``, ``"n+1"``, ``"3"``, ``"?n"``, ``"_"``, ``"..."``.

The syntax is jaxtyping's (https://docs.kidger.site/jaxtyping/api/array/): axes are separated by
spaces, so an expression has none inside. A name stands for one size throughout the contract; an
expression may use the names of dims and of ``int`` arguments.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "AnyDim",
    "Dim",
    "ExprDim",
    "FixedDim",
    "NamedDim",
    "VariadicDim",
    "evaluate",
    "names_in",
    "names_of",
    "parse_dims",
    "size_name",
]

# A size: an int, or a torch.SymInt while shapes are symbolic.
Size = Any
Env = dict[str, Any]


def _power(base: Any, exponent: Any) -> Any:
    """torch knows no range of a symbol to the power of a symbol, and decides no condition on it: the exponent becomes a
    number, and code that was compiled holds for it."""
    return base ** (exponent if isinstance(base, int) else int(exponent))


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}


@dataclass(frozen=True)
class NamedDim:
    """One axis whose size has a name. ``broadcast`` (written ``#n``) also takes size 1; ``each`` (written ``?n``) is of
    its own size in each tensor of a list, the same one at the same place of every list."""

    name: str
    broadcast: bool = False
    each: bool = False

    def __str__(self) -> str:
        return f"{'#' * self.broadcast}{'?' * self.each}{self.name}"

    def at(self, index: int) -> str:
        """The name of its size in a tensor of a list."""
        return f"?{self.name}[{index}]" if self.each else self.name


@dataclass(frozen=True)
class VariadicDim:
    """Any number of axes. ``name`` is None for ``...``, which is not compared between arguments."""

    name: str | None

    def __str__(self) -> str:
        return f"*{self.name}" if self.name else "..."


@dataclass(frozen=True)
class FixedDim:
    """One axis of a size that the contract fixes."""

    size: int

    def __str__(self) -> str:
        return str(self.size)


@dataclass(frozen=True)
class ExprDim:
    """One axis whose size is computed from others."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class AnyDim:
    """One axis of any size, not compared with anything (``_``)."""

    def __str__(self) -> str:
        return "_"


Dim = NamedDim | VariadicDim | FixedDim | ExprDim | AnyDim


def parse_dims(text: str) -> tuple[Dim, ...]:
    """Parse a shape string. Raises ValueError with the wrong axis and the reason."""
    dims = tuple(_parse_axis(axis) for axis in text.split())
    if sum(isinstance(d, VariadicDim) for d in dims) > 1:
        raise ValueError(f"{text!r} has more than one '*' or '...' axis, so the sizes are ambiguous")
    return dims


def _parse_axis(axis: str) -> Dim:
    if axis == "...":
        return VariadicDim(None)
    if axis == "_":
        return AnyDim()
    # jaxtyping's documentation-only prefix: "rows=3" is "3", "_n" is "any size, called n".
    if re.fullmatch(r"[A-Za-z]\w*=.+", axis):
        axis = axis.split("=", 1)[1]
    if re.fullmatch(r"\d+", axis):
        return FixedDim(int(axis))
    if match := re.fullmatch(r"([*#?]?)([A-Za-z]\w*)", axis):
        prefix, name = match.groups()
        return VariadicDim(name) if prefix == "*" else NamedDim(name, broadcast=prefix == "#", each=prefix == "?")
    if re.fullmatch(r"_\w*", axis):
        return AnyDim()
    names_in(axis)  # raises if it is not a supported expression
    return ExprDim(axis)


def size_name(dim: Dim, axis: int) -> str | None:
    """The name under which a case gives the size of a dim; None if it follows from others. A ``_`` has the name of its
    axis: such axes of several arguments have the same size in most cases, as many references need that."""
    if isinstance(dim, NamedDim | VariadicDim):
        return dim.name or "..."
    return f"_{axis}" if isinstance(dim, AnyDim) else None


def names_in(expression: str) -> set[str]:
    """The names that an expression uses. Raises ValueError if it cannot be evaluated."""
    tree = _parse_expression(expression)
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    for node in ast.walk(tree):
        _reject_unless_known(node, expression)
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}


def names_of(dims: Iterable[Dim]) -> set[str]:
    """The names of sizes and of ``int`` arguments that dims use."""
    names: set[str] = set()
    for dim in dims:
        if isinstance(dim, ExprDim):
            names |= names_in(dim.text)
        elif isinstance(dim, NamedDim | VariadicDim) and dim.name is not None:
            names.add(dim.name)
    return names


def _parse_expression(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError:
        raise ValueError(f"{expression!r} is not an axis: use a name, a number, *name, ... or an expression") from None


def _reject_unless_known(node: ast.AST, expression: str) -> None:
    known = (
        isinstance(node, ast.Name | ast.BinOp | ast.expr_context | ast.USub | ast.UnaryOp)
        or (isinstance(node, ast.Constant) and type(node.value) is int)
        or type(node) in _OPERATORS
        or (isinstance(node, ast.Call) and _is_call_of_function(node))
    )
    if not known:
        raise ValueError(f"the axis {expression!r} uses more than + - * // % ** min max abs on names and integers")


def _is_call_of_function(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Name) or node.keywords or node.func.id not in _FUNCTIONS:
        return False
    return len(node.args) == 1 if node.func.id == "abs" else len(node.args) >= 2


def evaluate(expression: str | ast.expr, env: Mapping[str, Size]) -> Size:
    """The value of an expression (KeyError for a name that ``env`` lacks). Sizes may be symbolic."""
    return _evaluate(_parse_expression(expression) if isinstance(expression, str) else expression, env)


def _evaluate(node: ast.expr, env: Mapping[str, Size]) -> Size:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return env[name]
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, env)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate(left, env), _evaluate(right, env))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_evaluate(a, env) for a in args))
    raise ValueError(f"cannot evaluate {ast.unparse(node)!r}")


def describe(dims: Iterable[Dim]) -> str:
    """The shape as it was written, in brackets."""
    return "[" + ", ".join(map(str, dims)) + "]"


def rank_range(dims: Iterable[Dim]) -> tuple[int, bool]:
    """The least rank, and whether more axes are allowed."""
    listed = list(dims)
    return sum(not isinstance(d, VariadicDim) for d in listed), any(isinstance(d, VariadicDim) for d in listed)
