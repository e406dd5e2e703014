"""Time over size: one panel for each operator, direction, device and dtype, with a line for each kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opwright.report.format import baselines, bytes_text, is_number, short_name, time_text
from opwright.report.pictures.canvas import (
    COLORS,
    MARKERS,
    NARROW,
    NEUTRAL,
    apart,
    make_axes,
    make_figure,
    shorten,
    tick,
)
from opwright.results import BenchReport, Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Panel", "panels", "panels_figure"]

_HEIGHT = 330.0


@dataclass(frozen=True)
class Panel:
    """One plot of time over size; its measurements differ only in kernel, size and cache."""

    op: str
    direction: str
    device: str
    variant: str
    axis: str
    measurements: tuple[Measurement, ...]
    compared_with: tuple[str, ...]
    size: Callable[[Measurement], float]

    @property
    def main(self) -> str:
        """The state of the cache whose times are drawn in full: cold, if that was measured."""
        return "cold" if any(m.cache == "cold" for m in self.measurements) else self.measurements[0].cache

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (f"{short_name(self.op)} {self.direction}", self.variant)))


def panels(bench: BenchReport, op: str | None = None) -> list[Panel]:
    """The plots of time over size of a benchmark: those with at least two sizes."""
    groups: dict[tuple[str, str, str, str], list[Measurement]] = {}
    several_devices = len({m.device for m in bench.measurements}) > 1
    for m in bench.measurements:
        if op in (None, m.op):
            other_values = [str(v) for v in m.case.values() if _size(v) is None]
            variant = " ".join([*other_values, *([m.device] if several_devices else [])])
            groups.setdefault((m.op, m.direction, m.device, variant), []).append(m)
    found = []
    for (name, direction, device, variant), group in groups.items():
        axis, size = _size_axis(group)
        if len({size(m) for m in group}) > 1:
            against = tuple(baselines(group))
            found.append(Panel(name, direction, device, variant, axis, tuple(group), against, size))
    return found


_BYTES = "least bytes moved"


def _size_axis(group: Sequence[Measurement]) -> tuple[str, Callable[[Measurement], float]]:
    """The dim that varies; if several do (or one without a single size), the minimum of bytes to move."""
    varying = [d for d in group[0].case if len({str(m.case.get(d)) for m in group}) > 1]
    if len(varying) == 1 and all(isinstance(m.case.get(varying[0]), int) for m in group):
        dim = varying[0]
        return dim, lambda m: float(m.case[dim])
    return _BYTES, lambda m: float(m.bytes)


def _size(value: Any) -> int | None:
    """A dim's size as a count of elements; None if the value is something else, such as a dtype."""
    if isinstance(value, list | tuple) and all(isinstance(v, int) for v in value):
        return math.prod(value)
    if isinstance(value, str) and re.fullmatch(r"\d+(x\d+)*|-", value):
        return math.prod(map(int, re.findall(r"\d+", value)))
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def panels_figure(found: Sequence[Panel]) -> Figure:
    """Each panel has the times, and below them the ratio of each to the fastest."""
    figure = make_figure(NARROW * len(found), _HEIGHT)
    for i, panel in enumerate(found):
        left, width = i * NARROW + 50, NARROW - 50 - 112
        above = make_axes(figure, left, 128, width, _HEIGHT - 128 - 34)
        below = make_axes(figure, left, 42, width, 66)
        _draw_panel(above, panel)
        _draw_ratios(below, panel, above.get_xlim())
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    ends: list[tuple[str, str, str, float]] = []
    for kernel, (color, marker) in _styles(panel).items():
        if warm := _line(panel, kernel, "warm" if panel.main == "cold" else ""):
            _draw_line(axes, panel, warm, {"color": color, **_WEAK})
        if line := _line(panel, kernel, panel.main):
            _draw_line(axes, panel, line, {"color": color, "marker": marker, **_STRONG})
            ends.append((kernel, color, marker, line[-1].time_us.median))
    axes.margins(0.06, 0.1)
    axes.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold", pad=14)
    _freeze(axes)
    _tick_sizes(axes, panel)
    axes.tick_params(labelbottom=False)
    tick(axes, "y", time_text, most=5)
    _label_ends(axes, ends)


