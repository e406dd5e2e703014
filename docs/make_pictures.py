"""Makes the pictures of the README and the site from real runs: ``python docs/make_pictures.py [NAME…]``.

A picture of a terminal is what a command prints, in its colours, 88 columns wide. Times differ from run to run; the
tests compare the rest with a new run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parent / "pictures"
COLUMNS = 88
# The terminal pictures, each with its commands. They run in a folder with the README's saxpy.py, in which `i < n` is
# `i <= n`.
SHOWN = {
    "finding": ["opwright check saxpy.py"],
    "bench": ["opwright bench saxpy.py --device cpu --quick"],
    "demo": ["opwright demo"],
}


def output_of(command: str, folder: Path) -> str:
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
    return run.stdout.rstrip()


def wrong_saxpy() -> str:
    """The README's first example, in which the kernel reads one element too many."""
    readme = (PICTURES.parent.parent / "README.md").read_text()
    (example, *_) = re.findall(r"(?s)```python\n(.*?)```", readme)
    return str(example.replace("if (i < n)", "if (i <= n)"))


def terminal(name: str) -> Text:
    """A terminal on which the commands of a picture were typed."""
    shown = Text()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "saxpy.py").write_text(wrong_saxpy())
        for command in SHOWN[name]:
            shown += Text.assemble(("$ ", "green"), (command, "bold"), "\n")
            shown += Text.from_ansi(output_of(command, Path(folder))) + Text("\n")
    return shown


def make(name: str) -> None:
    """Write ``docs/pictures/NAME.svg``."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(terminal(name))
    # Without web fonts, which a page would fetch from elsewhere.
    svg = re.sub(r"(?s)@font-face \{.*?\}", "", console.export_svg(title="opwright", unique_id=name))
    svg = svg.replace("Fira Code", "DejaVu Sans Mono")
    (PICTURES / f"{name}.svg").write_text(re.sub(r"(?m)[ \t]+$", "", svg))


if __name__ == "__main__":
    for each in sys.argv[1:] or SHOWN:
        make(each)
