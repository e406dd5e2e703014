"""The check "afterwards": values once more, when all other checks of the kernel have run.

Finds a kernel that an earlier call has left in another state, and one that is right only until it has been checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opwright.checks.check import Check
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation, SkippedCase
from opwright.checks.outputs import values
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "afterwards"
# Values that no earlier check has drawn.
_DRAWS = (101, 102)


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """A few typical cases with new values."""
    if context.kernel not in context.op.kernels or context.op.contract.random:
        return
    cases = typical_cases(context, 2)
    right = compared = 0
    for case in cases:
        run = context.observe(case)
        if not isinstance(run, Observation) or values.find_error(context, run) is not None:
            continue  # the check "values" reports it
        for draw in _DRAWS:
            context.progress(NAME, str(case))
            prepared = context.prepare(case, draw=draw)
            if isinstance(prepared, SkippedCase):
                continue
            compared += 1
            try:
                outputs: tuple[object, ...] | Raised = context.results(same_layout(prepared.arguments))
            except torch.OutOfMemoryError:
                continue
            except Raised as raised:
                outputs = raised
            again = Observation(case, prepared.arguments, prepared.compute, prepared.arguments, outputs)
            wrong = values.find_error(context, again)
            if wrong is not None:
                yield context.failed(NAME, str(case), f"after all other checks, with other values: {wrong}")
                return
            right += 1
    if right:
        yield Finding(NAME, Status.PASS, message=f"{right} calls", coverage=Coverage(right, compared))


CHECK = Check(
    NAME,
    "Are results of new values right when all other checks have run?",
    cases="two",
    run=check,
)
