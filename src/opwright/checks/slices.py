"""Slices of a kernel's checks, which run at the same time on several machines; and their results, put together.

Put together, they are what one process would have found with all checks: the same findings in the same order, and the
same numbers of cases. Of every check that examines all cases, two slices may have half of the cases each. What they say
can be added if all of it passes. Else one process examines all cases once more, because which failures are one, and
which case shows each best, is seen only there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.checks.context import kind_of_reason
from opwright.checks.outputs import afterwards
from opwright.checks.share import Share
from opwright.checks.table import CHECKS, SLICES
from opwright.checks.unit import CheckUnit, examine
from opwright.checks.verdict import AT_END, Part, verdict_of
from opwright.contract.fingerprint import digest
from opwright.results import Coverage, ErrorHistogram, Finding, NotChecked, Status, Verdict
from opwright.sweep.unit import Needs

__all__ = ["VALUES", "SliceUnit", "can_be_cut", "merged", "slices_of", "wants_all_cases", "with_all_cases"]

# The slice whose cases are shared, and among how many.
VALUES, _SHARES = "values", 2
_ORDER = {name: place for place, name in enumerate([*CHECKS, AT_END])}


@dataclass(frozen=True)
class SliceUnit:
    """A unit of a sweep: some checks of one kernel on one device.

    Attributes:
        label: the slice, a key of ``SLICES``.
    """

    whole: CheckUnit
    label: str
    checks: tuple[str, ...]
    share: Share | None = None

    kind = Part

    @property
    def name(self) -> str:
        part = "" if self.share is None else f" {self.share.number + 1} of {self.share.count}"
        return f"{self.whole.name}: {self.label}{part}"

    @property
    def key(self) -> str:
        return digest("slice", self.whole.key, repr((self.checks, self.share)))

    @property
    def needs(self) -> Needs:
        return dataclasses.replace(self.whole.needs_for(self.checks), subject=self.whole.name)

    def run(self, on_step: Callable[[str], None]) -> Part:
        return examine(self.whole, on_step, self.checks, self.share)

    def without_result(self, why: str, remedy: str) -> Part:
        return Part(lost=why, remedy=remedy, left=self.checks)


def can_be_cut(unit: CheckUnit) -> bool:
    """Whether a kernel's checks can run in slices: not if there is next to nothing to run; nor if the simulator may
    refuse the kernel in any of them, as all of them run in the interpreter then."""
    task, settings = unit.task, unit.settings
    is_short = bool(settings.case) or settings.level == "smoke"
    return task.refused is None and not task.else_interpret and not is_short and len(slices_of(unit)) > 1


def slices_of(unit: CheckUnit) -> list[SliceUnit]:
    """The slices of a kernel's check."""
    chosen = [name for name in CHECKS if not unit.settings.checks or name in unit.settings.checks]
    found = []
    for label, group in SLICES.items():
        checks = tuple(name for name in chosen if name in group or name == afterwards.NAME)
        if not group.isdisjoint(checks):
            is_shared = label == VALUES and not unit.task.op.contract.random  # of whose results a few are sampled
            shares = [Share(n, _SHARES) for n in range(_SHARES)] if is_shared else [None]
            found += [SliceUnit(unit, label, checks, share) for share in shares]
    return found


def with_all_cases(slices: Sequence[SliceUnit]) -> list[SliceUnit]:
    """The slices, with one that has all cases in place of those that have shares of them."""
    shared = [one for one in slices if one.share is not None]
    return [*(dataclasses.replace(one, share=None) for one in shared[:1]), *(s for s in slices if s.share is None)]


def wants_all_cases(parts: Sequence[Part]) -> bool:
    """Whether shares of the cases cannot be added: something did not pass, or nothing that tells much."""
    if any(part.refused or part.lost for part in parts):
        return False
    if any(part.ended_at for part in parts):
        return True
    findings = [f for part in parts for f in part.findings]
    coverages: dict[str, list[Coverage]] = {}
    for finding in findings:
        if finding.coverage is not None and finding.check != afterwards.NAME:
            coverages.setdefault(finding.check, []).append(finding.coverage)
    # A check of one case passes also if that is empty; of two empty ones it says so.
    if any(len(of) > 1 and all(c.generated == 1 for c in of) for of in coverages.values()):
        return True
    said = [n for part in parts for n in part.not_checked if _place(n.check) >= 0 and not n.cases]
    return any(f.status is not Status.PASS for f in findings) or any(n.why != _NONE_RAN for n in said)


# What ``check_each_case`` says if every case is skipped.
_NONE_RAN = "no case could be run"


def merged(unit: CheckUnit, slices: Sequence[SliceUnit], parts: Sequence[Part]) -> Verdict:
    """The verdict, from all slices: of shares of cases, either those, or one with all of them."""
    by_label: dict[str, list[Part]] = {}
    for one, part in zip(slices, parts, strict=True):
        by_label.setdefault(one.label, []).append(part)
    groups = [_added(of) if len(of) > 1 else of[0] for of in by_label.values()]
    return verdict_of(unit.task, unit.settings, _together(groups))


# -- slices of different checks ----------------------------------------------------------------------------------------


def _together(parts: Sequence[Part]) -> Part:
    """What one process would have found that had run the checks of all parts."""
    times: dict[str, Any] = {
        "seconds": round(sum(part.seconds for part in parts), 3),
        "step_seconds": _added_times(parts),
    }
    if refusal := next((part for part in parts if part.refused), None):
        return Part(refused=refusal.refused, **times)
    if early := _ended_before_checks(parts):
        return dataclasses.replace(early, **times)
    gone = [part for part in parts if part.lost]
    there = _until_first_end([part for part in parts if not part.lost])
    ending = next((part for part in there if part.ended_at), Part())
    return Part(
        findings=_in_order([part.findings for part in there]),
        not_checked=_in_order([part.not_checked for part in there]),
        ended_at=ending.ended_at,
        is_incomplete=ending.is_incomplete,
        lost=next((part.lost for part in gone), ""),
        remedy=next((part.remedy for part in gone), ""),
        left=tuple(name for part in gone for name in part.left if name != afterwards.NAME),
        **times,
    )


