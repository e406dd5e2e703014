"""Wrappers of private functions of ``atexit``, for forks that end without Python's finalization."""

from __future__ import annotations

import atexit

__all__ = ["forget_exit_functions", "run_exit_functions"]


def forget_exit_functions() -> None:
    """Leave what the parent has registered for its own end to the parent."""
    atexit._clear()


def run_exit_functions() -> None:
    """Run what this process has registered, in the order in which Python would."""
    atexit._run_exitfuncs()
