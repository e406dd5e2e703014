"""Draws the values of test inputs as annotations state them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from opwright.contract.dtypes import short
from opwright.contract.inputs.arranged import draw_by, draw_probabilities
from opwright.contract.inputs.case import (
    BOUNDS,
    CONFIDENT,
    DYADIC,
    HUGE,
    LARGE_INTEGERS,
    MASKED,
    PEAK_TARGETS,
    RUNS,
    SMALL,
    WIDE,
)
from opwright.contract.values import Values, draw_range, is_representable
from opwright.errors import CheckError

__all__ = ["draw", "is_mask"]

Shape = tuple[int, ...]


def draw(
    shape: Shape,
    dtype: torch.dtype,
    stated: Values | None,
    env: Mapping[str, Any],
    generator: torch.Generator,
    unstated: str = "",
) -> torch.Tensor:
    """A tensor of values as they are stated.

    Args:
        env: sizes of dims and values of int arguments.
        unstated: one of the case's VALUES, for floats of which none are stated or that go together; WIDE, for such
            integers; RUNS, for masks; BOUNDS, for stated ranges.

    Raises:
        CheckError: there are no such values for these sizes, or in this dtype.
    """
    if stated is not None and stated.finite and unstated in ("inf", MASKED, "nan"):
        unstated = ""
    is_free = stated is None or stated.is_free
    if is_free and unstated in _UNSTATED and dtype.is_floating_point and dtype.itemsize > 1:
        return _UNSTATED[unstated](torch.randn(shape, dtype=torch.float64, generator=generator), dtype, generator)
    if is_free and unstated in _MOST_BITS and _is_wide(dtype):
        return _wide(shape, dtype, _MOST_BITS[unstated], generator)
    try:
        chosen = (stated or Values()).at(env)
    except (ZeroDivisionError, OverflowError) as error:
        raise CheckError(f"a bound of the values cannot be computed: {error}", fix="choose other sizes") from None
    if chosen.draw is not None:
        return draw_by(chosen.draw, shape, dtype, generator, unstated)
    for value in (*chosen.one_of, *chosen.also):
        if not is_representable(value, dtype):
            raise CheckError(f"{short(dtype)} has no value {value!r}", fix="choose another dtype")
    if unstated == RUNS and is_mask(dtype, chosen):
        return _runs(shape, torch.tensor(chosen.one_of or (False, True), dtype=dtype), generator)
    if chosen.one_of:
        index = torch.randint(len(chosen.one_of), shape, generator=generator)
        return torch.tensor(chosen.one_of, dtype=dtype)[index]
    if chosen.arrangement == "probabilities":
        return draw_probabilities(shape, dtype, chosen, generator, unstated)
    if chosen.arrangement in _ARRANGED:
        return _ARRANGED[chosen.arrangement](shape, dtype, chosen, generator)
    # torch fills, chooses and sorts nothing in floats of a byte.
    wide = torch.float32 if dtype.is_floating_point and dtype.itemsize == 1 else dtype
    drawn = _draw_each(shape, wide, chosen, generator)
    if unstated == BOUNDS:
        drawn = _with_bounds(drawn, chosen, generator)
    if unstated == DYADIC and dtype.is_floating_point and dtype.itemsize > 1:
        drawn = _as_dyadic(drawn, chosen)
    if chosen.also and drawn.numel():
        instead = torch.tensor(chosen.also, dtype=wide)
        picked = torch.rand(shape, generator=generator) < 0.25
        drawn = torch.where(picked, instead[torch.randint(len(chosen.also), shape, generator=generator)], drawn)
    if chosen.zeros:
        drawn = drawn.masked_fill(torch.rand(shape, generator=generator) < chosen.zeros, 0)
    return (_sorted(drawn, chosen) if chosen.arrangement in ("sorted", "descending") else drawn).to(dtype)


def is_mask(dtype: torch.dtype, stated: Values | None) -> bool:
    """Whether each element has one of a few values, as those of a mask."""
    if stated is not None and not stated.is_free:
        return bool(stated.one_of)
    return dtype is torch.bool


# Longer than a tile.
_LONG_RUN = 96


def _runs(shape: Shape, values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One value for each of many rows, else runs of equal ones, so that whole tiles have one value, too."""
    if not shape or not math.prod(shape):
        return values[torch.randint(len(values), shape, generator=generator)]
    rows = math.prod(shape[:-1])
    of_rows = torch.randint(len(values), (rows, 1), generator=generator).expand(rows, shape[-1])
    lengths = 1 + int(torch.randint(_LONG_RUN, (), generator=generator)) + _LONG_RUN * (shape[-1] > _LONG_RUN)
    place = torch.arange(shape[-1]) + torch.randint(lengths, (rows, 1), generator=generator)
    of_runs = torch.randint(len(values), (rows, int(place.max()) // lengths + 1), generator=generator)
    is_whole = torch.rand((rows, 1), generator=generator) < 0.5
    return values[torch.where(is_whole, of_rows, of_runs.gather(1, place // lengths))].reshape(shape)


def _with_bounds(drawn: torch.Tensor, chosen: Values, generator: torch.Generator) -> torch.Tensor:
    """Each end of the stated range at about a quarter of the places."""
    if drawn.is_complex() or drawn.dtype is torch.bool:
        return drawn
    where = torch.rand(drawn.shape, generator=generator)
    for bound, is_there in ((chosen.low, where < 0.25), (chosen.high, where > 0.75)):
        if bound is None or math.isinf(end := float(bound)):
            continue
        if drawn.is_floating_point():
            drawn = drawn.masked_fill(is_there, end)
        elif end.is_integer() and is_representable(int(end), drawn.dtype):
            drawn = drawn.masked_fill(is_there, int(end))
    return drawn


def _is_wide(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype.itemsize > 1


# Of integers with such values: of those up to 2²⁶, which float32 does not have, sums of many fit into 32 bits.
_MOST_BITS = {LARGE_INTEGERS: 26, WIDE: 40}


def _wide(shape: Shape, dtype: torch.dtype, most_bits: int, generator: torch.Generator) -> torch.Tensor:
    """Integers of all magnitudes, of both signs: sums of some fit into the dtype of a sum, and into no narrower one.
    Some of the largest are next to each other, so that they are one number in float32, and one has to be chosen."""
    most = min(torch.iinfo(dtype).bits - 2, most_bits)
    sizes = (most * torch.rand(shape, dtype=torch.float64, generator=generator)).exp2().round()
    is_largest = torch.rand(shape, generator=generator) < 0.125
    below = torch.randint(1, 5, shape, generator=generator, dtype=torch.float64)
    sizes = torch.where(is_largest, 2.0**most - below, sizes)
    signs = torch.randint(2, shape, generator=generator) * 2 - 1 if dtype.is_signed else 1
    return (signs * sizes).to(dtype)


def _sorted(drawn: torch.Tensor, chosen: Values) -> torch.Tensor:
    if not drawn.dim():
        return drawn
    return drawn.sort(-1, descending=chosen.arrangement == "descending").values


def _draw_each(shape: Shape, dtype: torch.dtype, chosen: Values, generator: torch.Generator) -> torch.Tensor:
    if dtype is torch.bool:
        low, high = draw_range(chosen, 0, 1)
        return torch.randint(int(low > 0), int(high >= 1) + 1, shape, generator=generator).bool()
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return _draw_floats(shape, chosen, generator).to(dtype)
    first, last = _integers(dtype, chosen, shape)
    # The upper end of torch.randint is exclusive, and must be an int64.
    end = min(max(first, last) + 1, torch.iinfo(torch.int64).max)
    return torch.randint(first, end, shape, generator=generator).to(dtype)


def _draw_floats(shape: Shape, chosen: Values, generator: torch.Generator) -> torch.Tensor:
    if chosen.low is None and chosen.high is None:
        return torch.randn(shape, dtype=torch.float64, generator=generator)
    low, high = draw_range(chosen, -math.inf, math.inf)
    low, high = max(low, high - 4.0 if math.isinf(low) else low), min(high, low + 4.0 if math.isinf(high) else high)
    _refuse_empty(low, high, shape)
    return low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)


def _draw_unique(shape: Shape, dtype: torch.dtype, chosen: Values, generator: torch.Generator) -> torch.Tensor:
    count = math.prod(shape)
    if not dtype.is_floating_point:
        first, last = _integers(dtype, chosen, shape)
        if last - first + 1 < count:
            raise CheckError(
                f"{count} different values are needed, and from {first} to {last} there are {max(0, last - first + 1)}",
                fix="choose other sizes",
            )
        if last - first < 4 * count + 4096:
            return (torch.randperm(last - first + 1, generator=generator)[:count] + first).view(shape).to(dtype)
    found: torch.Tensor = torch.empty(0, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
    for _ in range(20):  # a few draws are enough, unless the dtype has hardly more values than are needed
        more = _draw_each((2 * count + 16,), dtype, chosen, generator)
        found = torch.unique(torch.cat([found, more.to(found.dtype)]))
        if found.numel() >= count:
            return found[torch.randperm(found.numel(), generator=generator)[:count]].view(shape).to(dtype)
    raise CheckError(
        f"{count} different values are needed, and {found.numel()} were found in {short(dtype)}",
        fix="choose other sizes",
    )


def _draw_offsets(shape: Shape, dtype: torch.dtype, chosen: Values, generator: torch.Generator) -> torch.Tensor:
    total = int(chosen.high or 0)
    if not shape or shape[-1] == 0 or (shape[-1] == 1 and total > 0) or total < 0:
        raise CheckError(f"offsets of the shape {list(shape)} cannot reach from 0 to {total}", fix="choose other sizes")
    _refuse_too_large(0, total, dtype)
    ends = torch.zeros((*shape[:-1], 1), dtype=torch.int64)
    if shape[-1] == 1:
        return ends.to(dtype)
    between = torch.randint(0, total + 1, (*shape[:-1], shape[-1] - 2), generator=generator).sort(-1).values
    return torch.cat([ends, between, ends + total], -1).to(dtype)


def _draw_well_conditioned(
    shape: Shape, dtype: torch.dtype, chosen: Values, generator: torch.Generator
) -> torch.Tensor:
    if len(shape) < 2:
        raise CheckError(
            f"the shape must have two axes or more, got {list(shape)}", fix="give the argument at least two axes"
        )
    *batch, rows, columns = shape
    rank = min(rows, columns)

    def orthogonal(rows: int) -> torch.Tensor:
        drawn = torch.randn((*batch, rows, rank), dtype=torch.float64, generator=generator)
        basis: torch.Tensor = torch.linalg.qr(drawn).Q
        return basis

    left, right = orthogonal(rows), orthogonal(columns)
    if chosen.arrangement == "positive definite":
        if rows != columns:
            raise CheckError(f"the shape {list(shape)} is not of square matrices", fix="use one dim for both axes")
        right = left
    exponent = 2 * torch.rand((*batch, 1, rank), dtype=torch.float64, generator=generator) - 1
    return ((left * exponent.exp2()) @ right.mT).to(dtype)  # singular values from 0.5 to 2


def _large(normal: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Magnitudes from a hundredth on, up to where a few squares of them are the largest number of float16."""
    most = 2.0 if dtype is torch.float16 else 5.0
    exponent = torch.rand(normal.shape, dtype=torch.float64, generator=generator) * (most + 2) - 2
    return (normal.sign() * 10**exponent).to(dtype)


def _sprinkled(*extremes: float) -> Callable[[torch.Tensor, torch.dtype, torch.Generator], torch.Tensor]:
    """Normal values, about one in twenty of which, and the last, is one of some others."""

    def values(normal: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        instead = torch.tensor(extremes, dtype=torch.float64)[
            torch.randint(len(extremes), normal.shape, generator=generator)
        ]
        chosen = torch.rand(normal.shape, generator=generator) < 0.05
        if chosen.numel():
            chosen.view(-1)[-1] = True
        return torch.where(chosen, instead, normal).to(dtype)

    return values


def _tiny(normal: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Zeros of both signs, denormal numbers, and the smallest normal one."""
    limits = torch.finfo(dtype)
    return _sprinkled(-0.0, 0.0, limits.tiny / 4, -limits.tiny / 4, limits.tiny)(normal, dtype, generator)


def _dyadic(normal: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Numbers of a few bits: many are equal, zero, or half way between two integers."""
    return (normal.mul(16).round().clamp(-64, 64).div(8) + 0.0).to(dtype)


def _small(normal: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Rows of zeros, and of numbers beside which an epsilon is large; of a vector, each number has another size."""
    least = -8.0 if torch.finfo(dtype).tiny < 1e-30 else -4.0
    shape = (*normal.shape[:-1], 1) if normal.dim() > 1 else normal.shape
    size = (least * torch.rand(shape, dtype=torch.float64, generator=generator)).mul(math.log(10)).exp()
    if normal.dim() > 1:
        size = size.masked_fill(torch.rand(shape, generator=generator) < 0.25, 0)
    return (normal * size + 0.0).to(dtype)


def _masked(normal: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """-inf at half of the places of a vector, which several vectors then share; of a matrix, at the beginning of a
    quarter of the rows, of any length up to the whole row."""
    if normal.dim() < 2:
        chosen = torch.rand(normal.shape, generator=generator) < 0.5
    else:
        length = normal.shape[-1]
        until = (torch.rand((*normal.shape[:-1], 1), generator=generator) * 5 - 4) * 2 * length
        chosen = torch.arange(length) < until
    return normal.masked_fill(chosen, -math.inf).to(dtype)


def _as_dyadic(drawn: torch.Tensor, chosen: Values) -> torch.Tensor:
    """Numbers of a stated range, of which those are multiples of 1/8 that have one near them in the range."""
    low, high = draw_range(chosen, -math.inf, math.inf)
    rounded = drawn.mul(8).round().div(8) + 0.0
    return torch.where((rounded >= low) & (rounded <= high), rounded, drawn)


_UNSTATED: dict[str, Callable[[torch.Tensor, torch.dtype, torch.Generator], torch.Tensor]] = {
    "large": _large,
    # As logits of a sure model: exp of them overflows, and its largest term is nearly all of a sum.
    CONFIDENT: lambda normal, dtype, generator: (30 * normal).to(dtype),
    # Differences from the mean are small beside the values.
    "shifted": lambda normal, dtype, generator: (normal + 100).to(dtype),
    "inf": _sprinkled(math.inf, -math.inf),
    "nan": _sprinkled(math.nan),
    "tiny": _tiny,
    DYADIC: _dyadic,
    # As what is masked by a large negative number: a maximum that begins at -1e4 is none.
    "low": lambda normal, dtype, generator: (300 * normal - 30_000).to(dtype),
    SMALL: _small,
    MASKED: _masked,
    HUGE: lambda normal, dtype, generator: (normal * (700 if dtype is torch.float16 else 1)).to(dtype),
    # The largest term of a sum of exp is most of it, and the others are not nothing.
    PEAK_TARGETS: lambda normal, dtype, generator: (10 * normal).to(dtype),
}

_ARRANGED: dict[str, Callable[[Shape, torch.dtype, Values, torch.Generator], torch.Tensor]] = {
    "unique": _draw_unique,
    "offsets": _draw_offsets,
    "positive definite": _draw_well_conditioned,
    "well conditioned": _draw_well_conditioned,
}


def _integers(dtype: torch.dtype, chosen: Values, shape: Shape) -> tuple[int, int]:
    """The first and the last integer to draw; a bound that is stated must be one of the dtype."""
    limits = torch.iinfo(dtype)
    # Pixels and quantised numbers have any value of a byte; wider integers are mostly indices, or counts.
    usual = (limits.min, limits.max) if limits.bits == 8 else (-8 if dtype.is_signed else 0, 8)
    low, high = draw_range(chosen, *usual)
    _refuse_empty(low, high, shape)
    low, high = (limits.min if math.isinf(low) else low), (limits.max if math.isinf(high) else high)
    first, last = math.ceil(low), math.floor(high)
    if 0 not in shape:
        _refuse_empty(first, last, shape)
        _refuse_too_large(first, last, dtype)
    return first, last


def _refuse_too_large(first: int, last: int, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    if first < limits.min or last > limits.max:
        raise CheckError(f"{short(dtype)} cannot hold the values from {first} to {last}", fix="choose another dtype")


def _refuse_empty(low: float, high: float, shape: Shape) -> None:
    if low > high and 0 not in shape:
        raise CheckError(f"no value is from {low:g} to {high:g}", fix="choose other sizes")
