"""The most ordinary case that fails as the smallest one does: the smallest may have sizes of 1, or unusual values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from opwright.checks.context import Context
from opwright.contract.inputs.case import Case, longest_of
from opwright.contract.inputs.sizes import elements

__all__ = ["Outcome", "moderate_cases", "ordinary_case", "some_of"]

# The outcome of a case: the kind of its failure; "" if it passed; None if it could not be run.
Outcome = Callable[[Case], str | None]
# So many cases are run, of no more elements than this.
_CASES, _MODERATE = 3, 1 << 14


def ordinary_case(context: Context, case: Case, outcome: Outcome) -> Case | None:
    """A contiguous case of ordinary values and sizes that fails in the same way; None if the case itself is one, or if
    those that are tried pass."""
    if case.sample is not None or _is_ordinary(case):
        return None
    kind = outcome(case)
    few = some_of((c for c in moderate_cases(context) if _is_ordinary(c) and c.dtypes == case.dtypes), _CASES)
    middle = few[len(few) // 2 : len(few) // 2 + 1]
    return next((c for c in dict.fromkeys([*middle, *few]) if outcome(c) == kind), None)


def _is_ordinary(case: Case) -> bool:
    shortest = (min(size, default=0) if isinstance(size, tuple) else size for _, size in case.sizes)
    is_plain = case.is_plain and case.layout == "contiguous" and not any(case.branch)
    return (
        is_plain
        and all(size > 1 for size in shortest)
        and max(map(longest_of, dict(case.sizes).values()), default=0) > 2
    )


def moderate_cases(context: Context) -> Iterator[Case]:
    """Contiguous cases with ordinary values that are not large."""
    for c in context.cases:
        is_plain = c.is_plain and c.layout == "contiguous" and c.sample is None and not any(c.branch)
        if is_plain and elements(context.op.contract, c) <= _MODERATE:
            yield c


def some_of(cases: Iterable[Case], count: int) -> list[Case]:
    """A few of the cases, from the smallest to the largest."""
    known = list(dict.fromkeys(cases))
    step = max(1, (len(known) - 1) / max(1, count - 1)) if len(known) > count else 1
    return [known[round(i * step)] for i in range(min(count, len(known)))]
