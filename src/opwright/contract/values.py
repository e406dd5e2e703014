"""The values of test inputs: what an annotation says of them, and drawing them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from opwright.contract.dims import evaluate, names_in
from opwright.errors import CheckError, ContractError

__all__ = ["Values", "draw", "draw_range", "offsets", "values"]

# A number, or an expression of dims and int arguments.
Bound = float | str
Arrangement = Literal["", "sorted", "unique", "offsets"]


@dataclass(frozen=True)
class Values:
    """The test inputs of an argument: a closed range or a list of choices, other values besides, and their order."""

    low: Bound | None = None
    high: Bound | None = None
    one_of: tuple[Any, ...] = ()
    also: tuple[Any, ...] = ()
    arrangement: Arrangement = ""

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
    sorted: bool = False,
    unique: bool = False,
) -> Values:
    """Restrict the inputs that checks and benchmarks draw for an argument.

    Used inside ``typing.Annotated``: ``x: Annotated[Float[Tensor, "n"], ow.values(0, 1)]`` draws every element from
    [0, 1]; ``labels: Annotated[Int64[Tensor, "t"], ow.values(0, "v-1", also=(-100,))]`` from the indices of a dim
    ``v``, with some -100 among them. The operator itself accepts any value: this restricts test inputs only.

    Args:
        low, high: a closed range; each a number, or an expression of dims and ``int`` arguments.
        one_of: the only values, instead of a range.
        also: values that a few elements have instead.
        sorted: ascending along the last axis.
        unique: no value twice in a tensor; with a range of as many integers, a permutation.

    Raises:
        ContractError: what is asked for cannot be.
    """
    if one_of and (low is not None or high is not None or sorted or unique):
        raise ContractError("ow.values takes a range or one_of, not both", fix="leave one of them out")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        raise ContractError(f"ow.values({low}, {high}) is empty", fix="put the lower bound first")
    if unique and (sorted or also):
        raise ContractError("ow.values: unique goes with neither sorted nor also", fix="leave one of them out")
    for bound in (low, high):
        _refuse_malformed(bound)
    arrangement: Arrangement = "sorted" if sorted else "unique" if unique else ""
    return Values(low, high, tuple(one_of), tuple(also), arrangement)


def offsets(total: int | str) -> Values:
    """Test inputs that divide ``total`` elements among neighbours, as ``cu_seqlens`` does: along the last axis, from 0
    up to ``total``, never descending. ``total`` is a number, or an expression of dims and ``int`` arguments.

    ``cu_seqlens: Annotated[Int32[Tensor, "b"], ow.offsets("t")]`` has b-1 sequences of t tokens together, some empty.
    """
    _refuse_malformed(total)
    return Values(0, total, arrangement="offsets")


def _refuse_malformed(bound: Bound | None) -> None:
    if isinstance(bound, str):
        try:
            names_in(bound)
        except ValueError as error:
            raise ContractError(f"the bound {bound!r} cannot be computed: {error}", fix="write it like 'v-1'") from None


def draw(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    stated: Values | None,
    env: Mapping[str, Any],
    generator: torch.Generator,
) -> torch.Tensor:
    """A tensor of values as they are stated.

    Args:
        env: sizes of dims and values of int arguments.

    Raises:
        CheckError: there are no such values for these sizes.
    """
    chosen = (stated or Values()).at(env)
    if chosen.one_of:
        index = torch.randint(len(chosen.one_of), shape, generator=generator)
        return torch.tensor(chosen.one_of, dtype=dtype)[index]
    if chosen.arrangement == "offsets":
        return _draw_offsets(shape, dtype, chosen, generator)
    drawn = _draw_unique(shape, dtype, chosen, generator) if chosen.arrangement == "unique" else None
    drawn = drawn if drawn is not None else _draw_each(shape, dtype, chosen, generator)
    if chosen.also and drawn.numel():
        instead = torch.tensor(chosen.also, dtype=dtype)
        picked = torch.rand(shape, generator=generator) < 0.25
        drawn = torch.where(picked, instead[torch.randint(len(chosen.also), shape, generator=generator)], drawn)
    return drawn.sort(-1).values if chosen.arrangement == "sorted" and drawn.dim() else drawn


def _draw_each(shape: tuple[int, ...], dtype: torch.dtype, chosen: Values, generator: torch.Generator) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        if chosen.low is None and chosen.high is None:
            return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
        low, high = draw_range(chosen, -math.inf, math.inf)
        low, high = max(low, high - 4.0 if math.isinf(low) else low), min(high, low + 4.0 if math.isinf(high) else high)
        _refuse_empty(low, high, shape)
        return (low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)).to(dtype)
    first, last = _integers(dtype, chosen, shape)
    return torch.randint(first, max(first, last) + 1, shape, generator=generator).to(dtype)


def _draw_unique(
    shape: tuple[int, ...], dtype: torch.dtype, chosen: Values, generator: torch.Generator
) -> torch.Tensor | None:
    """Integers without a repetition; None for floats, of which two are hardly ever equal."""
    if dtype.is_floating_point or dtype.is_complex:
        return None
    first, last = _integers(dtype, chosen, shape)
    count = math.prod(shape)
    if last - first + 1 < count:
        raise CheckError(
            f"{count} different values are needed, and from {first} to {last} there are {max(0, last - first + 1)}",
            fix="choose other sizes",
        )
    return (torch.randperm(last - first + 1, generator=generator)[:count] + first).view(shape).to(dtype)


def _draw_offsets(
    shape: tuple[int, ...], dtype: torch.dtype, chosen: Values, generator: torch.Generator
) -> torch.Tensor:
    total = int(chosen.high or 0)
    if not shape or shape[-1] == 0 or (shape[-1] == 1 and total > 0):
        raise CheckError(f"offsets of the shape {list(shape)} cannot reach from 0 to {total}", fix="choose other sizes")
    ends = torch.zeros((*shape[:-1], 1), dtype=torch.int64)
    if shape[-1] == 1:
        return ends.to(dtype)
    between = torch.randint(0, total + 1, (*shape[:-1], shape[-1] - 2), generator=generator).sort(-1).values
    return torch.cat([ends, between, ends + total], -1).to(dtype)


def _integers(dtype: torch.dtype, chosen: Values, shape: tuple[int, ...]) -> tuple[int, int]:
    low, high = draw_range(chosen, -8 if dtype.is_signed else 0, 8)
    _refuse_empty(low, high, shape)
    return int(low), int(high)


def _refuse_empty(low: float, high: float, shape: tuple[int, ...]) -> None:
    if low > high and 0 not in shape:
        raise CheckError(f"no value is from {low} to {high}", fix="choose other sizes")


def draw_range(chosen: Values, low: float, high: float) -> tuple[float, float]:
    """The range to draw from: the stated bounds, with a default on an open side that keeps it non-empty."""
    stated_low, stated_high = (b if b is None else float(b) for b in (chosen.low, chosen.high))
    lower = stated_low if stated_low is not None else min(low, stated_high if stated_high is not None else low)
    upper = stated_high if stated_high is not None else max(high, lower)
    return lower, upper
