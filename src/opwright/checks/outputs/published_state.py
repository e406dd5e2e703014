"""The check "published state": whether a module takes the reference's parameters as the format of its task gives them.

A format may call ``load_state_dict`` with ``strict=True``, where opwright gives parameters by other ways too. Reports
show it with the published rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from opwright.checks.check import Check, Process
from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import SkippedCase
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "published state"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Call the module with one sample, and see whether it took the state."""
    rule = context.op.contract.own_inputs.rule
    if rule is None or not rule.strict_state or context.kernel not in context.op.kernels:
        return
    for case in [c for c in context.cases if c.sample is not None][:1]:
        prepared = context.prepare(case)
        if isinstance(prepared, SkippedCase):
            yield NotChecked(NAME, prepared.why)
            continue
        try:
            context.run_kernel(same_layout(list(prepared.arguments)))
        except Exception as error:  # the check "values" reports it
            yield NotChecked(NAME, f"the kernel raised {type(error).__name__}")
            continue
        refused = getattr(context.op.kernels[context.kernel].spec.source, "refused_state", None)
        if refused is not None and (why := refused()):
            message = f"wrong by the rule of {rule.format}: load_state_dict raises {why}"
            yield Finding(NAME, Status.WARNING, str(case), message)
        else:
            yield Finding(NAME, Status.PASS, str(case), f"correct by the rule of {rule.format}")


CHECK = Check(
    NAME,
    "Does a module take the reference's state as the task's format gives it?",
    cases="a sample, if the format loads a state",
    run=check,
    process=Process.KERNEL,
    worst=Status.WARNING,
    group="values",
)
