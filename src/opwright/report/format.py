"""Shared by the HTML page, the Markdown comment and the pictures: grouping of records, texts, numbers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.report.records import STATE
from opwright.results import BenchReport, Comparison, ComparisonVerdict, Estimate, Measurement

__all__ = [
    "IMPOSSIBLE",
    "BenchRow",
    "bandwidth",
    "baselines",
    "bench_rows",
    "bins",
    "bytes_text",
    "case_text",
    "differing_facts",
    "estimate_interval",
    "estimate_text",
    "flop_rate",
    "flops_text",
    "is_number",
    "machine_facts",
    "machine_name",
    "percent",
    "ratio_text",
    "short_name",
    "significant",
    "time_text",
    "versus_counts",
]

# A share of a measured limit above which the time, the work or the limit itself must be wrong.
IMPOSSIBLE = 1.05


# -- grouping ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchRow:
    """One kernel on one case in one direction, with its cold and its warm measurement side by side."""

    machine: dict[str, Any]
    measurements: tuple[Measurement, ...]

    @property
    def main(self) -> Measurement:
        """The measurement whose rates and comparisons a table shows: the cold one, if there is one."""
        return self.cold or self.measurements[0]

    @property
    def cold(self) -> Measurement | None:
        return next((m for m in self.measurements if m.cache == "cold"), None)

    @property
    def warm(self) -> Measurement | None:
        return next((m for m in self.measurements if m.cache == "warm"), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes, each once, with the state of the cache if a note is about one only."""
        by_note: dict[str, list[str]] = {}
        for m in self.measurements:
            for note in m.notes:
                by_note.setdefault(note, []).append(m.cache)
        everywhere = len(self.measurements)
        return tuple(n if len(c) == everywhere else f"{', '.join(c)}: {n}" for n, c in by_note.items())

    @property
    def call(self) -> Estimate:
        """The host time of a call, warm, as most calls in a program are (on a GPU both measurements have the same)."""
        return (self.warm or self.main).host_us


def bench_rows(benches: Iterable[BenchReport]) -> list[BenchRow]:
    """The measurements, cold and warm joined. A repeated measurement gets a row of its own."""
    rows: list[list[Measurement]] = []
    machines: list[dict[str, Any]] = []
    for bench in benches:
        latest: dict[tuple[str, ...], list[Measurement]] = {}
        for m in bench.measurements:
            key = (m.op, m.kernel, m.backend, m.device, m.direction, case_text(m.case))
            row = latest.get(key)
            if row is None or any(other.cache == m.cache for other in row):
                row = latest[key] = []
                rows.append(row)
                machines.append(bench.machine)
            row.append(m)
    return [BenchRow(machine, tuple(row)) for machine, row in zip(machines, rows, strict=True)]


def baselines(measurements: Iterable[Measurement]) -> list[str]:
    """The names of the baselines, in the order in which they appear."""
    return list(dict.fromkeys(name for m in measurements for name in m.comparisons))


def versus_counts(rows: Sequence[BenchRow]) -> dict[str, dict[ComparisonVerdict, int]]:
    """Baseline → the number of kernels' rows (not of other baselines) that are faster, slower, the same, unclear."""
    found: dict[str, Counter[ComparisonVerdict]] = {}
    known = baselines(row.main for row in rows)
    for row in rows:
        if row.main.kernel in known:
            continue
        for name, comparison in row.main.comparisons.items():
            found.setdefault(name, Counter())[comparison.verdict] += 1
    return {name: {v: counter[v] for v in ComparisonVerdict if counter[v]} for name, counter in found.items()}


def bins(edges: Sequence[float], counts: Sequence[int]) -> list[tuple[float, str, bool]]:
    """A histogram's bars: the height as a share of the tallest, the label, and whether the bin is above 1.

    Heights are logarithmic and have a minimum, so that a single wrong element is visible.
    """
    top = math.log1p(max(counts, default=0)) or 1.0
    spans = zip(edges, edges[1:], counts, strict=False)
    return [
        (max(math.log1p(n) / top, 0.05) if n else 0.0, f"{_edge(a)} – {_edge(b)}: {n:,}", a >= 1) for a, b, n in spans
    ]


def _edge(value: float) -> str:
    return f"1/{1 / value:g}" if 0 < value < 1 and (1 / value).is_integer() else f"{value:g}"


def machine_name(machine: Mapping[str, Any]) -> str:
    """The name of a machine: its GPU, else its processor."""
    gpus = machine.get("gpus") or ()
    names = Counter(str(g["name"] if isinstance(g, Mapping) else g) for g in gpus)
    text = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in names.items())
    return text or str(machine.get("cpu") or "unknown machine")


