"""The check "far rows": views whose rows, or inner steps, lie so far apart that a 32-bit offset overflows, in memory
that is hardly used.

A wrong offset may end the use of the GPU for this process, so it runs late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from opwright.checks.check import Check
from opwright.checks.context import Context
from opwright.checks.observation import SkippedCase
from opwright.checks.outputs.values import find_error
from opwright.contract.inputs.case import Case
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "far rows"
_CAUSE = "the rows or steps of this case lie so far apart that an offset of 32 bits overflows"
_REMEDY = "compute offsets of rows in 64 bits, in Triton row.to(tl.int64) * stride; or copy such views: x.contiguous()"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """The cases of the layouts "far"; the first error ends the check.

    An overflow that a simulator sees is an error where near rows are right, else a warning.
    """
    cases, ran = context.far_cases, 0
    for case in cases:
        context.progress(NAME, str(case))
        run = context.observe(case)
        if isinstance(run, SkippedCase) and run.is_overflow:
            if _is_right_nearby(context, case):
                yield dataclasses.replace(context.failed(NAME, str(case), run.why), remedy=_REMEDY)
                return
            yield Finding(NAME, Status.WARNING, str(case), run.why, remedy=_REMEDY)
        elif isinstance(run, SkippedCase):
            yield NotChecked.in_cases(NAME, 1, str(case), run.why)
        elif (wrong := find_error(context, run)) is not None:
            failure = context.failed(NAME, str(case), wrong)
            if _is_right_nearby(context, case):
                failure = dataclasses.replace(failure, message=f"{failure.message}\n{_CAUSE}", remedy=_REMEDY)
            yield failure
            return
        else:
            ran += 1
    if ran:
        yield Finding(NAME, Status.PASS, message=f"{ran} cases", coverage=Coverage(ran, len(cases)))


def _is_right_nearby(context: Context, case: Case) -> bool:
    """Whether the same sizes are right in contiguous tensors, so that the distances are to blame."""
    run = context.observe(dataclasses.replace(case, layout="contiguous"))
    return not isinstance(run, SkippedCase) and find_error(context, run) is None


CHECK = Check(
    NAME,
    "Are results right where rows or inner steps lie more than 2³¹ elements apart?",
    cases="small ones whose distance of rows, or of inner steps, exceeds 32 bits, and ones whose offsets do",
    run=check,
    group="memory",
)
