"""What many kernels have in common, each text once: reasons why something did not run, warnings, thin coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from opwright.report.statuses import GROUPED, LOOKS, ONE_BY_ONE
from opwright.report.verdicts import findings_of
from opwright.results import Finding, Status, Verdict

__all__ = ["Notes", "Reason", "not_checked", "noted", "notes", "refused"]

# The number of names in a list; the others are only counted.
MOST_NAMES = 4


@dataclass(frozen=True)
class Reason:
    """One text of a record, and the kernels that it applies to.

    Attributes:
        why: the reason as text.
        checks: the checks that it is about, or that were skipped for it; empty if nothing was checked.
        kernels: the number of kernels that it applies to.
        of: the number of kernels that it could apply to.
        names: those kernels, abbreviated: an operator's name for all of its kernels.
        named: for each of ``names``, the number of kernels.
        cases: the number of cases that were skipped for it, if it applies to single cases.
        example: one of these cases.
        remedy: what to do about it; empty if it is not known.
        finding: of several findings with this text, the first; its case and command are an example.
    """

    why: str
    checks: tuple[str, ...]
    kernels: int
    of: int
    names: tuple[str, ...]
    named: tuple[int, ...]
    cases: int = 0
    example: str = ""
    remedy: str = ""
    finding: Finding | None = None

    @property
    def who(self) -> str:
        """``all kernels``, a single kernel's name, or ``9 of 58 kernels``."""
        if self.kernels == 1:
            return self.names[0]
        return "all kernels" if self.kernels == self.of else f"{self.kernels} of {self.of} kernels"

    @property
    def case(self) -> str:
        """A case that shows it; empty if it is not about one."""
        return self.finding.case if self.finding else ""

    @property
    def again(self) -> str:
        """The command that repeats it for one of the kernels."""
        return self.finding.reproduce if self.finding else ""

    @property
    def skipped(self) -> str:
        """The number of skipped cases, and one of them; empty if the reason is not about single cases."""
        number = "1 skipped case" if self.cases == 1 else f"{self.cases} skipped cases, such as"
        return f"{number} {self.example}" if self.cases else ""

    def listed(self, most: int = MOST_NAMES) -> str:
        """A few of the kernels' names and the number of the others; empty if ``who`` names them."""
        if self.who in ("all kernels", *self.names):
            return ""
        more = sum(self.named[most:])
        return ", ".join(self.names[:most]) + (f", … and {more} more" if more else "")


def not_checked(verdicts: Sequence[Verdict]) -> list[Reason]:
    """The reasons for what was not checked in kernels that ran. Those for the most kernels come first."""
    ran = [v for v in verdicts if v.status is not Status.REFUSED]
    groups: dict[tuple[str, tuple[str, ...]], list[Verdict]] = {}
    cases: Counter[tuple[str, tuple[str, ...]]] = Counter()
    examples: dict[tuple[str, tuple[str, ...]], str] = {}
    for verdict in ran:
        for why in dict.fromkeys(n.reason for n in verdict.not_checked):
            items = [n for n in verdict.not_checked if n.reason == why]
            key = why, tuple(dict.fromkeys(n.check for n in items))
            groups.setdefault(key, []).append(verdict)
            cases[key] += max(n.cases for n in items)  # each check counts the same ones
            examples.setdefault(key, items[0].example)
    found = [_reason(*key, group, verdicts, ran, cases[key], examples[key]) for key, group in groups.items()]
    return sorted(found, key=lambda reason: -reason.kernels)


class Notes(NamedTuple):
    """Findings of a status, and what it means for the kernels that have them."""

    status: Status
    meaning: str
    reasons: list[Reason]


def notes(verdicts: Sequence[Verdict]) -> list[Notes]:
    """Thin coverage and warnings: first those of kernels in which nothing is wrong, then those of the others, whose
    results need not be right."""
    meanings = {status: (LOOKS[status].meaning, _OF_PROBLEMS) for status in GROUPED}
    every = [
        Notes(status, meaning, noted(verdicts, status, of_problems=of_problems))
        for status in GROUPED
        for of_problems, meaning in enumerate(meanings[status])
    ]
    return [each for each in every if each.reasons]


_OF_PROBLEMS = "of kernels that failed, or about which nothing is known"


def noted(verdicts: Sequence[Verdict], status: Status, *, of_problems: bool | int | None = None) -> list[Reason]:
    """The findings of a status in kernels that ran, each text once. Those for the most kernels come first.

    Args:
        of_problems: only of kernels that failed or are inconclusive, or only of others.
    """
    ran = [v for v in verdicts if v.status is not Status.REFUSED]
    chosen = [v for v in ran if of_problems is None or bool(of_problems) is (v.status in ONE_BY_ONE)]
    groups: dict[_Text, list[Verdict]] = {}
    first: dict[_Text, Finding] = {}
    for verdict in chosen:
        for text, finding in _texts(verdict, status).items():
            groups.setdefault(text, []).append(verdict)
            first.setdefault(text, finding)
    found = [
        replace(_reason(text.why, text.checks, group, verdicts, ran), remedy=text.remedy, finding=first[text])
        for text, group in groups.items()
    ]
    return sorted(found, key=lambda reason: -reason.kernels)


class _Text(NamedTuple):
    """What findings have in common that are shown once."""

    why: str
    remedy: str
    checks: tuple[str, ...]


def _texts(verdict: Verdict, status: Status) -> dict[_Text, Finding]:
    """The texts of one kernel's findings, each with the first of them: checks with the same text are joined."""
    same: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings_of(verdict, separate=True):
        if finding.status is status:
            same.setdefault((finding.message, finding.remedy), []).append(finding)
    return {_Text(*text, tuple(dict.fromkeys(f.check for f in found))): found[0] for text, found in same.items()}


def refused(verdicts: Sequence[Verdict]) -> list[Reason]:
    """The reasons why kernels cannot run here. Those for the most kernels come first."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.status is Status.REFUSED:
            groups.setdefault(verdict.reason, []).append(verdict)
    found = [_reason(why, (), group, verdicts, verdicts) for why, group in groups.items()]
    return sorted(found, key=lambda reason: -reason.kernels)


def _reason(
    why: str,
    checks: tuple[str, ...],
    group: Sequence[Verdict],
    verdicts: Sequence[Verdict],
    candidates: Sequence[Verdict],
    cases: int = 0,
    example: str = "",
) -> Reason:
    names = _names(group, verdicts)
    return Reason(why, checks, len(group), len(candidates), tuple(names), tuple(names.values()), cases, example)


def _names(group: Sequence[Verdict], verdicts: Iterable[Verdict]) -> Counter[str]:
    """Names of the kernels with the number of kernels of each: an operator's name for all of its kernels."""
    of_operator = Counter(v.op for v in verdicts)
    of_name = Counter(f"{v.op}:{v.kernel}" for v in verdicts)
    here = Counter(v.op for v in group)
    names: Counter[str] = Counter()
    for verdict in group:
        name = f"{verdict.op}:{verdict.kernel}"
        if of_name[name] > 1:
            name += f" on {verdict.device}"
        names[verdict.op if 1 < here[verdict.op] == of_operator[verdict.op] else name] += 1
    return names
