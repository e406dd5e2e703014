"""Which dtypes or sizes a failing kernel may not be meant for: all cases of them fail in one way, and others pass.

A few more cases are run for that. The kernel fails all the same: only its author knows what it is meant for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from opwright.checks.context import Context
from opwright.checks.hints.ordinary import Outcome, moderate_cases, some_of
from opwright.contract.dtypes import short
from opwright.contract.inputs.case import Case, Size, longest_of

__all__ = ["unmeant_inputs"]

# So many cases of a kind, and beside it, are run.
_CASES, _BESIDE = 3, 4


def unmeant_inputs(context: Context, case: Case, outcome: Outcome, *, raised: bool) -> str:
    """What to state in the contract, or of the kernel, if a failing case is of inputs that always fail; else "".

    Args:
        raised: whether the kernel raised an exception. One that computes wrong values in a dtype is meant for it.
    """
    if case.sample is not None:
        return ""
    return (_dtypes(context, case, outcome) if raised else "") or _sizes(context, case, outcome)


def _dtypes(context: Context, case: Case, outcome: Outcome) -> str:
    """All cases in a dtype fail, and the same one passes in another dtype."""
    kind = outcome(case)
    for name, failing in case.dtypes:
        others = dict.fromkeys(dict(c.dtypes)[name] for c in context.cases if name in dict(c.dtypes))
        in_others = {d: tuple({**dict(case.dtypes), name: d}.items()) for d in others}
        found = {d: outcome(dataclasses.replace(case, dtypes=dtypes)) for d, dtypes in in_others.items()}
        passing = [d for d, what in found.items() if what == ""]
        of_dtype = (c for c in moderate_cases(context) if dict(c.dtypes)[name] is failing and c.sizes != case.sizes)
        if passing and _all_fail(some_of(of_dtype, _CASES), kind, outcome):
            refused = [short(d) for d, what in found.items() if what == kind]
            return (
                f"all cases in {' and '.join(refused)} fail in this way: if the kernel should not take "
                f"{' and '.join(refused)}, state {_statement_of_dtypes(context, name, passing)}"
            )
    return ""


def _statement_of_dtypes(context: Context, name: str, passing: Sequence[torch.dtype]) -> str:
    """How dtypes of a class are restricted: those of floats by the kernel, integers beside floats by annotations."""
    tensors = [a.tensor for a in context.op.contract.signature.arguments if a.tensor and len(a.tensor.dtypes) > 1]
    floats = {t.dtype_class for t in tensors for d in t.dtypes if d.is_floating_point or d.is_complex}
    if name in floats or not floats:
        listed = ", ".join(map(str, passing))
        return f"dtypes=({listed}{',' * (len(passing) == 1)}) of the kernel"
    arguments = [a.name for a in context.op.contract.signature.arguments if a.tensor and a.tensor.dtype_class == name]
    classes = " or ".join(_class_of(d) for d in passing)
    return f"{classes} in place of {name} in the annotation of {' and '.join(map(repr, arguments))}"


def _class_of(dtype: torch.dtype) -> str:
    """jaxtyping's name of a dtype."""
    name = str(dtype).removeprefix("torch.")
    return name.replace("uint", "UInt") if name.startswith("uint") else name.title()


def _sizes(context: Context, case: Case, outcome: Outcome) -> str:
    """All cases in which a dim has size 0, or 1, fail, and larger ones pass."""
    kind, found = outcome(case), dict[str, int]()
    for name, size in case.sizes:
        least = _least(size)
        if least is None or (_alone(context, case, name, least, outcome) != kind):
            continue
        if all(outcome(c) == "" for c in _larger(context, case, name, least)):
            found[name] = least
    if not found:
        return ""
    told = [f"{name}={size}" for name, size in found.items()]
    which = f"all cases with {' or '.join(told)} fail in this way, and larger ones pass"
    return f"{which}: if the operator should not take them, state {_statement_of_sizes(context, found)}"


def _least(size: Size) -> int | None:
    """The size 0 or 1 of a dim, or of one of several axes."""
    known = size if isinstance(size, tuple) else (size,)
    return next((least for least in (0, 1) if least in known), None)


def _alone(context: Context, case: Case, name: str, least: int, outcome: Outcome) -> str | None:
    """The one kind of failure of all cases in which only this dim is so small; None if there is none."""
    few = [c for c in _beside(context, case, name) if _least(dict(c.sizes)[name]) == least]
    kinds = {outcome(c) for c in some_of(few, _CASES)} - {None}
    return kinds.pop() if len(kinds) == 1 else None


def _larger(context: Context, case: Case, name: str, least: int) -> Iterator[Case]:
    """Some cases in which no dim is as small, or only this one less small; itself if there are none."""
    larger = [c for c in _beside(context, case, name) if _least(dict(c.sizes)[name]) is None and _size(c, name) > least]
    yield from some_of(larger, _BESIDE) or [case]


def _beside(context: Context, case: Case, name: str) -> Iterator[Case]:
    """Moderate cases that have this dim, in which all others are larger than 1."""
    for c in moderate_cases(context):
        if (
            name in dict(c.sizes)
            and c.dtypes == case.dtypes
            and all(_least(size) is None for other, size in c.sizes if other != name)
        ):
            yield c


def _size(case: Case, name: str) -> int:
    return longest_of(dict(case.sizes)[name])


def _all_fail(cases: Sequence[Case], kind: str | None, outcome: Outcome) -> bool:
    found = [what for c in cases if (what := outcome(c)) is not None]
    return bool(found) and all(what == kind for what in found)


def _statement_of_sizes(context: Context, found: dict[str, int]) -> str:
    """The conditions on sizes: of the operator if they are named, else a predicate of the kernel."""
    named = context.op.contract.signature.single_sizes
    if not found.keys() <= named:
        return "when= of the kernel, or return early for them"
    conditions = [f'"{name} >= {least + 1}"' for name, least in found.items()]
    return f"where={conditions[0] if len(conditions) == 1 else '[' + ', '.join(conditions) + ']'} of the operator"
