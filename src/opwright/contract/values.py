"""What annotations say of the values of test inputs: ranges, choices, orders, distributions."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from opwright.contract.shapes.dims import evaluate, names_in
from opwright.errors import ContractError

__all__ = [
    "Draw", "Values", "contradiction", "draw_range", "drawn_by", "is_representable", "offsets", "positive_definite",
    "probabilities", "values", "well_conditioned",
]  # fmt: skip

# A number, or an expression of dims and int arguments.
Bound = float | str
# How the elements of a tensor go together; "" if each is drawn by itself.
Arrangement = Literal[
    "", "sorted", "descending", "unique", "offsets", "probabilities", "positive definite", "well conditioned"
]  # fmt: skip
# Takes a shape and a seeded generator on the CPU, and what else it names, and returns a tensor on the CPU.
Draw = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Values:
    """The test inputs of an argument: a closed range or a list of choices, other values besides, and their order.

    ``zeros`` is the share of elements that are 0; ``draw`` a function that draws the tensor instead of all the rest,
    and ``reads`` the arguments and dims that it takes.
    """

    low: Bound | None = None
    high: Bound | None = None
    one_of: tuple[Any, ...] = ()
    also: tuple[Any, ...] = ()
    arrangement: Arrangement = ""
    zeros: float = 0.0
    draw: Draw | None = None
    reads: tuple[str, ...] = ()
    finite: bool = False

    @property
    def is_free(self) -> bool:
        """Whether nothing is stated but that values are finite."""
        return self == Values(finite=self.finite)

    @property
    def is_arranged(self) -> bool:
        """Whether a tensor's elements go together, so that they cannot be moved or repeated."""
        return bool(self.arrangement) or self.draw is not None

    @property
    def names(self) -> set[str]:
        """The dims and int arguments that the bounds are computed from."""
        return {name for bound in (self.low, self.high) if isinstance(bound, str) for name in names_in(bound)}

    def at(self, env: Mapping[str, Any]) -> Values:
        """The same with numbers for bounds."""
        low, high = (evaluate(b, env) if isinstance(b, str) else b for b in (self.low, self.high))
        return dataclasses.replace(self, low=low, high=high)


def values(
    low: Bound | None = None,
    high: Bound | None = None,
    *,
    one_of: Sequence[Any] = (),
    also: Sequence[Any] = (),
    sorted: bool | Literal["descending"] = False,
    unique: bool = False,
    zeros: float = 0.0,
    finite: bool = False,
) -> Values:
    """Restrict the inputs that checks and benchmarks draw for an argument.

    Used inside ``typing.Annotated``: ``x: Annotated[Float[Tensor, "n"], ow.values(0, 1)]`` draws every element from
    [0, 1]; ``labels: Annotated[Int64[Tensor, "t"], ow.values(0, "v-1", also=(-100,))]`` from the indices of a dim
    ``v``, with some -100 among them. The operator itself accepts any value: this restricts test inputs only.

    Args:
        low, high: a closed range; each a number, or an expression of dims and ``int`` arguments.
        one_of: the only values, instead of a range.
        also: values that a few elements have instead.
        sorted: ascending along the last axis; or ``"descending"``.
        unique: no value twice in a tensor; with a range of as many integers, a permutation.
        zeros: the share of elements that are 0, from 0 to 1.
        finite: no infinities and NaN, which checks try in a few cases if no values are stated.

    Raises:
        ContractError: what is asked for cannot be.
    """
    if one_of and (low is not None or high is not None or sorted or unique or also):
        raise ContractError("ow.values takes a range or one_of, not both", fix="leave one of them out")
    for bound in (low, high):
        _refuse_malformed(bound)
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        raise ContractError(f"ow.values({low}, {high}) is empty", fix="put the lower bound first")
    if unique and (sorted or also or zeros):
        raise ContractError(
            "ow.values: unique goes with neither sorted nor also nor zeros", fix="leave one of them out"
        )
    if not 0 <= zeros <= 1:
        raise ContractError(f"ow.values: zeros={zeros} is not a share", fix="use a number from 0 to 1")
    if sorted not in (False, True, "descending"):
        raise ContractError(
            f"ow.values: sorted must be True, False or 'descending', got {sorted!r}", fix="use one of them"
        )
    order: Arrangement = "descending" if sorted == "descending" else "sorted" if sorted else ""
    arrangement: Arrangement = order or ("unique" if unique else "")
    return Values(low, high, tuple(one_of), tuple(also), arrangement, zeros, finite=finite)


