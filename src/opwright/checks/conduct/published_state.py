"""What the published rule of a task's format says of a module's state, which only the kernel's process knows.

A format may call ``load_state_dict`` with ``strict=True``, where opwright gives parameters by other ways too.
"""

from __future__ import annotations

from collections.abc import Iterator

from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import SkippedCase
from opwright.checks.outputs.published_rule import WRONG_BY
from opwright.results import Finding, Status

__all__ = ["of_published_state"]


def of_published_state(context: Context, check: str) -> Iterator[Finding]:
    """Call the module with one sample, and see whether it took the state."""
    rule = context.op.contract.own_inputs.rule
    if rule is None or not rule.strict_state or context.kernel not in context.op.kernels:
        return
    for case in [c for c in context.cases if c.sample is not None][:1]:
        prepared = context.prepare(case)
        if isinstance(prepared, SkippedCase):
            return
        try:
            context.run_kernel(same_layout(list(prepared.arguments)))
        except Exception:  # the check "values" reports it
            return
        refused = getattr(context.op.kernels[context.kernel].spec.source, "refused_state", None)
        if refused is not None and (why := refused()):
            message = f"{WRONG_BY} {rule.format}: load_state_dict raises {why}"
            yield Finding(check, Status.WARNING, str(case), message)
