"""Reading records back: the JSON forms of checks and benchmarks as reports, those of one machine merged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from opwright.errors import OpwrightError
from opwright.results import (
    BenchReport,
    Ceiling,
    CheckReport,
    Comparison,
    Crossover,
    ErrorHistogram,
    Estimate,
    Finding,
    Interval,
    Measurement,
    NotChecked,
    Status,
    Verdict,
    Versus,
)

__all__ = ["STATE", "Histogram", "Records", "read"]


@dataclass(frozen=True)
class Histogram:
    """How many errors fell between each two ``edges``; a finding may carry one as ``error_histogram``."""

    where: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    unit: str = ""


@dataclass(frozen=True)
class Records:
    """Everything that was passed in, with the records of one machine merged into one report."""

    checks: tuple[CheckReport, ...] = ()
    benches: tuple[BenchReport, ...] = ()
    histograms: tuple[Histogram, ...] = ()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(v for report in self.checks for v in report.verdicts)

    @property
    def machines(self) -> tuple[dict[str, Any], ...]:
        """Each machine once, in the order of the records."""
        found: list[dict[str, Any]] = []
        for machine in [r.machine for r in self.checks] + [r.machine for r in self.benches]:
            at = next((i for i, m in enumerate(found) if _same_machine(m, machine)), None)
            if at is None:
                found.append(machine)
            else:
                found[at] = {**machine, **found[at]}
        return tuple(found)


def read(records: Sequence[Mapping[str, Any]]) -> Records:
    """Records as ``to_json`` gives them, back as reports.

    Fields that this version does not know are ignored: they were added without a new schema, so they are optional.

    Raises:
        OpwrightError: a record has another schema, or lacks what its schema promises.
    """
    checks: list[CheckReport] = []
    benches: list[BenchReport] = []
    histograms: list[Histogram] = []
    for record in records:
        schema = record.get("schema")
        if schema not in _READERS:
            said = f"the schema {schema!r}" if schema is not None else "no schema"
            raise OpwrightError(
                f"a record has {said}, which a report cannot show",
                fix=f"pass what --json of check or bench wrote ({', '.join(_READERS)})",
            )
        try:
            report = _READERS[schema](record)
            histograms += _histograms(record)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OpwrightError(
                f"a record says that it is {schema}, but is not: {type(error).__name__}: {error}",
                fix="write it again with --json",
            ) from error
        if isinstance(report, CheckReport):
            checks.append(report)
        else:
            benches.append(report)
    return Records(_merge(checks, _join_checks), _merge(benches, _join_benches), tuple(histograms))


Record = TypeVar("Record")


def _known(cls: type[Record], content: Mapping[str, Any], **changes: Any) -> Record:
    """``cls(**content)`` without the fields that it does not have."""
    names = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{k: v for k, v in content.items() if k in names} | changes)


def _read_check(record: Mapping[str, Any]) -> CheckReport:
    return CheckReport(dict(record["machine"]), tuple(_read_verdict(v) for v in record["verdicts"]))


def _read_verdict(content: Mapping[str, Any]) -> Verdict:
    return _known(
        Verdict,
        content,
        status=Status(content["status"]),
        findings=tuple(map(_read_finding, content.get("findings", ()))),
        not_checked=tuple(_known(NotChecked, n) for n in content.get("not_checked", ())),
    )


def _read_finding(content: Mapping[str, Any]) -> Finding:
    sizes = content.get("error_histogram")
    histogram = ErrorHistogram(tuple(sizes["edges"]), tuple(sizes["counts"]), sizes.get("unit", "")) if sizes else None
    return _known(Finding, content, status=Status(content["status"]), error_histogram=histogram)


def _read_bench(record: Mapping[str, Any]) -> BenchReport:
    return BenchReport(
        dict(record["machine"]),
        tuple(_read_measurement(m) for m in record["measurements"]),
        tuple(_known(Ceiling, c) for c in record.get("ceilings", ())),
        tuple(map(str, record.get("errors", ()))),
        tuple(map(_read_crossover, record.get("crossovers", ()))),
        {str(k): str(v) for k, v in record.get("settings", {}).items()},
    )


def _read_crossover(content: Mapping[str, Any]) -> Crossover:
    intervals = tuple(_known(Interval, i) for i in content["intervals"])
    return _known(Crossover, content, intervals=intervals, sizes=tuple(content.get("sizes", ())))


def _read_measurement(content: Mapping[str, Any]) -> Measurement:
    device, versus = content.get("device_us"), content.get("versus", {})
    return _known(
        Measurement,
        content,
        case=dict(content["case"]),
        device_us=None if device is None else _known(Estimate, device),
        call_us=_known(Estimate, content["call_us"]),
        versus={k: _known(Comparison, v, verdict=Versus(v["verdict"])) for k, v in versus.items()},
        notes=tuple(map(str, content.get("notes", ()))),
        first_values=tuple(content.get("first_values", ())),
        raw=tuple(content.get("raw", ())),
    )


_READERS: dict[Any, Callable[[Mapping[str, Any]], CheckReport | BenchReport]] = {
    "opwright.check/1": _read_check,
    "opwright.bench/1": _read_bench,
}


def _histograms(record: Mapping[str, Any]) -> list[Histogram]:
    found = []
    for v in record.get("verdicts", ()):
        for f in v.get("findings", ()):
            if data := f.get("error_histogram"):
                where = f"{v['op']} {v['kernel']} on {v['device']}: {f['check']}"
                found.append(Histogram(where, tuple(data["edges"]), tuple(data["counts"]), str(data.get("unit", ""))))
    return found


# What a benchmark notes of the machine's state: it changes from run to run, the machine does not.
STATE = {"power_w": "power (W)", "sm_clock_mhz": "SM clock (MHz)", "temperature_c": "temperature (°C)"}


def _same_machine(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Nothing that both records tell differs (a benchmark's record tells more than a check's)."""
    return all(a[k] == b[k] for k in (a.keys() & b.keys()) - STATE.keys())


Report = TypeVar("Report", CheckReport, BenchReport)


def _merge(reports: Iterable[Report], join: Callable[[Report, Report], Report]) -> tuple[Report, ...]:
    """Reports of one machine joined into the first of them."""
    merged: list[Report] = []
    for report in reports:
        at = next((i for i, m in enumerate(merged) if _same_machine(m.machine, report.machine)), None)
        if at is None:
            merged.append(report)
        else:
            merged[at] = join(merged[at], report)
    return tuple(merged)


def _join_checks(a: CheckReport, b: CheckReport) -> CheckReport:
    return CheckReport(a.machine, a.verdicts + b.verdicts)


def _join_benches(a: BenchReport, b: BenchReport) -> BenchReport:
    ceilings = a.ceilings + tuple(c for c in b.ceilings if c not in a.ceilings)
    crossovers = a.crossovers + tuple(c for c in b.crossovers if c not in a.crossovers)
    settings = {k: " / ".join(dict.fromkeys(s[k] for s in (a.settings, b.settings) if k in s)) for k in
                {**a.settings, **b.settings}}  # fmt: skip
    return BenchReport(a.machine, a.measurements + b.measurements, ceilings, a.errors + b.errors, crossovers, settings)
