"""Which findings of a kernel follow from the fault of another one, so that reports show a fault once.

A finding that is not known to follow from another one is shown by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opwright.results.check import Finding

__all__ = ["same_fault"]

# Checks that compare the results of a forward, as "values" does.
_COMPARE_RESULTS = frozenset({
    "special values", "repeated calls", "execution context", "determinism", "threads", "streams", "configurations",
    "torch.compile", "afterwards", "large offsets", "far rows",
})  # fmt: skip
_RAISED = re.compile(r"the kernel raised (.*)")
# A finding of a simulator: the line, and what is wrong there.
_AT_LINE = re.compile(r"\S+:\d+: [a-z-]+(?=: )")
# What other checks say of a kernel that writes an argument which is not declared as mutated.
_OF_A_WRITE = (
    re.compile(r"the forward wrote an input"),
    re.compile(r"Argument \w+ is not defined as mutable but was mutated"),
    re.compile(r"modified by an inplace operation"),
    re.compile(r"as it wrote into argument"),
)
# A shorter text may be that of any error.
_LEAST = 12


def same_fault(findings: Sequence[Finding]) -> dict[int, int]:
    """For each finding that follows from the fault of a failure before it: its place, and the place of that one."""
    found: dict[int, int] = {}
    for i, finding in enumerate(findings):
        if not finding.message or finding.status not in ("fail", "warning"):
            continue
        for j, cause in enumerate(findings[:i]):
            if cause.status == "fail" and j not in found and cause.check != finding.check and _follows(finding, cause):
                found[i] = j
                break
    return found


def _follows(finding: Finding, cause: Finding) -> bool:
    if cause.check == "inputs unchanged" and "was written" in cause.message.partition("\n")[0]:
        return any(pattern.search(finding.message) for pattern in _OF_A_WRITE)
    if cause.check != "values":
        return False
    raised = _RAISED.match(cause.message)
    if raised is None:
        return finding.check in _COMPARE_RESULTS and _differ(finding.message) and _differ(cause.message)
    if lines := set(_AT_LINE.findall(cause.message)):
        return not lines.isdisjoint(_AT_LINE.findall(finding.message))
    return len(raised[1].strip()) >= _LEAST and raised[1].strip() in finding.message


def _differ(message: str) -> bool:
    return "elements differ" in message and "gradient" not in message
