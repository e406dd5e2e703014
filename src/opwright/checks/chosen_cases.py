"""A few of a kernel's cases, for checks that are too slow for all: typical ones, large ones, and long ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from opwright.checks.context import Context
from opwright.contract.inputs.case import MOST_LISTS, Case, Size
from opwright.contract.inputs.layouts import BROADCAST
from opwright.contract.inputs.sizes import elements

__all__ = ["large_cases", "long_cases", "typical_cases", "with_other_shapes", "with_values"]

# The maximum number of elements in a typical case, and in a dim of one that is not long.
_MODERATE, _LONG = 4096, 2048


def typical_cases(context: Context, count: int, *, layouts: Sequence[str] = ("contiguous",)) -> list[Case]:
    """A few cases of moderate size with ordinary values that run, for checks that are too slow for all."""
    wanted = [
        c
        for c in context.cases
        if c.layout in layouts and c.is_plain and 0 < elements(context.op.contract, c) <= _MODERATE
    ]
    if not wanted and layouts == ("contiguous",):  # the kernel takes other layouts only
        wanted = [c for c in context.cases if c.is_plain and 0 < elements(context.op.contract, c) <= _MODERATE]
    wanted.sort(key=lambda c: -elements(context.op.contract, c))
    found = list(itertools.islice((c for c in wanted if context.ran(c)), count))
    return found or _smallest(context, count, layouts)


def _smallest(context: Context, count: int, layouts: Sequence[str]) -> list[Case]:
    """The smallest cases with elements, for kernels that take large sizes only."""
    wanted = [c for c in context.cases if c.layout in layouts and c.is_plain and elements(context.op.contract, c)]
    wanted.sort(key=lambda c: elements(context.op.contract, c))
    return list(itertools.islice((c for c in wanted[: 4 * count] if context.ran(c)), count))


def large_cases(context: Context, count: int) -> list[Case]:
    """The largest cases that are no long ones: several dims past a tile."""
    wanted = [
        c
        for c in context.cases
        if c.layout == "contiguous" and c.is_plain and _is_first_dtype(context, c)
        and elements(context.op.contract, c) > _MODERATE and all(_length(size) <= _LONG for _, size in c.sizes)
    ]  # fmt: skip
    wanted.sort(key=lambda c: -elements(context.op.contract, c))
    return list(itertools.islice((c for c in wanted if context.ran(c)), count))


def long_cases(context: Context) -> list[Case]:
    """For each dim, the case in which it is longest and the others small, in the first dtype that runs."""
    found: dict[str, Case] = {}
    for case in context.cases:
        if case.layout == "contiguous" and case.is_plain and case.sample is None and _is_first_dtype(context, case):
            for name, size in case.sizes:
                if _length(size) > max(_LONG, _length(dict(found[name].sizes)[name]) if name in found else 0):
                    found[name] = case
    return [case for case in dict.fromkeys(found.values()) if context.ran(case)]


def with_other_shapes(context: Context) -> list[Case]:
    """In the first dtype: a case whose dims are all alike, one without each optional argument, one of each choice of
    options, one with a longer list, those that broadcast."""
    plain = [c for c in context.cases if c.is_plain and c.sample is None and _is_first_dtype(context, c)]
    square = [c for c in plain if c.layout == "contiguous" and len(_lengths(c)) > 1 and len(set(_lengths(c))) == 1]
    branches = {c.branch: c for c in reversed(plain) if any(c.branch) and c.layout == "contiguous"}
    longer = sorted((c for c in plain if c.lists > MOST_LISTS), key=lambda c: c.lists)[:1]
    return [*square[-1:], *branches.values(), *longer, *(c for c in plain if c.layout.partition(":")[0] == BROADCAST)]


def with_values(context: Context, values: Sequence[str]) -> list[Case]:
    """In each dtype, with each of some kinds of values: the largest moderate case, else the smallest."""
    found: dict[tuple[object, str], Case] = {}
    for case in context.cases:
        if case.values in values and not case.scalars:
            known = found.setdefault((case.dtypes, case.values), case)
            found[case.dtypes, case.values] = min(known, case, key=lambda c: _from_moderate(context, c))
    return [case for case in found.values() if context.ran(case)]


def _from_moderate(context: Context, case: Case) -> tuple[bool, int]:
    size = elements(context.op.contract, case)
    return size > _MODERATE, abs(_MODERATE - size)


def _lengths(case: Case) -> tuple[int, ...]:
    return tuple(n for _, size in case.sizes for n in (size if isinstance(size, tuple) else (size,)))


def _is_first_dtype(context: Context, case: Case) -> bool:
    return case.dtypes == context.cases[0].dtypes


def _length(size: Size) -> int:
    return max(size, default=0) if isinstance(size, tuple) else size
