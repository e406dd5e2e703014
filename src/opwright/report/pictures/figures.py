"""Plots of benchmarks as SVG (for the page) and as SVG or PNG files (for a README).

They need matplotlib, which is imported when a picture is drawn. The same records give the same bytes: no dates,
fixed salts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opwright.errors import OpwrightError
from opwright.report.format import machine_name
from opwright.report.pictures.canvas import NEUTRAL, available, draw
from opwright.report.pictures.roofline import roofline_figure, roofline_points
from opwright.report.pictures.times import Panel, panels, panels_figure
from opwright.report.records import read
from opwright.results import BenchReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "NEUTRAL",
    "Panel",
    "available",
    "panels",
    "roofline",
    "roofline_points",
    "save",
    "time_over_size",
    "time_panel",
]


def time_over_size(bench: BenchReport | Mapping[str, Any], op: str) -> str:
    """Time over size of each kernel, as SVG with a panel for each direction (and dtype, and device).

    Raises:
        OpwrightError: matplotlib is not installed, or nothing was measured at two sizes.
    """
    found = panels(_report(bench), op)
    if not found:
        raise OpwrightError(f"{op} was not measured at two sizes", fix="pass --size NAME=A,B,C to opwright bench")
    return _svg(panels_figure, found)


def time_panel(panel: Panel) -> str:
    """One panel of ``time_over_size`` alone, narrow enough for a phone."""
    return _svg(panels_figure, [panel])


def roofline(bench: BenchReport | Mapping[str, Any], *, narrow: bool = False) -> str:
    """Achieved FLOP/s over arithmetic intensity under the machine's measured limits, as SVG.

    Raises:
        OpwrightError: matplotlib is not installed, or no measurement has FLOPs and bytes.
    """
    report = _report(bench)
    if not roofline_points(report):
        raise OpwrightError("no measurement has both FLOPs and bytes: there is no roofline to draw")
    return _svg(roofline_figure, report, narrow)


def save(records: Sequence[Mapping[str, Any]], folder: Path, kinds: Sequence[str] = ("svg",)) -> list[Path]:
    """Write every picture of the records as files (``roofline.svg``, ``gallery-add.svg`` …) of kinds svg and png."""
    figures: dict[str, tuple[Callable[..., Figure], tuple[Any, ...]]] = {}
    benches = read(records).benches
    for i, bench in enumerate(benches):
        machine = f"-{_file_name(machine_name(bench.machine))}-{i + 1}" if len(benches) > 1 else ""
        if roofline_points(bench):
            figures[f"roofline{machine}"] = (roofline_figure, (bench, False))
        for op in dict.fromkeys(m.op for m in bench.measurements):
            if found := panels(bench, op):
                figures[f"{_file_name(op)}{machine}"] = (panels_figure, (found,))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (make, arguments) in figures.items():
            for kind in kinds:
                written.append(folder / f"{name}.{kind}")
                written[-1].write_bytes(draw(kind, make, *arguments))
    except OSError as error:
        raise OpwrightError(
            f"cannot write pictures to {folder}: {error.strerror}", fix="choose a folder that can be written"
        ) from None
    return written


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text).strip("-") or "unnamed"


def _report(bench: BenchReport | Mapping[str, Any]) -> BenchReport:
    if isinstance(bench, BenchReport):
        return bench
    found = read([bench]).benches
    if not found:
        raise OpwrightError("a check has no times to draw", fix="pass a file written by opwright bench --json")
    return found[0]


def _svg(make: Callable[..., Figure], *arguments: Any) -> str:
    return draw("svg", make, *arguments).decode()
