"""``python -m opwright`` is ``opwright``."""

from opwright.cli import main

main()