def offsets(total: int | str) -> Values:
    """Test inputs that divide ``total`` elements among neighbours, as ``cu_seqlens`` does: along the last axis, from 0
    up to ``total``, never descending. ``total`` is a number, or an expression of dims and ``int`` arguments.

    ``cu_seqlens: Annotated[Int32[Tensor, "b"], ow.inputs.offsets("t")]`` has b-1 sequences of t tokens
    together, some empty.
    """
    _refuse_malformed(total)
    if isinstance(total, int) and total < 0:
        raise ContractError(f"ow.inputs.offsets({total}) has nothing to divide", fix="use a total of at least 0")
    return Values(0, total, arrangement="offsets")


def probabilities() -> Values:
    """Test inputs that are distributions: positive, with sum 1 along the last axis."""
    return Values(arrangement="probabilities")


def positive_definite() -> Values:
    """Test inputs that are symmetric positive definite matrices in the last two axes; eigenvalues from 0.5 to 2."""
    return Values(arrangement="positive definite")


def well_conditioned() -> Values:
    """Test inputs that are matrices in the last two axes, with singular values from 0.5 to 2."""
    return Values(arrangement="well conditioned")


def drawn_by(function: Draw) -> Values:
    """Test inputs from a function of one's own: ``function(shape, generator)`` returns a tensor of that shape on the
    CPU, drawn with the generator, so that a case has the same values each time. It is converted to the case's dtype.

    Further parameters are other arguments and dims by name: ``function(shape, generator, lengths, pages)``. They are
    drawn before; tensors are on the CPU. (One with a default is the function's own.)

    ``mask: Annotated[Bool[Tensor, "n n"], ow.inputs.drawn_by(lambda shape, generator: torch.ones(shape).tril() > 0)]``
    """
    if not callable(function):
        raise ContractError(
            f"ow.inputs.drawn_by must be given a function, got {type(function).__name__}",
            fix="pass function(shape, generator), which returns a tensor of this shape",
        )
    return Values(draw=function, reads=_names_read_by(function))


def _names_read_by(function: Draw) -> tuple[str, ...]:
    """The parameters of a function after the shape and the generator, except those with a default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions of torch's have no signature that Python knows
        return ()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters[2:] if p.kind in named and p.default is inspect.Parameter.empty)


def _refuse_malformed(bound: Bound | None) -> None:
    if isinstance(bound, str):
        try:
            names_in(bound)
        except ValueError as error:
            raise ContractError(f"the bound {bound!r} cannot be computed: {error}", fix="write it like 'v-1'") from None
    elif bound is not None and (not isinstance(bound, int | float) or bound != bound):
        raise ContractError(f"the bound {bound!r} is not a number", fix="use a number, or an expression such as 'v-1'")


def contradiction(stated: Values, dtypes: Sequence[torch.dtype], *, is_tensor: bool) -> str | None:
    """Why an argument cannot have the values that are stated of it, or None.

    Args:
        dtypes: those of a tensor; of a number, the one that stands for its type.
    """
    if not is_tensor and (stated.is_arranged or stated.zeros):
        return f"{stated.arrangement or 'what a function draws'} is of tensors, and this is one number"
    needed = _NEEDED.get(stated.arrangement)
    if needed is not None and not any(map(needed, dtypes)):
        return f"{stated.arrangement} is not possible in {', '.join(map(str, dtypes))}"
    for value in (*stated.one_of, *stated.also):
        if not any(is_representable(value, dtype) for dtype in dtypes):
            return f"{value!r} is not a value of {', '.join(map(str, dtypes))}"
    return None


def is_representable(value: Any, dtype: torch.dtype) -> bool:
    """Whether a dtype has a value (a float, up to rounding)."""
    if dtype.is_complex:
        return isinstance(value, int | float | complex)
    if not isinstance(value, int | float):
        return False
    if dtype is torch.bool:
        return value in (False, True)
    if dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    return value == value and not math.isinf(value) and value == int(value) and _fits(value, dtype)


def _fits(value: float, dtype: torch.dtype) -> bool:
    return torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def _is_ordered(dtype: torch.dtype) -> bool:
    return not dtype.is_complex and dtype is not torch.bool


# What a dtype must be for an arrangement.
_NEEDED: dict[str, Callable[[torch.dtype], bool]] = {
    "offsets": _is_integer, "probabilities": _is_float, "positive definite": _is_float, "well conditioned": _is_float,
    "sorted": _is_ordered, "descending": _is_ordered, "unique": _is_ordered,
}  # fmt: skip


def draw_range(chosen: Values, low: float, high: float) -> tuple[float, float]:
    """The range to draw from: the stated bounds, with a default on an open side that keeps it non-empty."""
    stated_low, stated_high = (b if b is None else float(b) for b in (chosen.low, chosen.high))
    lower = stated_low if stated_low is not None else min(low, stated_high if stated_high is not None else low)
    upper = stated_high if stated_high is not None else max(high, lower)
    return lower, upper
