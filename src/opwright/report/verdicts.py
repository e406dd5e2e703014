"""The findings of verdicts as every report shows them: sorted, counted, and with the cases that ran."""

from __future__ import annotations

from collections.abc import Iterable

from opwright.report.statuses import LOOKS, ONE_BY_ONE, count_statuses, rank
from opwright.results import Coverage, Finding, Status, Verdict

__all__ = [
    "counted",
    "counts",
    "coverage_text",
    "decisive_checks",
    "fails_values",
    "findings_of",
    "has_findings",
    "outcome",
    "parts_by_op",
    "problems",
    "remark",
    "values_cases",
    "values_coverage",
    "worst_first",
]

# The check whose coverage stands for a kernel's where there is room for one number.
_MAIN_CHECK = "values"


def counts(verdicts: Iterable[Verdict]) -> dict[Status, int]:
    """The number of verdicts by status, the worst first, without zeros."""
    return count_statuses(v.status for v in verdicts)


def counted(verdicts: Iterable[Verdict], *but: Status) -> str:
    """``1 failed, 58 passed``, without the statuses ``but``."""
    return ", ".join(f"{n} {LOOKS[status].word}" for status, n in counts(verdicts).items() if status not in but)


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts by status; those of one status in the given order."""
    return sorted(verdicts, key=lambda v: rank(v.status))


def findings_of(verdict: Verdict, *, separate: bool = False) -> list[Finding]:
    """The findings, the worst first. A bad status without a finding gets one from the verdict's reason.

    Args:
        separate: without those that follow from the fault of another one.
    """
    found = list(verdict.separate if separate else verdict.findings)
    explained = verdict.status in (Status.PASS, Status.REFUSED, *(f.status for f in found))
    if not explained:
        found.append(Finding("check", verdict.status, message=verdict.reason))
    return sorted(found, key=lambda f: rank(f.status))


def has_findings(verdicts: Iterable[Verdict], *statuses: Status) -> bool:
    """Whether there is a finding of one of the statuses."""
    return any(f.status in statuses for v in verdicts for f in findings_of(v))


def problems(verdicts: Iterable[Verdict]) -> list[tuple[Verdict, Finding]]:
    """Each failure and then each step that did not end in time, with its verdict; each fault once."""
    found = [(v, f) for v in verdicts for f in findings_of(v, separate=True) if f.status in ONE_BY_ONE]
    return sorted(found, key=lambda pair: rank(pair[1].status))


def decisive_checks(verdict: Verdict) -> list[str]:
    """The checks that gave the verdict its status; of a pass and a refusal, none."""
    if verdict.status in (Status.PASS, Status.REFUSED):
        return []
    return list(dict.fromkeys(f.check for f in findings_of(verdict) if f.status is verdict.status))


def remark(verdict: Verdict) -> str:
    """The verdict's reason, unless it only repeats its findings: how a kernel that is right was run."""
    right = verdict.status in (Status.PASS, Status.WARNING)
    return verdict.reason if right and verdict.reason not in {f.message for f in verdict.findings} else ""


def values_coverage(verdict: Verdict) -> Coverage | None:
    """The cases that the check "values" ran; None if it is not known."""
    return next((f.coverage for f in verdict.findings if f.check == _MAIN_CHECK and f.coverage), None)


def fails_values(verdict: Verdict) -> bool:
    """Whether the coverage of "values" is that at a failure."""
    first = next((f for f in verdict.findings if f.check == _MAIN_CHECK and f.coverage), None)
    return first is not None and first.status is Status.FAIL


def values_cases(verdict: Verdict) -> str:
    """The cases that the check "values" ran, or at which it failed; empty if that is not known."""
    return next((coverage_text(f) for f in verdict.findings if f.check == _MAIN_CHECK and f.coverage), "")


def coverage_text(finding: Finding) -> str:
    """``152 of 164 cases``; ``failed at case 3 of 164``, where not all ran before; empty if it has no cases."""
    coverage = finding.coverage
    if coverage is None or finding.status is not Status.FAIL:
        return str(coverage or "")
    return f"failed at case {coverage.run} of {coverage.generated}"


def outcome(finding: Finding) -> str:
    """``152 of 164 cases``, followed by the message unless it says the same."""
    if finding.coverage is None:
        return finding.message
    cases = coverage_text(finding)
    says_the_same = finding.message in ("", f"{finding.coverage.run} cases", cases)
    return cases if says_the_same else f"{cases}; {finding.message}"


def parts_by_op(verdicts: Iterable[Verdict]) -> dict[str, dict[str, str]]:
    """Operator → part → derived, custom or missing."""
    found: dict[str, dict[str, str]] = {}
    for v in verdicts:
        if v.parts:
            found.setdefault(v.op, {}).update(v.parts)
    return found
