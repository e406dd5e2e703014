"""The self-test: kernels with one planted fault each, and right ones, which show what this installation catches.

Each file has operators of one kind, with kernels of both sorts; ``catalogue.py`` collects them, ``run.py`` checks them.
``opwright selftest`` prints the result.
"""

from __future__ import annotations

__all__: list[str] = []
