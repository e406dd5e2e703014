"""The check "contract": whether the reference and its test inputs can tell a right kernel from a wrong one.

It runs no kernel. What it finds are warnings: a reference that always returns zeros may be meant.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check
from opwright.checks.comparison.tolerance import Computation, next_lower
from opwright.checks.context import Context
from opwright.checks.hints.undefined import common_cause, is_undefined, undefined_share
from opwright.checks.observation import SkippedCase
from opwright.contract.dtypes import element_bytes, short
from opwright.contract.inputs.case import MASKED, Case
from opwright.contract.inputs.draw import draw
from opwright.contract.inputs.sizes import elements
from opwright.contract.signature import Argument
from opwright.contract.values import Values
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "contract"
# The cases that are looked at, in the first dtype and in each.
_CASES, _OF_EACH_DTYPE = 4, 2
_MODERATE, _LARGER = 4096, 1 << 16
# The cases in which results may be NaN, and the share of them that is too large. A tensor's values are too wide if most
# elements are NaN: of a function of each element, such as a logarithm, the others are compared.
_OF_UNDEFINED, _SHARE, _MOST_ELEMENTS = 24, 0.2, 0.75
# Larger ones that are looked at where an argument seems not to matter.
_FURTHER = 8


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Look at a few cases of moderate size: do results and arguments matter, and would a wrong result be noticed?"""
    contract = context.op.contract
    if contract.random or context.cases == []:
        return  # distributions are compared, whose tests have an error rate of their own
    first, *others = dict.fromkeys(case.dtypes for case in context.cases)
    moderate = _moderate(context, first)
    chosen = [*moderate[:_CASES], *moderate[_CASES:][-1:], *(c for d in others for c in _moderate(context, d)[:1])]
    several = list(_computations(context, chosen))
    if not several:
        return
    if not any(map(_is_floating, several[0].rounded)):  # such as isfinite(x)
        several += _computations(context, _of_each_kind(context))
    larger = itertools.islice((c for c in _by_size(context, first)[::-1] if c not in chosen), _FURTHER)
    # An argument may matter only where another one is absent, or an option has a certain value, or values are hard.
    # 0 · ∞ does not count.
    finite = (case for case in _of_each_kind(context) if case.values not in ("inf", MASKED, "nan"))
    further = itertools.chain(larger, _of_each_branch(context), finite)
    warned = False
    computations = _AsNeeded(several, _computations(context, further))
    for found in itertools.chain(_undefined(context, first), _all(context, computations)):
        warned = warned or isinstance(found, Finding)
        yield found
    if not warned:
        yield Finding(NAME, Status.PASS, message="results and arguments matter, and lower precision is noticed")


class _AsNeeded:
    """Some computations, and further ones that are made where those leave a question open."""

    def __init__(self, several: list[Computation], further: Iterable[Computation]) -> None:
        self.several = several
        self._made: list[Computation] = []
        self._further = iter(further)

    def __iter__(self) -> Iterator[Computation]:
        yield from (*self.several, *self._made)
        for computation in self._further:
            self._made.append(computation)
            yield computation


def _all(context: Context, computations: _AsNeeded) -> Iterator[Finding | NotChecked]:
    warnings = [*_constant(context, computations), *_without_effect(context, computations)]
    yield from warnings
    if warnings:
        return  # of a constant, any precision is good enough
    seen: set[tuple[torch.dtype, ...]] = set()
    for dtypes in dict.fromkeys(case.dtypes for case in context.cases):
        cases = [*_moderate(context, dtypes)[:_OF_EACH_DTYPE], *_moderate(context, dtypes, _LARGER)[:1]]
        found = list(_computations(context, dict.fromkeys(cases)))
        if found and (of_tensors := tuple(t.dtype for t in tree.tensors(found[0].arguments))) not in seen:
            seen.add(of_tensors)  # the author's cases and the generated ones may have the same
            # The first that notices it ends the search, and comparing few elements takes the least time.
            yield from _not_noticed(context, sorted(found, key=lambda c: sum(t.numel() for t in c.rounded)))


