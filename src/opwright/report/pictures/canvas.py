"""Shared by the plots: style, logarithmic axes, formatted ticks, labels that do not overlap.

Colours have a contrast of three to one with white and black, and differ for colour-blind readers (Okabe and Ito,
darkened if they were too light); markers differ too. Neutral elements have one mid-grey, which a page
may replace by its own text colour.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opwright.errors import OpwrightError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLORS",
    "MARKERS",
    "NARROW",
    "NEUTRAL",
    "apart",
    "available",
    "draw",
    "make_axes",
    "make_figure",
    "shorten",
    "tick",
    "without_zeros",
]

NEUTRAL = "#7b7b7c"
COLORS = ("#2a7ab9", "#d55e00", "#008f68", "#b7609b", "#a67400", "#5d6fd6", "#8a8f00", "#c0496b")
MARKERS = "os^DvPX*"
_STYLE: Any = {
    "svg.hashsalt": "opwright",
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud, and has the page's font
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.parse_math": False,  # a kernel named a$b$ is not a formula
    "text.color": NEUTRAL,
    "axes.labelcolor": NEUTRAL,
    "axes.edgecolor": NEUTRAL,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": NEUTRAL,
    "ytick.color": NEUTRAL,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "grid.color": NEUTRAL,
    "grid.alpha": 0.22,
    "grid.linewidth": 0.6,
}
# In points; a page shows a point as about one CSS pixel, so that this fits the width of a phone.
NARROW = 360.0


def available() -> bool:
    """Whether matplotlib is installed. Does not import it."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(kind: str, make: Callable[..., Figure], *arguments: Any) -> bytes:
    """The contents of a picture file of kind svg or png.

    It does not use pyplot, so that the caller's figures, settings and backend are not changed.
    """
    if not available():
        raise OpwrightError("pictures need matplotlib, which is not installed", fix="pip install matplotlib")
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        options: dict[str, Any] = {"metadata": {"Date": None, "Creator": None}} if kind == "svg" else {"dpi": 200}
        make(*arguments).savefig(file, format=kind, transparent=True, **options)
    return file.getvalue()


def make_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72)


def make_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Log-log axes at a position in points, with a grid behind."""
    total_width, total_height = figure.get_size_inches() * 72
    axes = figure.add_axes((left / total_width, bottom / total_height, width / total_width, height / total_height))
    axes.set(xscale="log", yscale="log", axisbelow=True)
    axes.grid(True, which="major")
    axes.tick_params(which="both", length=0, pad=5)
    return axes


def tick(axes: Axes, which: str, text: Callable[[float], str], base: float = 10, most: int = 6) -> None:
    """Set ticks at powers of ``base``, at most ``most``, formatted by ``text``."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    lo, hi = axes.get_xlim() if which == "x" else axes.get_ylim()
    first, last = math.ceil(math.log(lo, base) - 1e-9), math.floor(math.log(hi, base) + 1e-9)
    places = [base**p for p in range(first, last + 1, max(1, math.ceil((last - first + 1) / most)))]
    if len(places) < 2 and base == 10:  # less than a decade: 1, 2, 5
        decades = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
        places = [f * 10.0**d for d in decades for f in (1, 2, 5) if lo <= f * 10.0**d <= hi]
    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_ticklabels([without_zeros(text(p)) for p in places])


def without_zeros(text: str) -> str:
    """``10 µs`` for ``10.0 µs``: a tick is exact."""
    return re.sub(r"\.0+(?= |$)", "", text)


def apart(places: Sequence[float], gap: float, lo: float, hi: float) -> list[float]:
    """Ascending positions, moved by a sweep up and a sweep down so that neighbours have a distance of ``gap``."""
    moved = list(places)
    for i in range(len(moved)):
        moved[i] = max(moved[i], lo if i == 0 else moved[i - 1] + gap)
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], hi if i == len(moved) - 1 else moved[i + 1] - gap)
    return moved


def shorten(text: str, most: int = 17) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
