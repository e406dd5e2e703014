"""Work items with some checks of a kernel, which run at the same time on several machines; and the outcomes, merged.

Merged, they are what one process would have found with all checks: the same findings in the same order, and the same
numbers of cases. Of every check that examines all cases, two items may have half of the cases each. Their outcomes are
added if all of them pass. Else one process examines all cases once more: only there it is seen which failures are one,
and which case shows each best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.checks.case_range import CaseRange
from opwright.checks.each_case import kind_of_reason
from opwright.checks.outputs import afterwards
from opwright.checks.scheduling.check_item import CheckItem, examine
from opwright.checks.scheduling.verdict import AT_END, Outcome, verdict_of
from opwright.checks.table import CHECKS, GROUPS
from opwright.contract.fingerprint import digest
from opwright.results import Coverage, ErrorHistogram, Finding, NotChecked, Status, Verdict
from opwright.sweep.work_item import Needs

__all__ = ["VALUES", "PartialItem", "can_be_split", "merged", "partial_items_of", "wants_all_cases", "with_all_cases"]

# The group whose cases are split, and into how many ranges.
VALUES, _RANGES = "values", 2
_ORDER = {name: place for place, name in enumerate([*CHECKS, AT_END])}


@dataclass(frozen=True)
class PartialItem:
    """A work item of a sweep: some checks of one kernel on one device.

    Attributes:
        group: of the checks, a key of ``GROUPS``.
        case_range: the cases that checks of every case examine, if not all.
    """

    whole: CheckItem
    group: str
    checks: tuple[str, ...]
    case_range: CaseRange | None = None

    kind = Outcome

    @property
    def name(self) -> str:
        cases = "" if self.case_range is None else f" {self.case_range}"
        return f"{self.whole.name}: {self.group}{cases}"

    @property
    def key(self) -> str:
        return digest("partial", self.whole.key, repr((self.checks, self.case_range)))

    @property
    def needs(self) -> Needs:
        return dataclasses.replace(self.whole.needs_for(self.checks), whole=self.whole.name)

    def run(self, on_step: Callable[[str], None]) -> Outcome:
        return examine(self.whole, on_step, self.checks, self.case_range)

    def without_result(self, why: str, remedy: str) -> Outcome:
        return Outcome(lost=why, remedy=remedy, left=self.checks)


def can_be_split(item: CheckItem) -> bool:
    """Whether a kernel's checks can run in several items: not if there is next to nothing to run; nor if the simulator
    may refuse the kernel in any of them, as all of them run in the interpreter then."""
    task, settings = item.task, item.settings
    is_short = bool(settings.case) or settings.level == "smoke"
    return task.refused is None and task.fallback is None and not is_short and len(partial_items_of(item)) > 1


def partial_items_of(item: CheckItem) -> list[PartialItem]:
    """The partial items of a kernel's check."""
    chosen = [name for name in CHECKS if not item.settings.checks or name in item.settings.checks]
    found = []
    for group, names in GROUPS.items():
        checks = tuple(name for name in chosen if name in names or name == afterwards.NAME)
        if not names.isdisjoint(checks):
            is_split = group == VALUES and not item.task.op.contract.random  # of whose results a few are sampled
            ranges = [CaseRange(n, _RANGES) for n in range(_RANGES)] if is_split else [None]
            found += [PartialItem(item, group, checks, cases) for cases in ranges]
    return found


def with_all_cases(items: Sequence[PartialItem]) -> list[PartialItem]:
    """The items, with one that has all cases in place of those that have ranges of them."""
    split = [one for one in items if one.case_range is not None]
    return [
        *(dataclasses.replace(one, case_range=None) for one in split[:1]),
        *(s for s in items if s.case_range is None),
    ]


