"""Marks the wrong kernels of the operators in this folder, each with the check that has to find it."""

from __future__ import annotations

__all__ = ["FAULTS", "wrong"]

FAULTS: dict[str, str] = {}


def wrong(operator, check):
    """Attach a kernel in Python that is wrong, and has to be found by a check."""

    def attach(function):
        FAULTS[f"{operator.contract.name}:{function.__name__}"] = check
        return operator.python(function)

    return attach