def _undefined(context: Context, dtypes: Any) -> Iterator[Finding]:
    """Whether the reference is NaN in many cases because of an argument's values: any result passes there, or none."""
    cases = [c for c in _by_size(context, dtypes) if all(s > 1 for s in _sizes(c))]
    few = cases[:: max(1, len(cases) // _OF_UNDEFINED)]
    found = list(_computations(context, (c for c in few if elements(context.op.contract, c) <= _MODERATE)))
    undefined = [c for c in found if is_undefined(c)]
    if len(undefined) < max(2, _SHARE * len(found)):
        return
    cause = common_cause(context.op.contract, undefined[:_FURTHER])
    share = sum(map(undefined_share, undefined)) / len(undefined)
    if cause is not None and (cause.is_number or share >= _MOST_ELEMENTS):
        where = f"the reference is NaN in {len(undefined)} of {len(found)} cases, where {cause.why}"
        yield _warning(where, cause.remedy)


def _sizes(case: Case) -> Iterator[int]:
    for _, size in case.sizes:
        yield from size if isinstance(size, tuple) else (size,)


def _of_each_kind(context: Context) -> list[Case]:
    """A case with each kind of values."""
    return list({c.values: c for c in reversed(context.cases) if c.values}.values())


def _of_each_branch(context: Context) -> list[Case]:
    """The largest moderate case of each branch: of what is absent, and of each choice of options."""
    plain = [c for c in context.cases if c.is_plain and 0 < elements(context.op.contract, c) <= _LARGER]
    plain.sort(key=lambda c: elements(context.op.contract, c))
    return list({c.branch: c for c in plain}.values())


def _by_size(context: Context, dtypes: Any) -> list[Case]:
    """The plain cases of some dtypes, the smallest first; contiguous ones, if there are any."""
    sizes = {c: elements(context.op.contract, c) for c in context.cases if c.dtypes == dtypes and c.is_plain}
    known = [c for c, size in sizes.items() if size]
    return sorted((c for c in known if c.layout == "contiguous"), key=sizes.__getitem__) or known


def _moderate(context: Context, dtypes: Any, most: int = _MODERATE) -> list[Case]:
    plain = _by_size(context, dtypes)
    return [c for c in reversed(plain) if elements(context.op.contract, c) <= most] or plain


def _computations(context: Context, cases: Iterable[Case]) -> Iterator[Computation]:
    for case in cases:
        context.progress(NAME, str(case))
        prepared = context.prepare(case)
        if not isinstance(prepared, SkippedCase):
            yield prepared.reference


def _warning(message: str, remedy: str) -> Finding:
    return Finding(NAME, Status.WARNING, message=message, remedy=remedy)


def _constant(context: Context, computations: _AsNeeded) -> Iterator[Finding]:
    """Outputs all of whose elements are equal, to one number in all cases. Few small cases may have no others: of
    packed sequences, none may share a key."""
    several = computations.several
    for i in range(min(len(c.rounded) for c in several)):
        if _is_free(context, i):
            continue
        values: set[str] = set()
        elements_seen = 0
        for computation in computations:
            values.update(_first_two_values(computation.rounded[i]))
            elements_seen += computation.rounded[i].numel()
            if len(values) > 1:
                break
        if len(values) == 1 and elements_seen > 1:
            yield _warning(
                f"{_name(context, several[0], i)} is {values.pop()} in every case, so that any kernel that returns a "
                "constant passes",
                "give the reference or ow.values(...) inputs for which results differ",
            )


def _first_two_values(t: torch.Tensor) -> list[str]:
    """Two different values of a tensor, or the one that it has."""
    flat = t.flatten()
    if not flat.numel():
        return []
    other = flat[~((flat == flat[0]) | (flat.isnan() & flat[0].isnan()))]
    return [str(v.item() + 0) for v in (flat[0], *other[:1])]  # -0.0 is 0.0


def _without_effect(context: Context, computations: _AsNeeded) -> Iterator[Finding]:
    """Tensors and floats that do not change any result. Larger cases are looked at where those of moderate size leave
    that open: a query does not matter to one key."""
    for place, argument in enumerate(context.op.contract.signature.arguments):
        if argument.mutated or not any(_may_matter(argument, c.arguments[place]) for c in computations.several):
            continue
        bounds = _values_of_integers(argument)
        if not any(_matters(c, place, bounds) for c in computations):
            yield _warning(
                f"the argument {argument.name!r} does not change any result, so that a kernel that ignores it passes",
                "leave it out, or state test values that matter with ow.values(...)",
            )


def _may_matter(argument: Argument, value: Any) -> bool:
    if argument.scalar_type is float:
        return value is not None
    return any(t.numel() > 0 for t in tree.tensors([value]))


def _values_of_integers(argument: Argument) -> Values | None:
    """The values of which integers may have any others; None where they may not be changed, such as offsets, or where
    bounds follow sizes, as those of indices."""
    stated = argument.values or Values()
    if argument.goes_together or stated.names:
        return None
    return stated


def _matters(computation: Computation, place: int, bounds: Values | None) -> bool:
    value = computation.arguments[place]
    for other in _other_values(value, bounds):
        changed = [*computation.arguments[:place], other, *computation.arguments[place + 1 :]]
        try:
            results = computation.run(changed)
        except Exception:  # it matters to the reference, which may refuse it by any exception
            return True
        if any(not _same(a, b) for a, b in zip(results, computation.rounded, strict=False)):
            return True
    return False


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _other_values(value: Any, bounds: Values | None) -> Iterator[Any]:
    """Values in another order, then other values; integers only in another order where they are restricted."""
    if isinstance(value, float):
        yield value * 1.5 + 0.25
        return
    yield tree.map_tensors(lambda t: _reordered(t, lambda flat: flat.flip(0)), value)
    yield tree.map_tensors(lambda t: _reordered(t, lambda flat: flat.roll(1)), value)

    def changed(t: torch.Tensor) -> torch.Tensor:
        if t.dtype is torch.bool:
            return ~t
        if bounds is not None and not (t.is_floating_point() or t.is_complex()):
            return draw(tuple(t.shape), t.dtype, bounds, {}, torch.Generator().manual_seed(t.numel()))
        computes = t.is_complex() or (t.is_floating_point() and t.dtype.itemsize > 1)
        return (t * 1.75 + 0.25).to(t.dtype) if computes else t

    yield tree.map_tensors(changed, value)


def _reordered(t: torch.Tensor, order: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The elements in another order, moved as bytes: torch cannot move every dtype."""
    places = order(torch.arange(t.numel()))
    return element_bytes(t).view(-1, t.dtype.itemsize)[places].flatten().view(t.dtype).view(t.shape)


def _not_noticed(context: Context, found: Sequence[Computation]) -> Iterator[Finding | NotChecked]:
    """Whether zeros would pass, and whether the next lower precision would."""
    floating = [i for i, t in enumerate(found[0].rounded) if _is_floating(t) and not _is_free(context, i)]
    if not floating:
        return
    dtype = _precision(found[0])
    usable = [c for c in found if any(bool((c.rounded[i] != 0).any()) for i in floating)]
    if usable and not any(_notices(c, i, torch.zeros_like(c.rounded[i])) for c in usable for i in floating):
        yield _warning(
            f"the reference is so ill-conditioned in {short(dtype)} that zeros pass for its results",
            "state test values for which it is stable with ow.values(...)",
        )
        return
    lower = next_lower(dtype)
    if lower is not None and not any(_notices_precision(c, i, lower[1]) for c in usable for i in floating):
        yield NotChecked(
            f"precision of {short(dtype)}",
            f"on these inputs, the results of {lower[0]} are as good as those of {short(dtype)}",
        )


def _notices(computation: Computation, i: int, result: torch.Tensor) -> bool:
    return bool(computation.wrong(i, result).any())


def _notices_precision(computation: Computation, i: int, round_to: Any) -> bool:
    try:
        result = computation.lowered(round_to)[i]
    except Exception:  # the reference may refuse rounded arguments by any exception
        return False
    return result.shape == computation.rounded[i].shape and _notices(computation, i, result)


def _precision(computation: Computation) -> torch.dtype:
    """The narrowest floating dtype of arguments and results in which one can compute."""
    tensors = tree.tensors([list(computation.arguments), list(computation.rounded)])
    return max((t.dtype for t in tensors if _is_floating(t)), key=lambda d: torch.finfo(d).eps)


def _is_floating(t: torch.Tensor) -> bool:
    return t.is_complex() or (t.is_floating_point() and t.dtype.itemsize > 1)


def _is_free(context: Context, i: int) -> bool:
    """Whether several values of an output are right, of which properties decide."""
    returns = context.op.contract.signature.stated_returns(i + 1)
    return i < len(returns) and returns[i].by_property


def _name(context: Context, computation: Computation, i: int) -> str:
    names = context.op.contract.result_names(computation.arguments, computation.rounded)
    return names[i] or "the output"


CHECK = Check(
    NAME,
    "Can the reference and its inputs tell a right kernel from a wrong one?",
    cases="a few in each dtype; no kernel runs",
    run=check,
    worst=Status.WARNING,
    group="memory",
)
