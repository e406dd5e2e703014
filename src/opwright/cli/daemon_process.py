"""``python -m opwright.cli.daemon_process FOLDER`` is the daemon: it imports what every command imports."""

import sys
from pathlib import Path

from opwright import cli
from opwright.workers.daemon import process

_IMPORTS = (
    "opwright.checks.run", "opwright.report.files", "opwright.report.html", "opwright.report.terminal.check",
    "opwright.report.terminal.progress", "jaxtyping", "triton",
)  # fmt: skip

if __name__ == "__main__":
    process.main(Path(sys.argv[1]), _IMPORTS, cli.read_arguments_once, cli.run)