def _draw_ratios(axes: Axes, panel: Panel, x_limits: tuple[float, float]) -> None:
    """Draw the ratios to the fastest kernel, which distinguish lines that overlap in the plot above."""
    fastest: dict[float, float] = {}
    for m in panel.measurements:
        if m.cache == panel.main and m.time_us.median > 0:
            fastest[panel.size(m)] = min(m.time_us.median, fastest.get(panel.size(m), math.inf))
    worst = 1.0
    for kernel, (color, marker) in _styles(panel).items():
        line = _line(panel, kernel, panel.main)
        ratios = [m.time_us.median / fastest[panel.size(m)] for m in line]
        worst = max([worst, *ratios])
        axes.plot([panel.size(m) for m in line], ratios, color=color, marker=marker, markersize=3, linewidth=1.1)
    axes.set_xlim(*x_limits)
    _tick_sizes(axes, panel)
    axes.set_xlabel(panel.axis, labelpad=4)
    _tick_ratios(axes, worst)
    axes.annotate("× the fastest", (0, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", fontsize=8.5)


def _tick_ratios(axes: Axes, worst: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if worst > 4:
        axes.set_ylim(0.8, worst * 1.3)
        tick(axes, "y", lambda r: f"{r:,g} ×", most=3)
        return
    axes.set_yscale("linear")
    span = max(worst - 1, 0.02)
    axes.set_ylim(1 - 0.12 * span, 1 + 1.15 * span)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda r, _: f"{r:.3g} ×"))


def _freeze(axes: Axes) -> None:
    """Fix the limits, so that later drawing does not change them."""
    axes.set_ylim(*axes.get_ylim())
    axes.set_xlim(*axes.get_xlim())


def _tick_sizes(axes: Axes, panel: Panel) -> None:
    of_bytes = panel.axis == _BYTES
    tick(axes, "x", bytes_text if of_bytes else _count, base=4 if of_bytes else 2, most=4)


def _line(panel: Panel, kernel: str, cache: str) -> list[Measurement]:
    """One kernel's measurements by size, without those that a logarithmic axis cannot show."""
    chosen = (m for m in panel.measurements if (m.kernel, m.cache) == (kernel, cache))
    return sorted((m for m in chosen if is_number(m.time_us.median) and m.time_us.median > 0), key=panel.size)


def _styles(panel: Panel) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each kernel; baselines are grey."""
    kernels = list(dict.fromkeys(m.kernel for m in panel.measurements))
    own = [k for k in kernels if k not in panel.compared_with] + [k for k in kernels if k in panel.compared_with]
    return {
        k: (NEUTRAL if k in panel.compared_with else COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)])
        for i, k in enumerate(own)
    }


_STRONG: dict[str, Any] = {"markersize": 4, "linewidth": 1.5, "capsize": 2.5, "elinewidth": 1.1}
_WEAK: dict[str, Any] = {"linestyle": (0, (3, 2.5)), "linewidth": 0.9, "alpha": 0.75, "elinewidth": 0.7}


def _draw_line(axes: Axes, panel: Panel, line: Sequence[Measurement], style: Mapping[str, Any]) -> None:
    times = [m.time_us for m in line]
    spans = [
        [max(0.0, t.median - t.lo) if is_number(t.lo) else 0.0 for t in times],
        [max(0.0, t.hi - t.median) if is_number(t.hi) else 0.0 for t in times],
    ]
    axes.errorbar([panel.size(m) for m in line], [t.median for t in times], yerr=spans, **style)


def _label_ends(axes: Axes, ends: Sequence[tuple[str, str, str, float]]) -> None:
    """Draw each line's marker and name beside its end, moved apart where lines meet, in the lines' order."""
    order = sorted(ends, key=lambda e: e[3])
    heights = [float(axes.transData.transform((axes.get_xlim()[1], t))[1]) for *_, t in order]
    bottom, top = axes.transAxes.transform((0, 0))[1], axes.transAxes.transform((0, 1))[1]
    for (name, color, marker, _), height in zip(order, apart(heights, 13.0, bottom, top), strict=True):
        place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "color": color}
        y = (height - bottom) / (top - bottom)
        axes.plot([1.045], [y], marker=marker, markersize=4, **place)
        axes.text(1.085, y, shorten(name), va="center", **place)


def _count(number: float) -> str:
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if number >= 8 * scale and number % scale == 0:
            return f"{number / scale:g}{unit}i"
    return f"{number:g}"
