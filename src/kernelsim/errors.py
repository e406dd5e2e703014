"""Every exception that kernelsim raises. A message states what happened and where; ``fix`` states what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CompileError",
    "FindingError",
    "KernelError",
    "KernelsimError",
    "LaunchError",
    "NotSimulatedError",
    "RefusedError",
]


class KernelsimError(Exception):
    """Base of all of them. ``str(error)`` is the message followed by the remedy."""

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.fix}" if self.fix else self.message


class KernelError(KernelsimError):
    """A source, an option or the name of a kernel is wrong."""


class RefusedError(KernelError):
    """A kernel cannot run in the simulator: it uses a feature of the language that is refused, or a tool is missing."""


class NotSimulatedError(RefusedError):
    """The simulator does not have an operation or a type that a kernel needs."""


class CompileError(KernelError):
    """A source does not compile. ``log`` holds the compiler's whole output."""

    def __init__(self, message: str, *, log: str = "", fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.log = log


class LaunchError(KernelError):
    """A kernel was called with a grid, a block or arguments that it does not take. Nothing ran."""


class FindingError(KernelError):
    """A kernel has errors. ``findings`` has a record of each."""

    def __init__(self, message: str, *, findings: Sequence[Any] = (), fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.findings = tuple(findings)
