"""Every exception that opwright raises, one class for each kind of mistake.

A message states what happened and where; ``fix`` states what to do next. This file imports nothing, so that every other
file may import it.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "CacheError",
    "CheckError",
    "CheckFailedError",
    "CompileError",
    "CompileTimeoutError",
    "ContractError",
    "CudaGraphError",
    "FastCallError",
    "KernelError",
    "KernelRefusedError",
    "LaunchError",
    "NameClashError",
    "NotSimulatedError",
    "OpwrightError",
    "SignatureMismatchError",
    "SimulatorError",
    "TargetError",
]


class OpwrightError(Exception):
    """Base of all of them. ``str(error)`` is the message followed by the remedy."""

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.fix}" if self.fix else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.fix, self.__dict__)


def _rebuild(cls: type[OpwrightError], message: str, fix: str | None, state: dict[str, object]) -> OpwrightError:
    error = cls.__new__(cls)
    OpwrightError.__init__(error, message, fix=fix)
    error.__dict__.update(state)
    return error


class ContractError(OpwrightError, TypeError):
    """The decorated function does not state a complete contract (raised at definition)."""


class NameClashError(ContractError):
    """The operator's name is taken by another library or another file."""


class FastCallError(OpwrightError, RuntimeError):
    """A fast call differs from the plain call (``OPWRIGHT_FAST_CALLS=verify``)."""


class ArgumentError(OpwrightError, ValueError):
    """A call's argument disagrees with the contract (raised before any kernel runs)."""


class KernelError(OpwrightError):
    """A kernel was attached with invalid options, or an unknown kernel was named."""


class SignatureMismatchError(KernelError, TypeError):
    """A kernel's parameters differ from its operator's (raised when it is attached)."""


class KernelRefusedError(KernelError, RuntimeError):
    """A kernel that was selected by name cannot run here, or not on these inputs."""


class NotSimulatedError(KernelRefusedError):
    """A simulator does not have something that a kernel needs."""


class CompileError(KernelError, RuntimeError):
    """A kernel's source did not compile. ``log`` holds the compiler's whole output.

    ``result`` is NumPy's result, if the call that was refused ran in NumPy after all.
    """

    def __init__(self, message: str, *, log: str = "", fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.log = log
        self.result: object = None


class CompileTimeoutError(KernelRefusedError):
    """A compilation during a check took longer than its own limit, and was stopped: that says nothing of the kernel."""


class LaunchError(KernelError, TypeError):
    """A GPU kernel was called with a grid, a block or arguments that it does not take (raised before the launch)."""


class CudaGraphError(OpwrightError, RuntimeError):
    """A call cannot be replayed as a CUDA graph, or values for its backward have been overwritten."""


class SimulatorError(KernelError, RuntimeError):
    """The simulator found errors in a CUDA kernel. ``findings`` has a record of each."""

    def __init__(self, message: str, *, findings: tuple[object, ...] = (), fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.findings = findings


class CacheError(OpwrightError, OSError):
    """The artifact cache cannot store an artifact."""


class TargetError(OpwrightError):
    """A target (a file, ``module``, ``module:op``) does not exist or has no such operator."""


class CheckError(OpwrightError):
    """A check was requested with an invalid option (an unknown kernel, a malformed case)."""


class CheckFailedError(OpwrightError, AssertionError):
    """A kernel failed its check, a step did not end in time, or nothing could run. ``report`` is the whole report."""

    def __init__(self, message: str, *, report: object = None, fix: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.report = report
