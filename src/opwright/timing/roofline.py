"""The machine's roofline limits, measured once and cached: bandwidth by size, matrix rate by dtype, launch overhead."""

from __future__ import annotations

import bisect
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opwright.contract.fingerprint import digest
from opwright.machine import Machine
from opwright.results import RooflineLimit
from opwright.results.json_form import from_json, to_json
from opwright.timing.candidates import Candidate
from opwright.timing.timers import Timer

__all__ = ["Roofline", "fraction_of_roofline"]

# Bytes moved (read + written), from a first-level cache's size to far past the last-level cache; denser near the
# size of the last-level cache, where launches still matter.
_SIZES = tuple(1 << p for p in (16, 18, 20, 22, 24, 25, 26, 27, 28, 30))
_MATRIX = {"cuda": 8192, "cpu": 1024}
_DTYPES = {"cuda": ("float32", "float16", "bfloat16"), "cpu": ("float32", "float64")}
# Above this fraction of a limit, the time, the work or the number of bytes is wrong.
IMPOSSIBLE = 1.05


class Roofline:
    """The limits of a device, from the cache folder if they were measured before (on this machine, this torch)."""

    def __init__(self, device: str, timer: Timer, machine: Machine, log: Callable[[str], None]) -> None:
        self._device, self._timer, self._log = device, timer, log
        name = digest(str(_SIZES), json.dumps(machine.to_json(), sort_keys=True))
        self._file = machine.cache_dir / "roofline" / f"{device}-{name}.json"
        self._was_repeated = False
        known = _read(self._file)
        if known is None:
            log(f"measuring this machine's limits ({device}); stored in {self._file}")
            known = _measured(device, timer)
            _write(self._file, known)
        self.limits = known

    def measure_again(self) -> bool:
        """Measure the limits once more, and keep the better ones: they are too low if the machine was busy. False if
        that was done before."""
        if self._was_repeated:
            return False
        self._was_repeated = True
        self._log(f"a time is beyond this machine's limits; measuring them again ({self._device})")
        again = {limit.name: limit.by for limit in _measured(self._device, self._timer)}
        self.limits = tuple(dataclasses.replace(known, by=_better(known, again[known.name])) for known in self.limits)
        _write(self._file, self.limits)
        return True


def _measured(device: str, timer: Timer) -> tuple[RooflineLimit, ...]:
    return (
        RooflineLimit(
            "bandwidth cold", device, "B/s", {str(s): _bandwidth(device, timer, s, cold=True) for s in _SIZES}
        ),
        RooflineLimit(
            "bandwidth warm", device, "B/s", {str(s): _bandwidth(device, timer, s, cold=False) for s in _SIZES}
        ),
        RooflineLimit("arithmetic", device, "FLOP/s", {d: _matrix_rate(device, timer, d) for d in _DTYPES[device]}),
        RooflineLimit("call overhead of torch.add", device, "us", {"1024": _call_overhead(device, timer)}),
    )


def _better(known: RooflineLimit, again: Mapping[str, float]) -> dict[str, float]:
    """Of two measurements of a limit, the higher rates and the lower times."""
    best = min if known.unit == "us" else max
    return {key: best(value, again.get(key, value)) for key, value in known.by.items()}


def fraction_of_roofline(
    roofline: tuple[RooflineLimit, ...], *, moved: int, flops: int, dtype: str, cold: bool, us: float
) -> tuple[str, float | None]:
    """The nearest limit (``bandwidth`` or ``arithmetic``), and the achieved fraction of it.

    The bandwidth is interpolated between the nearest two measured sizes. Above 1 the best of the neighbouring sizes
    is used, because caches have no sharp edges.
    """
    by_name = {c.name: c.by for c in roofline}
    fractions: dict[str, float] = {}
    rates = by_name.get("bandwidth cold" if cold else "bandwidth warm")
    if rates and moved:
        reached = moved / us * 1e6
        fraction = reached / _between(rates, moved)
        fractions["bandwidth"] = fraction if fraction <= 1 else max(1.0, reached / _near(rates, moved))
    if (rate := by_name.get("arithmetic", {}).get(dtype)) and flops:
        fractions["arithmetic"] = flops / us * 1e6 / rate
    if not fractions:
        return "", None
    name = max(fractions, key=lambda n: fractions[n])
    return name, fractions[name]


def _between(rates: dict[str, float], moved: int) -> float:
    """The rate at a size, interpolated in the logarithm of the size."""
    sizes = sorted(map(int, rates))
    return float(np.interp(math.log2(max(moved, 1)), [math.log2(s) for s in sizes], [rates[str(s)] for s in sizes]))


def _near(rates: dict[str, float], moved: int) -> float:
    """The best rate at this size or one measured step beside it (caches have no sharp edges)."""
    sizes = sorted(map(int, rates))
    at = bisect.bisect_left(sizes, moved)
    around = sizes[max(0, at - 1) : at + 2] or sizes[-1:]
    return max(rates[str(s)] for s in around)


def _bandwidth(device: str, timer: Timer, moved: int, *, cold: bool) -> float:
    """The best of a copy, a sum of two tensors and a read: which one is the limit depends on the machine."""
    n = moved // 8
    a, b, out = (torch.randn(n, device=device) for _ in range(3))
    third = moved // 12
    jobs: list[tuple[Callable[[Any], Any], int]] = [
        (lambda _: out.copy_(a), 8 * n),
        (lambda _: torch.add(a[:third], b[:third], out=out[:third]), 12 * third),
        (lambda _: a.sum(), 4 * n),
    ]
    return max(bytes_ / _time(timer, Candidate("limit", "torch", job), cold=cold) * 1e6 for job, bytes_ in jobs)


def _matrix_rate(device: str, timer: Timer, dtype: str) -> float:
    n = _MATRIX[device]
    a, b = (torch.randn(n, n, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    return 2 * n**3 / _time(timer, Candidate("limit", "torch", lambda _: a @ b), cold=False) * 1e6


def _call_overhead(device: str, timer: Timer) -> float:
    a, b = (torch.randn(1024, device=device) for _ in range(2))
    candidate = Candidate("limit", "torch", lambda _: torch.add(a, b))
    timer.warm_up(candidate, [None])
    with timer.steady():
        return statistics.median(timer.host_times(candidate, [None], 20))


def _time(timer: Timer, candidate: Candidate, *, cold: bool) -> float:
    """The minimum of the medians of a few passes: a limit is what the machine reaches without disturbances."""
    sets = [None]
    timer.warm_up(candidate, sets)
    times = timer.cold_times if cold else timer.warm_times
    with timer.steady():
        least = min(statistics.median(times(candidate, sets, 5)) for _ in range(3))
    timer.forget()
    return least


def _read(file: Path) -> tuple[RooflineLimit, ...] | None:
    try:
        return from_json(tuple[RooflineLimit, ...], json.loads(file.read_text()))
    except (OSError, ValueError):  # missing or damaged: measure again
        return None


def _write(file: Path, roofline: tuple[RooflineLimit, ...]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(to_json(roofline), indent=1))
        partial.replace(file)
    except OSError:
        return  # without the file, the limits are measured again next time