def machine_facts(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every entry of a machine's record as a pair of texts."""
    return [(STATE.get(name, name.replace("_", " ")), _fact(value)) for name, value in machine.items()]


def differing_facts(machine: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> str:
    """A machine's name, with the facts that distinguish it from others of that name (``AMD EPYC, torch 2.11``)."""
    name = machine_name(machine)
    twins = [o for o in others if o is not machine and machine_name(o) == name]
    facts = [k for k in machine if k not in STATE and any(o.get(k) != machine[k] for o in twins)]
    return ", ".join([name, *(f"{k.replace('_', ' ')} {_fact(machine[k])}" for k in facts[:2])])


def _fact(value: Any) -> str:
    if value is None or value == "" or value == [] or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(_gpu_or_items(value))
    if isinstance(value, list | tuple):
        return "; ".join(map(_fact, value))
    return str(value)


def _gpu_or_items(value: Mapping[str, Any]) -> list[str]:
    if "name" in value and "capability" in value:
        texts = [str(value["name"]), "sm_" + "".join(map(str, value["capability"]))]
        return texts + ([bytes_text(value["memory_bytes"])] if "memory_bytes" in value else [])
    return [f"{k} {_fact(v)}" for k, v in value.items()]


# -- texts and numbers ------------------------------------------------------------------------------------------


def case_text(case: Mapping[str, Any] | str) -> str:
    """A case as in failures: ``n=1024x1024 dtype=float32``."""
    if isinstance(case, str):
        return case
    return " ".join(f"{name}={_size_text(value)}" for name, value in case.items())


def _size_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "x".join(map(str, value)) or "-"  # "-" is how a case writes the size of a scalar
    return str(value)


def is_number(value: object) -> bool:
    """Whether a value is a finite number; records have NaN and null for values that could not be computed."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits with thousands separators: ``0.0123``, ``12.3``, ``1,230``. Never scientific."""
    if not is_number(value):
        return "–"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, places)
    if rounded and places and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places -= 1  # 9.996 becomes 10.0, not 10.00
    return f"{rounded:,.{places}f}"


_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns"))


def _time_unit(us: float) -> tuple[float, str]:
    return next((u for u in _TIMES if abs(us) >= u[0]), _TIMES[-1])


def time_text(us: float) -> str:
    """Microseconds in a suitable unit: ``12.3 µs``, ``1.23 ms``."""
    if not is_number(us):
        return "–"
    scale, unit = _time_unit(us)
    return f"{significant(us / scale)} {unit}"


def estimate_text(estimate: Estimate | None) -> str:
    """The median as text."""
    return "–" if estimate is None else time_text(estimate.median)


def estimate_interval(estimate: Estimate | None) -> str:
    """The interval, in the median's unit, with one more digit, because it is often narrow."""
    if estimate is None or not all(map(is_number, (estimate.median, estimate.lo, estimate.hi))):
        return ""
    scale, _ = _time_unit(estimate.median)
    return f"{significant(estimate.lo / scale, 4)} – {significant(estimate.hi / scale, 4)}"


def bandwidth(m: Measurement) -> float | None:
    """Achieved bytes per second, by the minimum of bytes to move; None for a backward, whose work is an
    estimate (an addition's backward may do none)."""
    return _rate(m.bytes, m)


def flop_rate(m: Measurement) -> float | None:
    """Achieved floating-point operations per second; None for a backward."""
    return _rate(m.flops, m)


def _rate(amount: float, m: Measurement) -> float | None:
    us = m.time_us.median
    known = m.direction == "forward" and amount and is_number(us) and us > 0
    return amount / us * 1e6 if known else None


def percent(fraction: float | None) -> str:
    return f"{significant(fraction * 100, 2 if fraction < 0.1 else 3)} %" if is_number(fraction) and fraction else "–"


def ratio_text(comparison: Comparison) -> str:
    """``0.87 [0.86, 0.88]``: the kernel's time divided by the baseline's, with its interval."""
    texts = [f"{r:.3f}" if abs(r) < 10 else significant(r) for r in (comparison.ratio, comparison.lo, comparison.hi)]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def bytes_text(count: float) -> str:
    """``192 MiB``."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{significant(count / scale)} {unit}".replace(".0 ", " ").replace(".00 ", " ")
    return f"{count:g} B"


def flops_text(rate: float) -> str:
    """``51.0 TFLOP/s``."""
    for unit, scale in (("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6), ("KFLOP/s", 1e3)):
        if rate >= scale:
            return f"{significant(rate / scale)} {unit}"
    return f"{rate:.3g} FLOP/s"


def short_name(op: str) -> str:
    """``add`` of ``gallery::add``."""
    return re.sub(r"^.*::", "", op)
