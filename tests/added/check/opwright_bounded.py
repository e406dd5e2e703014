"""The check "bounded": no result is larger than 1000, which this project forbids."""

from __future__ import annotations

from collections.abc import Iterator

from opwright.checks.check import Check
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.results import Finding, NotChecked, Status

NAME = "bounded"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    cases = typical_cases(context, 2)
    for case in cases:
        context.progress(NAME, str(case))
        run = context.observe(case)
        largest = max(float(output.abs().max()) for output in run.outputs if output.numel())
        if largest > 1000:
            yield context.failed(NAME, str(case), f"a result is {largest:.3g}, larger than 1000")
            return
    yield Finding(NAME, Status.PASS, message=f"{len(cases)} cases")


CHECK = Check(NAME, "Is every result at most 1000?", cases="two", run=check)
