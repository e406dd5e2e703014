"""The rows of the self-test: which kernel has which fault, and the check that has to find it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opwright.runtime.op import Op

__all__ = ["FILES", "Row", "attach", "correct", "planted", "rows"]

# The files with operators, each with a list ``ROWS``.
FILES = (
    "elementwise", "state", "peak_memory", "deception", "reductions", "infinities", "models.language_model",
    "models.attention", "models.training", "arguments", "gradients", "registrations", "functions", "native", "gpu",
    "determinism", "communication",
)  # fmt: skip

# The checks that run on a right kernel, and on one with a fault besides that which has to find it.
_OF_PLANTED = ("memory", "values")
_OF_RIGHT = (
    "memory", "values", "special values", "metadata", "inputs unchanged", "global state", "repeated calls",
    "peak memory", "execution context", "threads", "own work", "protected memory",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Row:
    """One kernel of the self-test.

    Attributes:
        defect: the fault, in words; of a right kernel, what is suspicious about it.
        expected: the check that has to find the fault; empty if there is none.
        checks: those that run.
    """

    op: Op
    kernel: str
    defect: str
    expected: str
    checks: tuple[str, ...]

    @property
    def backend(self) -> str:
        return self.op.kernels[self.kernel].backend if self.kernel in self.op.kernels else "torch"


def planted(op: Op, kernel: str, expected: str, *, defect: str = "", checks: Sequence[str] = _OF_PLANTED) -> Row:
    """A kernel with a fault."""
    return Row(op, kernel, defect or kernel, expected, tuple(dict.fromkeys((*checks, expected))))


def correct(op: Op, kernel: str, *, defect: str = "", checks: Sequence[str] = _OF_RIGHT) -> Row:
    """A right kernel."""
    return Row(op, kernel, defect or kernel, "", tuple(checks))


def attach(
    op: Op,
    faults: Mapping[str, tuple[str, Callable[..., Any]]],
    right: Mapping[str, Callable[..., Any]],
    *,
    checks: Sequence[str] = _OF_RIGHT,
    beside: Sequence[str] = _OF_PLANTED,
    for_cpu: Collection[str] = (),
) -> list[Row]:
    """Attach functions in Python as kernels. ``faults`` has the check that has to find each, and the function;
    ``checks`` run on right ones, ``beside`` on others besides the one that has to find the fault; ``for_cpu`` names
    those that read or write memory by address."""
    for name, function in {**{name: f for name, (_, f) in faults.items()}, **right}.items():
        op.python(function, name=name, devices=["cpu"] if name in for_cpu else None)
    return [
        *(planted(op, name, check, checks=beside) for name, (check, _) in faults.items()),
        *(correct(op, name, checks=checks) for name in right),
    ]


def rows(files: Sequence[str] = FILES) -> list[Row]:
    """The rows of some files; those of languages that are not installed are left out."""
    found: list[Row] = []
    for name in files:
        found += importlib.import_module(f"opwright.planted.kernels.{name}").ROWS
    return found
