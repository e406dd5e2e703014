"""Compares two samples of random results: of a reference, and of a kernel that should have the same distribution.

Every comparison is one of means: of the elements, their squares and cubes, the shares of zeros, of infinities and below
some values, by element, by slice along each axis, and over all; of the products of elements at every distance, and of
calls at some. A difference of means is compared with Bernstein's bound (Boucheron, Lugosi, Massart, *Concentration
Inequalities*, 2013, section 2.8), which holds for any distribution, with the variance and the range of both samples
together. The error rate is divided among all comparisons.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

__all__ = ["ERROR_RATE", "Difference", "first_difference"]

# The probability that two samples of one distribution are said to differ.
ERROR_RATE = 1e-6
_SHARES = 15
# Of samples with so many elements, fewer shares: places and correlations are what they show.
_MANY, _FEW_SHARES = 4096, 3
_CALL_LAGS = (1, 2, 4, 8, 16, 32)
# An element that has one value this often has no density there.
_ATOM = 0.02


@dataclass(frozen=True)
class Difference:
    """A mean that differs by more than chance explains. ``place`` is "" if it is over all elements."""

    what: str
    place: str
    actual: float
    expected: float
    allowed: float
    runs: int

    def __str__(self) -> str:
        where = f" of {self.place}" if self.place else ""
        return (
            f"{self.what}{where} is {self.actual:.4g}, expected {self.expected:.4g} ± {self.allowed:.2g} "
            f"({self.runs} runs of each, error rate {ERROR_RATE:g})"
        )


@dataclass(frozen=True)
class _Comparison:
    """Two samples of some means, ``[runs, positions]`` each, and a name for each position."""

    what: str
    place: Callable[[int], str]
    actual: torch.Tensor
    expected: torch.Tensor
    rounding: torch.Tensor | float


def first_difference(actual: torch.Tensor, expected: torch.Tensor, rounding: float = 0.0) -> Difference | None:
    """The first difference of two samples in float64, of shape ``[runs, *shape]`` each.

    Args:
        rounding: the relative difference of a value that rounding may cause.
    """
    if actual[0].numel() == 0:
        return None
    if actual.dim() == 1:  # a number for each run
        actual, expected = actual[:, None], expected[:, None]
    comparisons = list(_comparisons(actual.double(), expected.double(), rounding))
    count = sum(c.actual.shape[1] for c in comparisons)
    return next((d for c in comparisons if (d := _compare(c, count)) is not None), None)


def _comparisons(actual: torch.Tensor, expected: torch.Tensor, rounding: float) -> Iterator[_Comparison]:
    exactly = torch.zeros(actual.shape[1:], dtype=torch.float64)
    for value, what in ((math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "minus infinity")):
        shares = [(t.isnan() if math.isnan(value) else t == value).double() for t in (actual, expected)]
        if any(bool(share.any()) for share in shares):
            yield from _by_place(f"the share of {what}", shares[0], shares[1], exactly)
    actual, expected = (torch.where(t.isfinite(), t, 0) for t in (actual, expected))
    both = torch.cat([actual, expected])
    near = rounding * both.abs().amax(0) + 1e-12
    spread = both.std(0)
    is_random = spread > 4 * near
    scale = torch.where(is_random, 1 / spread.clamp(min=1e-300), 0)
    ours, theirs = ((t - both.mean(0)) * scale for t in (actual, expected))
    blurred = near * scale
    yield from _by_place("the mean", actual, expected, near)
    for power, what in ((2, "the variance"), (3, "the skewness")):
        yield from _by_place(f"{what}, in units of both samples',", ours**power, theirs**power, 4 * blurred)
    zeros, also_zeros = ((t.abs() <= near).double() for t in (actual, expected))
    yield from _by_place("the share of zeros", zeros, also_zeros, exactly)
    yield from _by_share("values", actual, expected, near)
    if actual[0].numel() > 1:
        yield _Comparison("the correlation of elements", _apart, _correlations(ours), _correlations(theirs), 0.0)
        if bool((zeros != zeros[0]).any()):  # what is dropped has no sign, which others take from their arguments
            centre = torch.cat([zeros, also_zeros]).mean(0)
            ours_of_zeros, theirs_of_zeros = (_correlations(t - centre) for t in (zeros, also_zeros))
            yield _Comparison("the correlation of zeros", _apart, ours_of_zeros, theirs_of_zeros, 0.0)
        # Elements that are drawn together make some calls large and others small.
        for power, what in ((1, "means"), (2, "mean squares")):
            near_mean = 4 * blurred.mean().reshape(1)
            yield from _by_share(f"calls' {what}", _each_call(ours**power), _each_call(theirs**power), near_mean)
    for lag in (lag for lag in _CALL_LAGS if 4 * lag < len(ours)):
        for offset in (0, lag):
            what = f"the correlation of calls {lag} apart"
            yield _over_all(what, _of_calls(ours, lag, offset), _of_calls(theirs, lag, offset))


def _by_share(what: str, a: torch.Tensor, b: torch.Tensor, near: torch.Tensor) -> Iterator[_Comparison]:
    """The shares up to several levels. What has one value often, and near the level, may lie on either side of it by
    rounding, and is left out."""
    both = torch.cat([a, b])
    for level in _levels(both):
        has_atom = ((both - level).abs() <= near + 1e-12).double().mean(0) > _ATOM
        below, also_below = (torch.where(has_atom, 0, (t <= level).double()) for t in (a, b))
        yield from _by_place(f"the share of {what} up to {level:.4g}", below, also_below, torch.zeros_like(near))


def _correlations(sample: torch.Tensor) -> torch.Tensor:
    """The mean products of elements 1, 2, … apart in memory, for each run (Wiener–Khinchin)."""
    flat = sample.flatten(1)
    size = flat.shape[1]
    power = torch.fft.rfft(flat, n=2 * size).abs() ** 2
    sums: torch.Tensor = torch.fft.irfft(power, n=2 * size)[:, 1:size]
    return sums / torch.arange(size - 1, 0, -1)


def _apart(i: int) -> str:
    return f"those {i + 1} apart in memory"


def _levels(both: torch.Tensor) -> list[float]:
    """Values at regular shares of the sample, and the middles between them."""
    values = both.flatten()
    values = values[:: max(1, values.numel() // (1 << 20))]
    count = _FEW_SHARES if both[0].numel() > _MANY else _SHARES
    shares = torch.linspace(0, 1, count, dtype=torch.float64)
    found = sorted(set(torch.quantile(values[: 1 << 24], shares).tolist()))
    return sorted({*found, *((a + b) / 2 for a, b in itertools.pairwise(found))})


def _by_place(what: str, a: torch.Tensor, b: torch.Tensor, rounding: torch.Tensor) -> Iterator[_Comparison]:
    """Over all elements, over each slice along each axis, and each element."""
    yield _over_all(what, a, b, float(rounding.mean()))
    shape = a.shape[1:]
    for axis in range(len(shape)) if len(shape) > 1 else ():
        others = [i for i in range(len(shape)) if i != axis]
        kept = [i + 1 for i in others]
        yield _Comparison(what, _slice_of(axis), a.mean(kept), b.mean(kept), rounding.mean(others))
    yield _Comparison(what, _element_of(shape), a.flatten(1), b.flatten(1), rounding.flatten())


def _slice_of(axis: int) -> Callable[[int], str]:
    return lambda i: f"the slice {i} along axis {axis}"


def _element_of(shape: torch.Size) -> Callable[[int], str]:
    return lambda i: f"the element {[int(n) for n in torch.unravel_index(torch.tensor(i), shape)]}"


def _over_all(what: str, a: torch.Tensor, b: torch.Tensor, rounding: float = 0.0) -> _Comparison:
    return _Comparison(what, lambda i: "", _each_call(a), _each_call(b), rounding)


def _each_call(sample: torch.Tensor) -> torch.Tensor:
    """The mean over the elements of each run, ``[runs, 1]``."""
    return sample.flatten(1).mean(1, keepdim=True)


def _of_calls(sample: torch.Tensor, lag: int, offset: int) -> torch.Tensor:
    """The products of two calls; each call is in one product at most, so that they are independent."""
    rest = sample[offset:]
    blocks = rest[: len(rest) // (2 * lag) * 2 * lag].unflatten(0, (-1, 2, lag))
    products: torch.Tensor = blocks[:, 0] * blocks[:, 1]
    return products.flatten(0, 1)


def _compare(comparison: _Comparison, count: int) -> Difference | None:
    """The largest excess over what chance explains in one of ``count`` comparisons."""
    a, b = comparison.actual, comparison.expected
    both = torch.cat([a, b])
    means = a.mean(0), b.mean(0)
    variance = both.var(0) * (1 / len(a) + 1 / len(b))
    reach = (both - both.mean(0)).abs().amax(0) / min(len(a), len(b))
    log = math.log(2 * count / ERROR_RATE)
    # Bernstein: P(|S| > sqrt(2 v log) + reach log / 3) <= 2 exp(-log)
    allowed = torch.sqrt(2 * variance * log) + reach * log / 3 + comparison.rounding + 1e-12
    excess = (means[0] - means[1]).abs() - allowed
    excess = torch.where(a.isnan().any(0) != b.isnan().any(0), math.inf, excess.nan_to_num(-1))
    i = int(excess.argmax())
    if not excess[i] > 0:
        return None
    return Difference(
        comparison.what, comparison.place(i), float(means[0][i]), float(means[1][i]), float(allowed[i]), len(a)
    )
