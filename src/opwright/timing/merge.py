"""Makes one report of those of several machines. What was compared, was compared on one machine, and stays so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from opwright.results import BenchReport
from opwright.results.json_form import to_json

__all__ = ["merged"]


def merged(reports: Sequence[BenchReport]) -> BenchReport:
    """One report of several, in their order. Limits are kept as ``roofline`` if there are those of one machine only."""
    measured = [report for report in reports if report.machine]
    if not measured:
        return BenchReport({}, (), errors=tuple(e for report in reports for e in report.errors))
    machines: dict[str, dict[str, Any]] = {}
    for report in measured:
        for host in dict.fromkeys(m.host for m in report if m.host):
            machines.setdefault(host, {**report.machine, "roofline": to_json(report.roofline)})
    rooflines = list(dict.fromkeys(repr(report.roofline) for report in measured if report.roofline))
    return dataclasses.replace(
        measured[0],
        measurements=tuple(m for report in reports for m in report),
        roofline=next((r.roofline for r in measured if r.roofline), ()) if len(rooflines) == 1 else (),
        errors=tuple(e for report in reports for e in report.errors),
        crossovers=tuple(c for report in reports for c in report.crossovers),
        settings=_settings(measured),
        machines=machines,
    )


def _settings(reports: Sequence[BenchReport]) -> dict[str, str]:
    """The conditions of all measurements; where they differ, each of them."""
    names = dict.fromkeys(name for report in reports for name in report.settings)
    values = {name: dict.fromkeys(r.settings[name] for r in reports if name in r.settings) for name in names}
    return {name: " or ".join(found) for name, found in values.items()}
