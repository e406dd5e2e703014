"""The check "flops": a custom count of floating-point operations, against the reference's."""

from __future__ import annotations

from collections.abc import Iterator

from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import large_cases, typical_cases
from opwright.checks.context import Context
from opwright.checks.observation import Observation
from opwright.contract import derive
from opwright.results import Finding, NotChecked, Origin, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "flops"
# A count that is further from the reference's than this factor is probably of other units, or misses a dim.
_FACTOR = 8.0


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Count for the larger cases. An algorithm with fewer operations may be right, so a difference is a warning."""
    operator = context.op
    if operator.parts["flops"].origin is not Origin.CUSTOM:
        return
    ratios = []
    for case in [*large_cases(context, 2), *typical_cases(context, 2)]:
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        own = operator.contract.signature.call(operator.flops, run.arguments)
        counted = derive.flops(operator.contract, run.arguments)
        if counted and (own > _FACTOR * counted or _FACTOR * own < counted):
            yield Finding(
                NAME, Status.WARNING, str(case), f"the custom count is {own:,}, the reference's {counted:,}",
                remedy="correct the function of op.register_flops, or leave it out",
            )  # fmt: skip
            return
        ratios.append(own / counted if counted else 1.0)
    if ratios:
        shares = f"{min(ratios):.2g} to {max(ratios):.2g}" if max(ratios) > 1.01 * min(ratios) else f"{ratios[0]:.2g}"
        yield Finding(NAME, Status.PASS, message=f"{shares} of the reference's")


CHECK = Check(
    NAME,
    "Is a custom count of operations near the reference's?",
    cases="a few",
    run=check,
    process=Process.KERNEL,
    worst=Status.WARNING,
    group="derivatives",
)