def _ended_before_checks(parts: Sequence[Part]) -> Part | None:
    """The part that has failed before any check began, as with a kernel that does not compile."""
    for part in parts:
        if (part.ended_at and _place(part.ended_at) < 0) or any(_place(f.check) < 0 for f in part.findings):
            return part
    return None


def _until_first_end(parts: Sequence[Part]) -> list[Part]:
    """Without what one process would not have run, as an earlier check ended it."""
    ended = [part for part in parts if part.ended_at]
    if not ended:
        return list(parts)
    first = min(ended, key=_end_of)
    end = _end_of(first)
    return [part if part is first else _before(end, part) for part in parts]


def _end_of(part: Part) -> tuple[int, int]:
    """Where it ended; of parts that ended after their last check, the one with the last check of all comes first."""
    return _place(part.ended_at), -_place(part.findings[-1].check) if part.findings else 0


def _before(end: tuple[int, int], part: Part) -> Part:
    findings = part.findings[:-1] if part.ended_at == AT_END else part.findings  # the last one is of its own end
    return dataclasses.replace(
        part,
        findings=tuple(f for f in findings if _place(f.check) < end[0]),
        not_checked=tuple(n for n in part.not_checked if _place(n.check) < end[0]),
        ended_at="",
        is_incomplete=False,
    )


def _in_order(of_parts: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Findings, or what was not checked, by the order of checks; what several slices say, once."""
    after = _of_afterwards(of_parts)
    found = [one for of in of_parts for one in of if one.check != afterwards.NAME] + list(after)
    before_checks = dict.fromkeys(one for one in found if _place(one.check) < 0)
    return (
        *before_checks,
        *sorted((one for one in found if _place(one.check) >= 0), key=lambda one: _place(one.check)),
    )


def _of_afterwards(of_parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """What the check at the end of each slice says: of the first that found something wrong, or of the first."""
    each = [[one for one in of if one.check == afterwards.NAME] for of in of_parts]
    wrong = [of for of in each if any(isinstance(one, Finding) and one.status is not Status.PASS for one in of)]
    return next(iter([*wrong, *filter(None, each)]), [])


def _place(check: str) -> int:
    """The place of a check among all; -1 for what comes before them, such as a build."""
    return _ORDER.get(check, -1)


def _added_times(parts: Sequence[Part]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for step, seconds in part.step_seconds.items():
            found[step] = round(found.get(step, 0.0) + seconds, 3)
    return found


# -- shares of cases ---------------------------------------------------------------------------------------------------


def _added(parts: Sequence[Part]) -> Part:
    """What one process would have found with the cases of all parts, if ``wants_all_cases`` is false."""
    if other := next((part for part in parts if part.refused or part.lost), None):
        return other
    names = dict.fromkeys(f.check for part in parts for f in part.findings)
    findings = [_sum([f for part in parts for f in part.findings if f.check == name]) for name in names]
    skipped = [n for part in parts for n in part.not_checked if n.cases or n.check not in names]
    return Part(
        findings=tuple(_with_skipped(f, parts) if f.check != afterwards.NAME else f for f in findings),
        not_checked=tuple(_joined(skipped)),
        seconds=sum(part.seconds for part in parts),
        step_seconds=_added_times(parts),
    )


def _sum(findings: Sequence[Finding]) -> Finding:
    """One finding for those of each share."""
    first = findings[0]
    if first.check == afterwards.NAME or len(findings) == 1:
        return first
    coverages = [f.coverage for f in findings if f.coverage is not None]
    coverage = Coverage(sum(c.run for c in coverages), sum(c.generated for c in coverages))
    histograms = [f.error_histogram for f in findings if f.error_histogram is not None]
    return dataclasses.replace(
        first,
        message=f"{coverage.run} cases",
        coverage=coverage,
        error_histogram=_added_histogram(histograms) if histograms else None,
    )


def _with_skipped(finding: Finding, parts: Sequence[Part]) -> Finding:
    """With the cases of a share in which none could be run, so that it has no finding."""
    without = [part for part in parts if all(f.check != finding.check for f in part.findings)]
    count = sum(n.cases for part in without for n in part.not_checked if n.check == finding.check)
    if not count or finding.coverage is None:
        return finding
    coverage = dataclasses.replace(finding.coverage, generated=finding.coverage.generated + count)
    return dataclasses.replace(finding, coverage=coverage)


def _added_histogram(histograms: Sequence[ErrorHistogram]) -> ErrorHistogram:
    counts = [sum(bins) for bins in zip(*(h.counts for h in histograms), strict=True)]
    return dataclasses.replace(histograms[0], counts=tuple(counts))


def _joined(said: Sequence[NotChecked]) -> list[NotChecked]:
    """Skipped cases of one kind together, with the first as the example; and what all shares say, once."""
    found: dict[tuple[str, str], NotChecked] = {}
    for one in said:
        kind = one.check, kind_of_reason(one.reason) if one.cases else one.why
        known = found.get(kind)
        if known is None or not one.cases:
            found[kind] = one
        else:
            found[kind] = NotChecked.in_cases(one.check, known.cases + one.cases, known.example, known.reason)
    # Of one check, that no case could be run comes after why.
    return sorted(found.values(), key=lambda one: (_place(one.check), one.why == _NONE_RAN))
