"""Compares a run with an earlier one: what became significantly slower, by more than is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from opwright.results import BenchReport, Measurement

__all__ = ["slower_than"]

_Key = tuple[str, ...]


def slower_than(before: Mapping[str, Any], now: BenchReport, allowed: float) -> list[str]:
    """The measurements that are slower than in ``before`` (a ``opwright.bench/2`` record) by more than ``allowed``.

    A measurement counts if its whole interval lies above the earlier interval's upper end times
    ``1 + allowed``: noise does not fail a build. Measurements that only one of the runs has are left out.
    """
    earlier = {_key(record): record for record in before["measurements"]}
    found = []
    for measurement in now:
        record = earlier.get(_key_of(measurement))
        if record is None:
            continue
        then = record["gpu_us"] or record["host_us"]
        if measurement.time_us.lo > then["hi"] * (1 + allowed):
            found.append(
                f"{measurement.op} {measurement.kernel} {measurement.direction} {measurement.cache} "
                f"{measurement.case}: "
                f"{then['median']:.1f} → {measurement.time_us.median:.1f} µs "
                f"({measurement.time_us.median / then['median'] - 1:+.1%}, {allowed:.1%} allowed)"
            )
    return found


def _key(record: Mapping[str, Any]) -> _Key:
    names = ("op", "kernel", "device", "direction", "cache")
    return (*(str(record[n]) for n in names), json.dumps(record["case"], sort_keys=True))


def _key_of(m: Measurement) -> _Key:
    return (m.op, m.kernel, m.device, m.direction, m.cache, json.dumps(m.case, sort_keys=True))
