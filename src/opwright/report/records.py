"""Reads records: the JSON forms of checks, benchmarks and judged candidates as reports, merged by machine."""

from __future__ import annotations

import dataclasses
import datetime
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from opwright.errors import OpwrightError
from opwright.results import BenchReport, CheckReport, RooflineLimit, Verdict
from opwright.results.json_form import MalformedRecordError, from_json
from opwright.results.judged import JudgeReport

__all__ = ["STATE", "Histogram", "Made", "Records", "how_made", "read", "with_command"]


@dataclass(frozen=True)
class Made:
    """How a record was made: with which opwright, when (UTC, ISO 8601), and by which command."""

    opwright: str
    at: str
    command: str


def with_command(record: Mapping[str, Any], version: str, command: Sequence[str]) -> dict[str, Any]:
    """The record with how this version of opwright makes it now, as ``made``."""
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {**record, "made": dataclasses.asdict(Made(version, at, shlex.join(command)))}


def how_made(records: Iterable[Mapping[str, Any]]) -> list[Made]:
    """What the records say of it, each once; records of a program say nothing."""
    found = (record.get("made") for record in records)
    names = [field.name for field in dataclasses.fields(Made)]
    made = (Made(*(str(m.get(name, "")) for name in names)) for m in found if isinstance(m, Mapping))
    return list(dict.fromkeys(made))


@dataclass(frozen=True)
class Histogram:
    """The numbers of errors between ``edges``, from a finding's ``error_histogram``."""

    where: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    unit: str = ""

    @property
    def has_wrong(self) -> bool:
        """Whether an element's error is above the allowed one, which is 1."""
        return any(count for least, count in zip(self.edges, self.counts, strict=False) if least >= 1)


@dataclass(frozen=True)
class Records:
    """All records, with those of one machine merged into one report."""

    checks: tuple[CheckReport, ...] = ()
    benches: tuple[BenchReport, ...] = ()
    judged: tuple[JudgeReport, ...] = ()
    histograms: tuple[Histogram, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(v for report in self.checks for v in report.verdicts)

    @property
    def partial(self) -> tuple[str, ...]:
        """Why verdicts are missing, of each check that was interrupted."""
        partial = [r.partial for r in self.checks] + [r.partial for r in self.judged]
        return tuple(filter(None, partial))

    @property
    def machines(self) -> tuple[dict[str, Any], ...]:
        """Each machine once, in the order of the records."""
        found: list[dict[str, Any]] = []
        every = [r.machine for r in self.checks] + [r.machine for r in self.benches] + [r.machine for r in self.judged]
        for machine in every:
            at = next((i for i, m in enumerate(found) if _same_machine(m, machine)), None)
            if at is None:
                found.append(machine)
            else:
                found[at] = {**machine, **found[at]}
        return tuple(found)

    def with_judged_as_checks(self) -> Records:
        """The same with the verdicts of judged candidates among those of checks, for a form without a table of them."""
        checks = (*self.checks, *(report.as_check() for report in self.judged))
        return dataclasses.replace(self, checks=_merge(checks, _join_checks), judged=())


def read(records: Sequence[Mapping[str, Any]]) -> Records:
    """Make reports from records written by ``to_json``.

    Fields that this version does not know are ignored: they were added without a new schema, so they are optional.

    Raises:
        OpwrightError: a record has another schema, or lacks what its schema promises.
    """
    checks: list[CheckReport] = []
    benches: list[BenchReport] = []
    judged: list[JudgeReport] = []
    histograms: list[Histogram] = []
    for record in records:
        schema = record.get("schema")
        if schema not in _KINDS:
            raise OpwrightError(
                f"a record must have the schema {' or '.join(_KINDS)}, got {schema!r}",
                fix="pass files that check, judge or bench have written with --json",
            )
        try:
            report = from_json(_KINDS[schema], record)
        except MalformedRecordError as error:
            raise OpwrightError(
                f"a record has the schema {schema}, but does not conform to it: {error}",
                fix="write it again with --json",
            ) from error
        if isinstance(report, CheckReport):
            checks.append(report)
            histograms += _histograms(report)
        elif isinstance(report, JudgeReport):
            judged.append(report)
        else:
            benches += _by_host(report)
    return Records(_merge(checks, _join_checks), _merge(benches, _join_benches), tuple(judged), tuple(histograms))


_KINDS: dict[Any, type[CheckReport] | type[BenchReport] | type[JudgeReport]] = {
    CheckReport.schema: CheckReport,
    BenchReport.schema: BenchReport,
    JudgeReport.schema: JudgeReport,
}


def _by_host(report: BenchReport) -> Iterator[BenchReport]:
    """One report for each machine of a cluster: times of several are in no picture together."""
    if not report.machines:
        yield report
        return
    errors = report.errors
    for host, machine in report.machines.items():
        own = {k: v for k, v in machine.items() if k != "roofline"} | {"host": host}
        names = {m.device_name for m in report if m.host == host}
        yield dataclasses.replace(
            report,
            machine=own,
            measurements=tuple(m for m in report if m.host == host),
            roofline=tuple(from_json(RooflineLimit, limit) for limit in machine["roofline"]),
            crossovers=tuple(c for c in report.crossovers if c.device_name in names),
            errors=errors,
            machines={},
        )
        errors = ()  # once is enough


def _histograms(report: CheckReport) -> Iterator[Histogram]:
    for verdict in report.verdicts:
        for finding in verdict.findings:
            if (found := finding.error_histogram) is not None:
                where = f"{verdict.op} {verdict.kernel} on {verdict.device}: {finding.check}"
                yield Histogram(where, found.edges, found.counts, found.unit)


# The machine's state in a benchmark's record, which changes from run to run.
STATE = {"power_w": "power (W)", "sm_clock_mhz": "SM clock (MHz)", "temperature_c": "temperature (°C)"}


def _same_machine(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether all common entries are equal (a benchmark's record has more than a check's)."""
    return all(a[k] == b[k] for k in (a.keys() & b.keys()) - STATE.keys())


Report = TypeVar("Report", CheckReport, BenchReport)


def _merge(reports: Iterable[Report], join: Callable[[Report, Report], Report]) -> tuple[Report, ...]:
    """Join reports of one machine."""
    merged: list[Report] = []
    for report in reports:
        at = next((i for i, m in enumerate(merged) if _same_machine(m.machine, report.machine)), None)
        if at is None:
            merged.append(report)
        else:
            merged[at] = join(merged[at], report)
    return tuple(merged)


def _join_checks(a: CheckReport, b: CheckReport) -> CheckReport:
    partial = "; ".join(dict.fromkeys(filter(None, (a.partial, b.partial))))
    return CheckReport(a.machine, a.verdicts + b.verdicts, partial=partial)


def _join_benches(a: BenchReport, b: BenchReport) -> BenchReport:
    roofline = a.roofline + tuple(c for c in b.roofline if c not in a.roofline)
    crossovers = a.crossovers + tuple(c for c in b.crossovers if c not in a.crossovers)
    settings = {k: " / ".join(dict.fromkeys(s[k] for s in (a.settings, b.settings) if k in s)) for k in
                {**a.settings, **b.settings}}  # fmt: skip
    return BenchReport(a.machine, a.measurements + b.measurements, roofline, a.errors + b.errors, crossovers, settings)
