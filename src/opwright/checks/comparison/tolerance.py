"""What a correct kernel may return: the reference's results, and the allowed difference of each element.

The computation (the reference, or its VJP) runs in float64, ``exact``, and in the case's own dtypes, ``rounded``. An
element may differ from ``exact`` by

    2 · ulp + 3 · m
    2 · ulp + 3 · m + 1.5 · eps · |exact|       if the last step of this result is in a narrower dtype than sums

with 6 in place of 3 in float64, in which ``exact`` is off by as much, and more (up to ``MOST_OWN``) where the
reference's own errors are larger; where it is off by more than this tolerance, what is around may be, too. As much is
allowed from what the reference gives in the case's own dtypes.

``ulp`` is the distance of neighbouring numbers of the output's dtype at this element: the kernel has to round its
result. ``m`` is what rounding inside the computation does to this element: the largest change in some runs in which
every input and every intermediate result has a random relative error. That error is eps · (4 + √K) of the dtype in
which sums are accumulated (float32 for narrower ones), with K operations behind the element: √K is the expected growth
of independent rounding errors (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 2.8). An
intermediate result that the reference itself rounds to a narrower dtype has that dtype's eps, unless this changes none
of its numbers; the last one has not, as the formula's first terms are about its rounding. In a product of matrices,
what is multiplied with a tensor that the reference has converted from a narrower dtype may have that dtype, too.
Numbers among the arguments may be those of float32. Errors that follow from a few roundings, or from ill-conditioned
matrices, are spread wide, hence 3. To this come four roundings of the accumulator at the size of the elements around
this one (``typical``): 1 - t² is off by that much where t is near 1.

So each element has a tolerance of its own: small elements beside large ones are not covered by these, and float16
does not cover what bfloat16 does. The runs with errors are made only where a result is further from ``exact`` than
simple rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import torch

from opwright import tree
from opwright.checks.comparison.difference import ErrorSizes
from opwright.checks.comparison.integers import distinct, has_no_place_twice, is_between, places_twice
from opwright.checks.comparison.magnitudes import (
    around,
    comparable,
    count_far,
    distance,
    overflows_beside,
    typical,
    ulp,
)
from opwright.checks.comparison.numbers import has_numbers, matter_smoothly
from opwright.checks.comparison.operations import Operations, exact_steps, recorded
from opwright.checks.comparison.products import parts_of_products
from opwright.checks.comparison.rounding import Errors, exactly, lowered, multiplies, perturbed, to_double

__all__ = ["Computation", "next_lower"]

# The reference's own error counts up to this many times what rounding explains.
MOST_OWN = 32.0
_RUNS = 12
# After so many, it is clear what is far off, and how large the reference's own errors are.
_FEW_RUNS = 4
# Of equal values, any may be chosen; in a large tensor, a few of many such choices are rare ones. As long as runs with
# errors explain more of them, there are more, and integers, such as an argmax, may be any of those that they give. One
# run chooses as the kernel did with a probability of a half, for each of what may be thousands of pairs.
_MOST_RUNS = 96
_PATIENCE = 40
_WIDEST = (torch.float64, torch.complex128)
_OF_TF32 = (torch.float32, torch.complex64)
# So many wrong elements are few.
_FEW_WRONG = 16
# Of more integers, such as the places of the median of equal values, runs may miss the one that the kernel gives.
_MANY = 8
T = TypeVar("T")


@dataclass
class Computation:
    """The reference, or its VJP, on some arguments.

    Attributes:
        run: arguments → results, all on the CPU.
        arguments: on the CPU, in their own dtypes and layout.
        terms: for each result, the number of operations behind one element.
    """

    run: Callable[[Any], Sequence[torch.Tensor]]
    arguments: Any
    terms: Callable[[int], int]
    # Whether a narrow dtype was replaced by float32 in all of it, so that its steps' dtypes are not known.
    is_widened: bool = False
    # Whether no runs with errors are made, as where it is known that a kernel is wrong.
    is_hasty: bool = False
    # Whether decisions on arguments are the same in every right kernel, as these are numbers of a few bits.
    decides_exactly: bool = False
    # Whether products of float32 matrices may have operands in TF32.
    in_tf32: bool = False
    # What it has given until now, which others on the same arguments may share.
    given: dict[str, Any] = field(default_factory=dict)
    # What follows from the form of the arguments alone, which those on others of this form may share.
    of_form: dict[str, Any] = field(default_factory=dict)
    _moved: list[torch.Tensor] = field(default_factory=list)
    _runs: int = 0

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """What is computed only once for all that share it."""
        if name not in self.given:
            self.given[name] = compute()
        return cast(T, self.given[name])

    @property
    def rounded(self) -> tuple[torch.Tensor, ...]:
        """The results in the arguments' own dtypes."""
        return self.once("rounded", lambda: tuple(self.run(self.arguments)))

    @property
    def exact(self) -> tuple[torch.Tensor, ...]:
        """The results with every floating value in float64."""
        return self.once("exact", self._exact)

    def _exact(self) -> tuple[torch.Tensor, ...]:
        with exactly():
            found = self.run(to_double(self.arguments))
        # Sizes that depend on data may depend on rounding.
        return tuple(e if e.shape == r.shape else to_double(r) for e, r in zip(found, self.rounded, strict=True))

    def wrong(self, i: int, got: torch.Tensor, sizes: ErrorSizes | None = None) -> torch.Tensor:
        """A mask of the elements of a result that rounding does not explain, for results of the same shape.

        NaN equals NaN; an infinity may also be the rounded reference's. ``sizes`` counts the errors.
        """
        if not (self.rounded[i].is_floating_point() or self.rounded[i].is_complex()):
            return self._wrong_integers(i, got)
        error, tolerance = distance(got, self.exact[i]), self.allowed(i)
        wrong = self._beyond(i, got, error, tolerance)
        far: list[int] = []
        while wrong.any():
            far.append(count_far(error[wrong], tolerance[wrong]))
            if not self._another_run(far, int(wrong.sum())):
                break
            self._perturb()
            tolerance = self.allowed(i)
            wrong = self._beyond(i, got, error, tolerance)
        if wrong.any() and any("prod" in name for name, _ in self._operations.rounding):
            wrong &= ~self.once("parts", lambda: parts_of_products(self.run, self.arguments)).explain(comparable(got))
        if sizes is not None:
            sizes.count(error, tolerance, wrong)
        return wrong

    def allowed(self, i: int) -> torch.Tensor:
        """The allowed absolute difference of each element from ``exact``, with the runs made until now."""
        exact, rounded = self.exact[i], self.rounded[i]
        magnitude = exact.abs().double()
        last = ulp(magnitude, rounded.dtype).mul_(2)
        if self._runs and (end := self._end_of(i)) > self._accumulator:
            last.add_(magnitude, alpha=1.5 * end)
        inner = magnitude.mul(self._finest(i))
        if self._moved:
            # A few runs may miss an element by chance, but not those around it.
            inner += torch.maximum(self._moved[i], typical(self._moved[i]) / 2)
            inner.add_(typical(magnitude), alpha=4 * self._accumulator)
        # What is in float64 has no more exact reference: that one is off by as much.
        tolerance = last.add(inner, alpha=6 if rounded.dtype in _WIDEST else 3)
        if self._runs >= _FEW_RUNS and tolerance.numel():
            own = distance(rounded, exact)
            share = (own / (last + inner)).nan_to_num(0, 0, 0)
            excess = (own - tolerance).nan_to_num(0, 0, 0).clamp_min(0)
            tolerance = tolerance.maximum(last + min(MOST_OWN, 2 * float(share.max())) * inner)
            tolerance = tolerance + 2 * around(excess)
        return tolerance.nan_to_num_(0, 0, 0)

    def _another_run(self, far: Sequence[int], wrong: int) -> bool:
        """Whether one more run with errors may explain what is wrong.

        Args:
            far: before each of these runs, how many elements were so far off that rounding alone cannot explain them.
                Another choice between equal values can, which some run may make.
            wrong: how many elements are wrong now. Of few, any may be one whose choice among three or more equal values
                was a rare one: what the runs chose in its place has made its tolerance almost large enough.
        """
        if self.is_hasty:
            return False
        if self._runs < _FEW_RUNS or far[-1] == 0:
            return self._runs < (_PATIENCE if wrong <= _FEW_WRONG else _RUNS)
        return len(far) < _MOST_RUNS and not _is_without_progress(far, _PATIENCE)

    def with_tf32(self) -> Computation:
        """The same, where products of float32 matrices may have operands in TF32."""
        given = {
            name: value for name, value in self.given.items() if name in ("rounded", "exact", "terms", "operations")
        }
        return replace(self, in_tf32=True, given=given, _moved=[], _runs=0)

    def all_allowed(self, i: int) -> torch.Tensor:
        """``allowed`` after all runs."""
        while self._runs < _RUNS:
            self._perturb()
        return self.allowed(i)

    def lowered(self, round_to: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The results if inputs and every intermediate result are rounded by a function."""
        with lowered(round_to):
            return tuple(self.run(tree.map_tensors(round_to, to_double(self.arguments))))

    def _beyond(self, i: int, got: torch.Tensor, error: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
        """A mask of the elements that neither are within the tolerance nor need not be."""
        beyond = error.le(tolerance).logical_not_()
        if beyond.any():  # mostly, they are few
            at = beyond.clone()
            beyond[at] = ~_is_explained(got[at], self.exact[i][at], self.rounded[i][at], tolerance[at])
        return beyond

    def _wrong_integers(self, i: int, got: torch.Tensor) -> torch.Tensor:
        """Those that neither the reference nor a run with rounding errors gives."""
        wrong = (got != self.rounded[i]) & (got != self.exact[i])
        if not any(map(_computes, {t.dtype for t in tree.tensors(self.arguments)})):
            return wrong
        left = wrong.flatten().nonzero()[:, 0]  # the wrong elements, and what runs gave there
        values = got.flatten()[left]
        excused, seen = left, [self.exact[i].flatten()[left]]
        for seed in range(0 if self.is_hasty else _MOST_RUNS):
            if not len(left):
                break
            if len(seen) > (_RUNS if len(left) > _FEW_WRONG else _PATIENCE) and int(distinct(seen).max()) == 1:
                break  # rounding changes none of them
            also = self.with_errors(seed)[i]
            if also.shape == got.shape:
                seen.append(also.flatten()[left])
                keep = values != seen[-1]
                left, values, seen = left[keep], values[keep], [s[keep] for s in seen]
        if len(left):
            left = left[~((distinct(seen) >= _MANY) & is_between(values, seen))]
        wrong = torch.zeros(got.numel(), dtype=torch.bool).index_fill(0, left, True).reshape(got.shape)
        if len(excused) and has_no_place_twice(self.exact[i]):
            wrong |= places_twice(got)  # as those of the largest: no run decides on all of a row
        return wrong

    def _perturb(self) -> None:
        """One more run with errors, which may enlarge what rounding explains."""
        changes = self.once(f"changes {self._runs}", self._changes)
        before = self._moved or [torch.zeros_like(c) for c in changes]
        self._moved = [torch.maximum(a, b) for a, b in zip(before, changes, strict=True)]
        self._runs += 1

    def _changes(self) -> list[torch.Tensor]:
        pairs = zip(self.with_errors(self._runs), self.exact, strict=True)
        return [distance(a if a.shape == b.shape else b, b).nan_to_num(0, 0, 0) for a, b in pairs]

    def with_errors(self, seed: int) -> tuple[torch.Tensor, ...]:
        """The results in float64 of a run with errors, of which the last step has none."""
        finest = max(map(self._finest, range(len(self.rounded))), default=self._accumulator)
        if not self._operations.are_seen:  # one step, all of which is in the arguments' dtypes
            finest = max(finest, 2 * self._coarsest)
        try:
            return self._results_with_errors(finest, seed)
        except Exception:  # a reference may refuse arguments that are off a little, by any exception
            return self.exact

    def _results_with_errors(self, finest: float, seed: int) -> tuple[torch.Tensor, ...]:
        known = self._operations
        results, fits = self._disturbed(finest, seed)
        # Other values, or strides, may lead to others.
        if not fits and "operations" not in self.given and self.once("operations", self._recorded) != known:
            results, _ = self._disturbed(finest, seed)
        return results

    def _disturbed(self, finest: float, seed: int) -> tuple[tuple[torch.Tensor, ...], bool]:
        """The results of a run with errors, and whether it consists of the operations that are known."""
        of_numbers = self._accumulator if self._disturbs_numbers else 0.0
        errors = Errors(finest, self._coarsest, of_numbers, self._exact_steps, self.decides_exactly, self.in_tf32)
        with perturbed(self.arguments, self._operations, errors, seed) as perturbation:
            results = tuple(self.run(perturbation.arguments))
        return results, perturbation.has_same_operations

    def _finest(self, i: int) -> float:
        """The relative error of a result's sum in the accumulator's dtype."""
        return self._accumulator * (4 + math.sqrt(max(1, self.terms(i))))

    @property
    def multiplies_float32(self) -> bool:
        """Whether it has products of float32 matrices."""
        return any(multiplies(name) and dtypes[0] in _OF_TF32 for name, dtypes in self._operations.rounding)

    @property
    def defines_infinities(self) -> bool:
        """Whether it treats infinities apart, so that what it gives for them is meant."""
        return self._operations.define_infinities

    @property
    def follows_from_values(self) -> bool:
        """Whether other values of the same shapes and dtypes may lead to other operations."""
        return self.is_widened or self._operations.follow_from_values

    def _end_of(self, i: int) -> float:
        """The eps of the dtype in which the last step of a result is done; 0 if that is not known."""
        ends = self._operations.ends
        return ends[i] if i < len(ends) else 0.0

    @property
    def _exact_steps(self) -> frozenset[int]:
        """The steps in a half dtype that do not round these values."""
        if self._coarsest <= self._accumulator or not self._operations.rounding:
            return frozenset()
        return self.once("exact steps", lambda: exact_steps(lambda: self.run(self.arguments)))

    @property
    def _disturbs_numbers(self) -> bool:
        """Whether floats among the arguments may be a little off, as those of float32 are."""
        if not has_numbers(self.arguments):
            return False
        return self.once(
            "numbers matter smoothly", lambda: matter_smoothly(self.run, self.arguments, self.exact, self._accumulator)
        )

    @cached_property
    def _accumulator(self) -> float:
        return min(torch.finfo(torch.float32).eps, self._coarsest)

    @cached_property
    def _coarsest(self) -> float:
        """The eps of the narrowest dtype of arguments and results, of those in which one can compute."""
        dtypes = {t.dtype for t in tree.tensors([self.arguments, self.rounded])}
        return max((torch.finfo(d).eps for d in dtypes if _computes(d)), default=torch.finfo(torch.float32).eps)

    @property
    def _operations(self) -> Operations:
        if self.is_widened:
            return Operations()
        if "operations" in self.of_form and "operations" not in self.given:
            return cast(Operations, self.of_form["operations"])
        found = self.once("operations", self._recorded)
        if not found.follow_from_values:
            self.of_form.setdefault("operations", found)
        return found

    def _recorded(self) -> Operations:
        return recorded(lambda: self.run(self.arguments))


def _is_without_progress(counts: Sequence[int], patience: int) -> bool:
    """Whether the last runs with errors have explained hardly any elements: a few runs of many, ``patience`` of few."""
    if counts[-1] > _FEW_WRONG:
        return len(counts) > _FEW_RUNS and counts[-1] > 0.9 * counts[-1 - _FEW_RUNS]
    return len(counts) > patience and counts[-1] >= counts[-1 - patience]


def _is_explained(
    got: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor, tolerance: torch.Tensor
) -> torch.Tensor:
    """Which elements are right though they are not close to the exact ones."""
    dtype = rounded.dtype
    got, exact, rounded, stored = (comparable(t) for t in (got, exact, rounded, exact.to(dtype)))
    same = (got.to(exact.dtype) == exact) | (got == rounded) | (got == stored)
    same |= got.isnan() & (exact.isnan() | rounded.isnan())
    overflows = exact.isfinite() & ~rounded.isfinite()  # a step of the reference, and maybe another one here
    same |= overflows & ~got.isfinite()
    same |= distance(got, rounded) <= tolerance
    return same | overflows_beside(exact, got, dtype)


def _computes(dtype: torch.dtype) -> bool:
    """Whether arithmetic is done in a dtype; floats of a byte are only stored."""
    return dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1)


def next_lower(dtype: torch.dtype) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]] | None:
    """The precision that a kernel in a dtype must not have: its name, and a function that rounds to it."""
    if dtype not in _LOWER:
        return None
    name, bits = _LOWER[dtype]

    def round_to(t: torch.Tensor) -> torch.Tensor:
        if t.is_complex():
            return torch.view_as_complex(round_to(torch.view_as_real(t.contiguous())))
        if not t.is_floating_point():
            return t
        mantissa, exponent = torch.frexp(t)
        return torch.ldexp((mantissa * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponent).to(t.dtype)

    return name, round_to


# The bits of the mantissa, without the leading one.
_LOWER = {
    torch.float64: ("float32", 23),
    torch.complex128: ("complex64", 23),
    torch.float32: ("TF32", 10),
    torch.complex64: ("TF32", 10),
    torch.float16: ("bfloat16", 7),
    torch.bfloat16: ("float8", 3),
}
