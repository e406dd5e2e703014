"""``python -m kernelsim``."""

from __future__ import annotations

import sys

from kernelsim.command import main

if __name__ == "__main__":
    sys.exit(main())
