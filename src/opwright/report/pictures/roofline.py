"""The roofline plot: achieved FLOP/s over arithmetic intensity, under the machine's measured limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opwright.report.format import bandwidth, baselines, flop_rate, flops_text, percent, short_name, significant
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
    without_zeros,
)
from opwright.results import BenchReport, Measurement, RooflineLimit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["roofline_figure", "roofline_points"]

_WIDE = 900.0


def roofline_points(bench: BenchReport) -> list[Measurement]:
    """The measurements that a roofline can show: forwards, cold (or warm, if none is cold), with FLOPs and bytes."""
    colds = [m for m in bench.measurements if m.cache == "cold"]
    return [m for m in colds or bench.measurements if flop_rate(m) and m.bytes > 0]


def roofline_figure(bench: BenchReport, narrow: bool) -> Figure:
    points = roofline_points(bench)
    width, height = (NARROW, 330.0) if narrow else (_WIDE, 420.0)
    figure = make_figure(width, height)
    axes = make_axes(figure, 74, 42, width - 74 - 12, height - 42 - 18)
    slopes, flats = _slopes(bench.roofline), _flats(bench.roofline, points)
    _set_roofline_limits(axes, points, slopes, flats)
    tick(axes, "x", lambda x: significant(x, 1))
    tick(axes, "y", flops_text)
    axes.set_xlabel("arithmetic intensity (FLOP per byte)", labelpad=4)
    for (name, rate), dashed in zip(slopes, (False, True), strict=False):
        _draw_slope(axes, name, rate, max((r for _, r in flats), default=math.inf), dashed=dashed)
    for name, rate in flats:
        _draw_flat(axes, name, rate, slopes[0][1] if slopes else None)
    _draw_points(axes, points)
    return figure


def _slopes(roofline: Iterable[RooflineLimit]) -> list[tuple[str, float]]:
    """The bandwidth of memory (cold, the largest size), and of the cache if it is clearly higher."""
    by_name = {c.name: c.by for c in roofline if c.unit == "B/s" and c.by}
    cold = by_name.get("bandwidth cold") or next(iter(by_name.values()), None)
    if not cold:
        return []
    memory = cold[max(cold, key=_as_number)]
    cache = max(rate for rates in by_name.values() for rate in rates.values())
    found = [(f"memory {significant(memory / 1e9)} GB/s", memory)]
    return found + ([(f"cache {significant(cache / 1e9)} GB/s", cache)] if cache > 1.2 * memory else [])


def _as_number(text: str) -> float:
    return float(text) if text.isdigit() else -1.0


def _flats(roofline: Iterable[RooflineLimit], points: Sequence[Measurement]) -> list[tuple[str, float]]:
    """The arithmetic limits of the measured dtypes; of all dtypes if none of those has a limit."""
    rates = {dtype: rate for c in roofline if c.unit == "FLOP/s" for dtype, rate in c.by.items()}
    used = {str(m.case.get("dtype")) for m in points}
    chosen = {d: r for d, r in rates.items() if d in used} or rates
    return [(f"{d} {without_zeros(flops_text(r))}", r) for d, r in chosen.items()]


def _set_roofline_limits(
    axes: Axes, points: Sequence[Measurement], slopes: Sequence[tuple[str, float]], flats: Sequence[tuple[str, float]]
) -> None:
    """Set axes that contain all measurements, and the ridge between the two kinds of limits if possible."""
    intensities = [m.flops / m.bytes for m in points]
    rates = [flop_rate(m) or 1.0 for m in points]
    ridges = [flats[0][1] / slopes[0][1]] if flats and slopes else []
    tops = [r for _, r in flats] or rates
    axes.set_xlim(min(intensities) / 4, max([*intensities, *(4 * r for r in ridges)]) * 4)
    axes.set_ylim(min(rates) / 3, max([*tops, *rates]) * 3)


def _draw_slope(axes: Axes, name: str, rate: float, top: float, *, dashed: bool) -> None:
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    start, end = max(x0, y0 / rate), min(x1, min(top, y1) / rate)
    axes.plot(
        [start, end],
        [start * rate, end * rate],
        color=NEUTRAL,
        linewidth=0.9 if dashed else 1.6,
        linestyle=(0, (4, 3)) if dashed else "-",
    )
    a, b = axes.transData.transform([(start, start * rate), (end, end * rate)])
    angle = math.atan2(b[1] - a[1], b[0] - a[0])
    # Beside the line, and towards the ridge, because measurements are dense at its lower end.
    shift = 9.0 if dashed else -9.0
    x, y = a + 0.74 * (b - a) + [-shift * math.sin(angle), shift * math.cos(angle)]
    axes.annotate(
        name,
        (x, y),
        xycoords="figure pixels",
        rotation=math.degrees(angle),
        ha="center",
        va="center",
        rotation_mode="anchor",
        fontsize=9,
    )


def _draw_flat(axes: Axes, name: str, rate: float, slope: float | None) -> None:
    x0, x1 = axes.get_xlim()
    ridge = max(x0, rate / slope) if slope else x0
    axes.plot([ridge, x1], [rate, rate], color=NEUTRAL, linewidth=1.6)
    axes.annotate(name, (ridge, rate), (2, 5), textcoords="offset points", ha="left", va="bottom", fontsize=9)


def _draw_points(axes: Axes, points: Sequence[Measurement]) -> None:
    """Draw all kernels small and faint, and the best of each operator at its largest size in full, with its name."""
    groups: dict[str, list[Measurement]] = {}
    for m in points:
        groups.setdefault(m.op, []).append(m)
    labels = []
    for i, (op, group) in enumerate(groups.items()):
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        xs, ys = [m.flops / m.bytes for m in group], [flop_rate(m) or 1.0 for m in group]
        axes.scatter(xs, ys, s=14, marker=marker, color=color, alpha=0.4, linewidths=0.8)
        best = _best(group)
        at = (best.flops / best.bytes, flop_rate(best) or 1.0)
        axes.scatter(*at, s=46, marker=marker, color=color, linewidths=1.4, zorder=3)
        share = percent(best.roofline_fraction)
        labels.append((short_name(op) + (f" {share}" if share != "–" else ""), color, at))
    _label_points(axes, labels)


def _best(group: Sequence[Measurement]) -> Measurement:
    """The fastest kernel at the largest size, without baselines if there are other kernels."""
    against = baselines(group)
    own = [m for m in group if m.kernel not in against] or list(group)
    largest = max(m.bytes for m in own)
    return max((m for m in own if m.bytes == largest), key=lambda m: bandwidth(m) or 0)


def _label_points(axes: Axes, labels: Sequence[tuple[str, str, tuple[float, float]]]) -> None:
    """Draw names beside their points. Points that are close share one column of names, with a line to each."""
    placed: list[_Label] = []
    for name, color, at in labels:
        x, y = map(float, axes.transData.transform(at))
        placed.append((x, y, name, color))
    placed.sort()
    columns: list[list[_Label]] = []
    for entry in placed:
        if columns and entry[0] - columns[-1][-1][0] < _LABEL_WIDTH:
            columns[-1].append(entry)
        else:
            columns.append([entry])
    for column in columns:
        _label_column(axes, sorted(column, key=lambda entry: entry[1]))


# The position of a point in pixels, its text and colour.
_Label = tuple[float, float, str, str]
_LABEL_WIDTH = 130.0


def _label_column(axes: Axes, column: Sequence[_Label]) -> None:
    (left, bottom), (right, top) = axes.transAxes.transform([(0, 0), (1, 1)])
    # Below the points, not beside them, because the limit rises to their right.
    highest = min(top, column[-1][1]) - 8
    heights = apart([y - 8 for _, y, _, _ in column], 13.5, bottom + 8, highest)
    rightmost, leftmost = max(entry[0] for entry in column), min(entry[0] for entry in column)
    to_the_right = rightmost + 14 + _LABEL_WIDTH <= right or leftmost - left < right - rightmost
    at = rightmost + 14 if to_the_right else leftmost - 14
    for (x, y, name, color), height in zip(column, heights, strict=True):
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "alpha": 0.7, "shrinkA": 1, "shrinkB": 4}
        axes.annotate(
            shorten(name, 30),
            (x, y),
            (at, height),
            xycoords="figure pixels",
            textcoords="figure pixels",
            color=color,
            ha="left" if to_the_right else "right",
            va="center",
            fontweight="bold",
            arrowprops=line if math.hypot(at - x, height - y) > 18 else None,
        )
