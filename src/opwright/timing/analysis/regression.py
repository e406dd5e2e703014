"""Compares a run with an earlier one: what became significantly slower, by more than is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from opwright.results import BenchReport, Measurement

__all__ = ["on_other_devices", "slower_than"]

_Key = tuple[str, ...]


def slower_than(before: Mapping[str, Any], now: BenchReport, allowed: float) -> list[str]:
    """The measurements that are slower than in ``before`` (a ``opwright.bench/2`` record) by more than ``allowed``.

    A measurement counts if its whole interval lies above the earlier interval's upper end times
    ``1 + allowed``: noise does not fail a build. Measurements that only one of the runs has are left out, and those
    of another GPU or processor (``on_other_devices``).
    """
    earlier = {_key(record): record for record in before["measurements"]}
    found = []
    for measurement in now:
        record = earlier.get(_key_of(measurement))
        if record is None or _device_of(record, before) != _device_of_measurement(measurement, now):
            continue
        then = record["gpu_us"] or record["host_us"]
        if measurement.time_us.lo > then["hi"] * (1 + allowed):
            found.append(
                f"{measurement.op} {measurement.kernel} {measurement.direction} {measurement.cache} "
                f"{measurement.case}: "
                f"{then['median']:.1f} → {measurement.time_us.median:.1f} µs "
                f"({measurement.time_us.median / then['median'] - 1:+.1%}, {allowed:.1%} allowed)"
                + _hosts(record.get("host", ""), measurement.host)
            )
    return found


def on_other_devices(before: Mapping[str, Any], now: BenchReport) -> list[str]:
    """What is not compared, as the two runs were on different GPUs or processors."""
    earlier = {_key(record): record for record in before["measurements"]}
    pairs = [(_device_of(record, before), _device_of_measurement(m, now)) for m in now
             if (record := earlier.get(_key_of(m))) is not None]  # fmt: skip
    return [
        f"{pairs.count(pair)} times are not compared: they are of {pair[1]}, and those before of {pair[0]}"
        for pair in dict.fromkeys(pairs)
        if pair[0] != pair[1]
    ]


def _device_of(record: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """The GPU or the processor; of records without its name, that of their machine."""
    return str(record.get("device_name") or _device_of_machine(report["machine"], record["device"]))


def _device_of_measurement(measurement: Measurement, report: BenchReport) -> str:
    return measurement.device_name or _device_of_machine(report.machine, measurement.device)


def _device_of_machine(machine: Mapping[str, Any], device: str) -> str:
    gpus = machine.get("gpus") or ()
    return str(gpus[0]["name"] if device == "cuda" and gpus else machine.get("cpu", ""))


def _hosts(before: str, now: str) -> str:
    return f" [on {now}, before on {before}]" if before and now and before != now else ""


def _key(record: Mapping[str, Any]) -> _Key:
    names = ("op", "kernel", "device", "direction", "cache")
    return (*(str(record[n]) for n in names), json.dumps(record["case"], sort_keys=True))


def _key_of(m: Measurement) -> _Key:
    return (m.op, m.kernel, m.device, m.direction, m.cache, json.dumps(m.case, sort_keys=True))
