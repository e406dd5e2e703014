"""Makes the pictures of the README and the site from real runs: ``python docs/make_pictures.py [NAME…]``.

A picture of a terminal is what a command prints, in its colours, 96 columns wide. Pictures of times on a GPU are made
from records. The tests compare all pictures with a new run, except for times.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from opwright.report.pictures import figures
from opwright.report.terminal.bench import show_bench
from opwright.results import BenchReport, Comparison, ComparisonVerdict, Estimate, Measurement, RooflineLimit

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURES = REPOSITORY / "docs" / "pictures"
COLUMNS = 96
# The commands of terminals. They run in a folder with the README's saxpy.py, in which `i < n` is `i <= n`.
RUN = {
    "finding": "opwright check saxpy.py",
    "check": "opwright check opwright.gallery.trig",
    "demo": "opwright demo",
}
# Times on one H200, by an earlier version of `opwright bench`.
CONV1D = "2026-11-21-h200-conv1d"
KMEANS = "2026-11-21-h200-kmeans"
TIMED = "opwright bench opwright.gallery.conv1d:conv1d --direction forward --size n=10000000,100000000"


def output_of(command: str, folder: Path) -> Text:
    """What a command prints on a terminal, without its progress."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0"}
    run = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return Text.from_ansi(run.stdout.rstrip().replace(f"{REPOSITORY}/", ""))


def wrong_saxpy() -> str:
    """The README's first example, in which the kernel reads one element too many."""
    (example, *_) = re.findall(r"(?s)```python\n(.*?)```", (REPOSITORY / "README.md").read_text())
    return str(example.replace("if (i < n)", "if (i <= n)"))


def run(name: str) -> Text:
    """A terminal in which the command of a picture ran."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "saxpy.py").write_text(wrong_saxpy())
        return typed(RUN[name]) + output_of(RUN[name], Path(folder))


def typed(command: str) -> Text:
    return Text.assemble(("$ ", "green"), (command, "bold"), "\n")


def recorded_bench() -> Text:
    """A terminal with the recorded times of the two larger sizes."""
    report = recorded(CONV1D)
    larger = tuple(m for m in report.measurements if m.case["n"] >= 10_000_000)
    console = recording_console()
    show_bench(console, BenchReport(report.machine, larger))
    return typed(TIMED) + Text.from_ansi(console.export_text(styles=True).rstrip())


def recorded(*names: str) -> BenchReport:
    """Records of one machine in today's form. The earlier one had other names, and no intervals of ratios."""
    records = [json.loads((REPOSITORY / "benchmarks" / "results" / f"{name}.json").read_text()) for name in names]
    limits = tuple(RooflineLimit(**limit) for limit in records[0]["ceilings"])
    measured = [_measurement(old) for record in records for old in record["measurements"]]
    # The Triton kernel of this operator was wrong in float32, as the record says.
    return BenchReport(records[0]["machine"], tuple(m for m in measured if m.op != "gallery::kmeans_sums"), limits)


def _measurement(old: Mapping[str, Any]) -> Measurement:
    unknown = float("nan")
    return Measurement(
        old["op"],
        _name(old["kernel"]),
        "",
        old["device"],
        old["direction"],
        old["case"],
        old["cache"],
        Estimate(**old["device_us"], n=0),
        Estimate(**old["call_us"], n=0),
        old["bytes"],
        old["flops"],
        old["ceiling"],
        old["ceiling_fraction"],
        {
            _name(name): Comparison(ComparisonVerdict(c["verdict"]), c["ratio"], unknown, unknown)
            for name, c in old.get("versus", {}).items()
        },
    )


def _name(kernel: str) -> str:
    return "reference" if kernel == "eager" else kernel


def recording_console() -> Console:
    return Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True)


def drawn(name: str, terminal: Text) -> str:
    """A terminal as SVG."""
    console = recording_console()
    console.print(terminal)
    # Without web fonts, which a page would fetch from elsewhere.
    svg = re.sub(r"(?s)@font-face \{.*?\}", "", console.export_svg(title="opwright", unique_id=name))
    return svg.replace("Fira Code", "DejaVu Sans Mono")


def picture(name: str) -> str:
    """A picture as SVG."""
    if name in RUN:
        svg = drawn(name, run(name))
    elif name == "bench":
        svg = drawn(name, recorded_bench())
    elif name == "times":
        svg = figures.time_over_size(recorded(CONV1D), "gallery::conv1d")
    else:
        svg = figures.roofline(recorded(CONV1D, KMEANS))
    return re.sub(r"(?m)[ \t]+$", "", svg)


if __name__ == "__main__":
    for each in sys.argv[1:] or (*RUN, "bench", "times", "roofline"):
        (PICTURES / f"{each}.svg").write_text(picture(each))