def wants_all_cases(outcomes: Sequence[Outcome]) -> bool:
    """Whether outcomes of ranges of cases cannot be added: something did not pass, or nothing that tells much."""
    if any(outcome.lost for outcome in outcomes):
        return False
    if any(outcome.refused for outcome in outcomes):
        return _has_failed(outcomes)
    if any(outcome.ended_at for outcome in outcomes):
        return True
    findings = [f for outcome in outcomes for f in outcome.findings]
    coverages: dict[str, list[Coverage]] = {}
    for finding in findings:
        if finding.coverage is not None and finding.check != afterwards.NAME:
            coverages.setdefault(finding.check, []).append(finding.coverage)
    # A check of one case passes also if that is empty; of two empty ones it says so.
    if any(len(of) > 1 and all(c.generated == 1 for c in of) for of in coverages.values()):
        return True
    said = [n for outcome in outcomes for n in outcome.not_checked if _place(n.check) >= 0 and not n.cases]
    return any(f.status is not Status.PASS for f in findings) or any(n.why != _NONE_RAN for n in said)


# What ``check_each_case`` says if every case is skipped.
_NONE_RAN = "no case could be run"


def merged(item: CheckItem, items: Sequence[PartialItem], outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict, from all items: those of ranges of cases, or one with all of them."""
    by_group: dict[str, list[Outcome]] = {}
    for one, outcome in zip(items, outcomes, strict=True):
        by_group.setdefault(one.group, []).append(outcome)
    groups = [_added(of) if len(of) > 1 else of[0] for of in by_group.values()]
    return verdict_of(item.task, item.settings, _together(groups))


# -- items of different checks -----------------------------------------------------------------------------------------


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """What one process would have found that had run the checks of all outcomes."""
    times: dict[str, Any] = {
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 3),
        "step_seconds": _added_times(outcomes),
    }
    refusal = next((outcome.refused for outcome in outcomes if outcome.refused), "")
    if refusal and not _has_failed(outcomes):
        return Outcome(refused=refusal, **times)
    if early := _ended_before_checks(outcomes):
        return dataclasses.replace(early, **times)
    gone = [outcome for outcome in outcomes if outcome.lost]
    there = _until_first_end([outcome for outcome in outcomes if not outcome.lost])
    ending = next((outcome for outcome in there if outcome.ended_at), Outcome())
    return Outcome(
        findings=_in_order([outcome.findings for outcome in there]),
        not_checked=_in_order([outcome.not_checked for outcome in there]) + _rest(refusal),
        ended_at=ending.ended_at,
        is_incomplete=ending.is_incomplete or bool(refusal),
        lost=next((outcome.lost for outcome in gone), ""),
        remedy=next((outcome.remedy for outcome in gone), ""),
        left=tuple(name for outcome in gone for name in outcome.left if name != afterwards.NAME),
        **times,
    )


def _has_failed(outcomes: Sequence[Outcome]) -> bool:
    return any(f.status is Status.FAIL for outcome in outcomes for f in outcome.findings)


def _rest(refusal: str) -> tuple[NotChecked, ...]:
    """What is not checked of a kernel that has failed, and cannot run further."""
    return (NotChecked("some checks", f"the kernel cannot run further here: {refusal}"),) if refusal else ()


def _ended_before_checks(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The outcome that has failed before any check began, as with a kernel that does not compile."""
    for outcome in outcomes:
        if (outcome.ended_at and _place(outcome.ended_at) < 0) or any(_place(f.check) < 0 for f in outcome.findings):
            return outcome
    return None


def _until_first_end(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Without what one process would not have run, as an earlier check ended it."""
    ended = [outcome for outcome in outcomes if outcome.ended_at]
    if not ended:
        return list(outcomes)
    first = min(ended, key=_end_of)
    end = _end_of(first)
    return [outcome if outcome is first else _before(end, outcome) for outcome in outcomes]


def _end_of(outcome: Outcome) -> tuple[int, int]:
    """Where it ended; of outcomes that ended after their last check, the one with the last check of all comes first."""
    return _place(outcome.ended_at), -_place(outcome.findings[-1].check) if outcome.findings else 0


def _before(end: tuple[int, int], outcome: Outcome) -> Outcome:
    findings = (
        outcome.findings[:-1] if outcome.ended_at == AT_END else outcome.findings
    )  # the last one is of its own end
    return dataclasses.replace(
        outcome,
        findings=tuple(f for f in findings if _place(f.check) < end[0]),
        not_checked=tuple(n for n in outcome.not_checked if _place(n.check) < end[0]),
        ended_at="",
        is_incomplete=False,
    )


def _in_order(of_outcomes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Findings, or what was not checked, by the order of checks; what several items report, once."""
    after = _of_afterwards(of_outcomes)
    found = [one for of in of_outcomes for one in of if one.check != afterwards.NAME] + list(after)
    before_checks = dict.fromkeys(one for one in found if _place(one.check) < 0)
    return (
        *before_checks,
        *sorted((one for one in found if _place(one.check) >= 0), key=lambda one: _place(one.check)),
    )


def _of_afterwards(of_outcomes: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """What the check at the end of each item reports: of the first that found something wrong, or of the first."""
    each = [[one for one in of if one.check == afterwards.NAME] for of in of_outcomes]
    wrong = [of for of in each if any(isinstance(one, Finding) and one.status is not Status.PASS for one in of)]
    return next(iter([*wrong, *filter(None, each)]), [])


def _place(check: str) -> int:
    """The place of a check among all; -1 for what comes before them, such as a build."""
    return _ORDER.get(check, -1)


def _added_times(outcomes: Sequence[Outcome]) -> dict[str, float]:
    found: dict[str, float] = {}
    for outcome in outcomes:
        for step, seconds in outcome.step_seconds.items():
            found[step] = round(found.get(step, 0.0) + seconds, 3)
    return found


# -- ranges of cases ---------------------------------------------------------------------------------------------------


def _added(outcomes: Sequence[Outcome]) -> Outcome:
    """What one process would have found with the cases of all outcomes, if ``wants_all_cases`` is false."""
    if other := next((outcome for outcome in outcomes if outcome.refused or outcome.lost), None):
        return other
    names = dict.fromkeys(f.check for outcome in outcomes for f in outcome.findings)
    findings = [_sum([f for outcome in outcomes for f in outcome.findings if f.check == name]) for name in names]
    skipped = [n for outcome in outcomes for n in outcome.not_checked if n.cases or n.check not in names]
    return Outcome(
        findings=tuple(_with_skipped(f, outcomes) if f.check != afterwards.NAME else f for f in findings),
        not_checked=tuple(_joined(skipped)),
        seconds=sum(outcome.seconds for outcome in outcomes),
        step_seconds=_added_times(outcomes),
    )


def _sum(findings: Sequence[Finding]) -> Finding:
    """One finding for those of each range."""
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


def _with_skipped(finding: Finding, outcomes: Sequence[Outcome]) -> Finding:
    """With the cases of a range in which none could be run, so that it has no finding."""
    without = [outcome for outcome in outcomes if all(f.check != finding.check for f in outcome.findings)]
    count = sum(n.cases for outcome in without for n in outcome.not_checked if n.check == finding.check)
    if not count or finding.coverage is None:
        return finding
    coverage = dataclasses.replace(finding.coverage, generated=finding.coverage.generated + count)
    return dataclasses.replace(finding, coverage=coverage)


def _added_histogram(histograms: Sequence[ErrorHistogram]) -> ErrorHistogram:
    counts = [sum(bins) for bins in zip(*(h.counts for h in histograms), strict=True)]
    return dataclasses.replace(histograms[0], counts=tuple(counts))


def _joined(said: Sequence[NotChecked]) -> list[NotChecked]:
    """Skipped cases of one kind together, with the first as the example; and what all items report, once."""
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
