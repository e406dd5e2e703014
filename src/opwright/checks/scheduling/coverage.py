"""Whether enough ran for a verdict to mean something: what passed on too little is thin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opwright.checks.derivatives import gradients
from opwright.checks.kernel_calls import without_gradient
from opwright.checks.outputs import values
from opwright.checks.ranks import ranks
from opwright.contract.inputs.case import Case, longest_of
from opwright.results import Coverage, Finding, NotChecked, Origin, Status
from opwright.runtime.op import Op

__all__ = ["too_little", "too_short_a_case"]

# Fewer of the generated cases than this share are too few; or fewer than half, if they are fewer than a number.
_LEAST_SHARE, _FEW = 0.25, 12


def too_little(operator: Op, findings: Sequence[Finding], not_checked: Sequence[NotChecked]) -> list[Finding]:
    """Findings about the checks that ran too little, if nothing is wrong."""
    if any(f.status in (Status.FAIL, Status.INCONCLUSIVE) for f in findings):
        return []
    if not findings and any(n.check == values.NAME and n.why != "not selected" for n in not_checked):
        why, remedy = _why(values.NAME, not_checked)
        status = Status.INCONCLUSIVE if operator.contract.own_inputs.may_refuse else Status.FAIL
        return [Finding("contract", status, message=f"nothing could be checked{why}", remedy=remedy)]
    return [*_few_cases(findings, not_checked), *_nothing_compared(operator, findings, not_checked)]


def _few_cases(findings: Sequence[Finding], not_checked: Sequence[NotChecked]) -> Iterator[Finding]:
    for finding in findings:
        if (
            finding.check in (values.NAME, gradients.NAME, ranks.NAME)
            and finding.coverage
            and _is_thin(finding.coverage)
        ):
            why, remedy = _why(finding.check, not_checked)
            message = f"only {finding.coverage} could be run{why}"
            yield Finding(finding.check, Status.THIN, message=message, remedy=remedy, coverage=finding.coverage)


def _is_thin(coverage: Coverage) -> bool:
    share = coverage.run / max(1, coverage.generated)
    return share < _LEAST_SHARE or (share < 0.5 and coverage.run < _FEW)


def _nothing_compared(
    operator: Op, findings: Sequence[Finding], not_checked: Sequence[NotChecked]
) -> Iterator[Finding]:
    """A custom gradient that was not compared at all, and values of which only empty ones were."""
    compared = {f.check for f in findings}
    # The first reason of each check: one for the whole check, before those for some cases.
    said: dict[str, str] = {}
    for reason in sorted(not_checked, key=lambda n: n.cases > 0):
        said.setdefault(reason.check, reason.why)
    has_own_gradient = operator.parts["autograd"].origin is Origin.CUSTOM
    if operator.adopted and said.get(gradients.NAME, "").startswith(without_gradient(operator)):
        has_own_gradient = False
    # On a machine without GPUs enough, no case was tried; that alone says nothing of the kernel.
    tried_on_ranks = any(n.check == ranks.NAME and n.cases for n in not_checked)
    for check in (values.NAME, *[gradients.NAME] * has_own_gradient, *[ranks.NAME] * tried_on_ranks):
        if check not in compared and check in said and said[check] not in ("not selected",):
            why, remedy = _why(check, not_checked)
            yield Finding(check, Status.THIN, message=f"nothing was compared: {said[check]}{why}", remedy=remedy)


def _why(check: str, not_checked: Sequence[NotChecked]) -> tuple[str, str]:
    """The most frequent reason why cases were skipped, and what to do about it."""
    skipped = [n for n in not_checked if n.check == check and n.cases]
    if not skipped:
        return "", _REMEDY_OF_REFERENCE
    most = max(skipped, key=lambda n: n.cases)
    applicable = "not applicable" in most.reason
    return f": {most.reason}", _REMEDY_OF_WHEN if applicable else _REMEDY_OF_REFERENCE


_REMEDY_OF_WHEN = "state sizes that the kernel takes with op.sizes(...), or inputs with op.samples"
_REMEDY_OF_REFERENCE = (
    "state which inputs the reference takes: relations of sizes with where=[...], values with ow.values(...), or "
    "inputs with op.samples"
)


# Blocks of kernels are as long.
_SHORT = 128


def too_short_a_case(unreturned: Sequence[Case]) -> str:
    """Why a verdict says little, if one of the cases on which the reference did not return, and which are left out with
    all longer ones, is so short."""
    longest = {case: max((longest_of(n) for _, n in case.sizes), default=0) for case in unreturned}
    shortest = min(longest, key=longest.__getitem__, default=None)
    if shortest is None or longest[shortest] >= _SHORT:
        return ""
    return f"the reference did not return for {shortest}, so no case as long has run"
