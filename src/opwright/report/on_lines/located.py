"""The findings of a report, each with its rule and the line that it is about."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from opwright.report.verdicts import findings_of
from opwright.results import CheckReport, Finding, Status, Verdict
from opwright.results.judged import JudgeReport

__all__ = ["Located", "Place", "located", "located_candidates", "rule_of"]

# A line of a source in a message: "kernels.cu:12:", or of text in a Python file, "<cuda source>:3:", or "… in a.py:7".
_AT = re.compile(r"(?:^\s*|\bin )(?P<file><[\w ]+>|[^\s:<>]+\.\w+):(?P<line>\d+)(?=[:),]|$)", re.MULTILINE)
# As Python names it in a syntax error: "(a.py, line 4)".
_SYNTAX = re.compile(r"\((?P<file>[^\s:<>()]+\.\w+), line (?P<line>\d+)\)")


@dataclass(frozen=True)
class Place:
    """A line of a file."""

    file: Path
    line: int = 1


@dataclass(frozen=True)
class Located:
    """A finding at a place.

    Attributes:
        rule: which check it is of; the same in every version.
        identifier: the same for the same finding of the same kernel, whatever its message and line are.
    """

    rule: str
    is_error: bool
    place: Place
    title: str
    message: str
    identifier: str


def rule_of(check: str) -> str:
    """The stable identifier of a check's findings: ``opwright/inputs-unchanged``."""
    return f"opwright/{re.sub(r'[^a-z0-9]+', '-', check.lower()).strip('-')}"


def located(report: CheckReport, places: Mapping[tuple[str, str], Place]) -> list[Located]:
    """Each finding that did not pass, the worst kernel first. One that follows from another's fault is left out.

    Args:
        places: where kernels are defined, by operator and kernel. Findings of others are left out.
    """
    return [
        one for verdict in report.verdicts if (verdict.op, verdict.kernel) in places for one in _of(verdict, places)
    ]


def located_candidates(report: JudgeReport) -> list[Located]:
    """The same for judged candidates: on the line that a message names, or else the first of the candidate."""
    found = list[Located]()
    for row in report.rows:
        verdict = row.verdict or Verdict("judged", Path(row.candidate).name, "", "any device", row.status)
        # The row may be worse than the verdict, as for a candidate that could be checked for one shape only.
        verdict = dataclasses.replace(verdict, status=row.status, reason=row.reason or verdict.reason)
        found += _of(verdict, {(verdict.op, verdict.kernel): Place(row.file, row.line)})
    return found


def _of(verdict: Verdict, places: Mapping[tuple[str, str], Place]) -> Iterator[Located]:
    defined = places[verdict.op, verdict.kernel]
    for finding in findings_of(verdict, separate=True):
        if finding.status in (Status.PASS, Status.REFUSED):
            continue
        title = f"{verdict.op} {verdict.kernel} on {verdict.device}: {finding.check}"
        identity = "\0".join((verdict.op, verdict.kernel, verdict.device, finding.check, finding.case))
        yield Located(
            rule_of(finding.check),
            finding.status is Status.FAIL,
            _place_in(finding, defined) or defined,
            title,
            str(finding),
            hashlib.sha256(identity.encode()).hexdigest()[:16],
        )


def _place_in(finding: Finding, defined: Place) -> Place | None:
    """The line that a message names: of a file beside the kernel's; or, of text in the kernel's own file and of a file
    that was made of it, the line that has the same text."""
    for found in (*_AT.finditer(finding.message), *_SYNTAX.finditer(finding.message)):
        if not found["file"].startswith("<"):
            beside = defined.file.parent / found["file"]
            if beside.is_file():
                return Place(beside, int(found["line"]))
        following = finding.message[found.end() :].partition("\n")[2].partition("\n")[0].strip()
        if (line := _line_of(defined.file, following)) is not None:
            return Place(defined.file, line)
    return None


def _line_of(file: Path, text: str) -> int | None:
    """The only line of a file with this text; None if there is no such line, or more than one."""
    lines = file.read_text(errors="replace").splitlines() if text and file.is_file() else []
    numbers = [number for number, line in enumerate(lines, 1) if line.strip() == text]
    return numbers[0] if len(numbers) == 1 else None
