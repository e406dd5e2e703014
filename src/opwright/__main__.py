"""``opwright``, or ``python -m opwright``: in a fork of the daemon for this environment, if there is one, else here.

The command line is imported in the second case only: that takes longer than to ask the daemon.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from opwright.workers.daemon.client import is_forked, run_command

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line, and exit with its code."""
    code = run_command(sys.argv) if is_forked(sys.argv[1:]) else None
    if code is not None and code >= 0:
        sys.exit(code)
    try:
        from opwright.cli import run
        from opwright.cli.common import FAILED
    except KeyboardInterrupt:
        print("opwright: interrupted before the command began", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)  # INTERRUPTED, which may not be imported

    if code is None:
        run()
    print(f"opwright: ended by {signal.Signals(-code).name} before the command did", file=sys.stderr)
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
