"""Where a kernel runs: on which device, and which engine runs it there.

Environment variables: ``OPWRIGHT_CUDA_SIMULATOR=1`` and ``TRITON_INTERPRET=1`` switch engines on for kernels that get
CPU tensors outside of checks. A check sets the engine of its worker processes itself.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Engine", "Target", "engines_here", "targets_here", "use_engine"]


class Engine(StrEnum):
    """What runs a kernel."""

    NATIVE = "native"  # the device that it is written for
    SIMULATOR = "simulator"  # a kernel for GPUs on the CPU, compiled by kernelsim, with every access checked
    INTERPRETER = "interpreter"  # a Triton kernel on the CPU, in Triton's interpreter


# The name of a CPU with the simulators, on the command line and in reports.
_CPU_SIM = "cpu-sim"


@dataclass(frozen=True)
class Target:
    """A device and an engine.

    Attributes:
        device: the type of the tensors' device, as torch names it.
    """

    device: str
    engine: Engine = Engine.NATIVE

    @classmethod
    def named(cls, name: str) -> Target:
        """The target that the command line and reports call ``name``: a type of device, or ``cpu-sim``."""
        return cls("cpu", Engine.SIMULATOR) if name == _CPU_SIM else cls(name)

    def __str__(self) -> str:
        return _CPU_SIM if self.engine is Engine.SIMULATOR else self.device


# The engine that a check has set for this process.
_of_check: list[Engine] = []


def use_engine(engine: Engine) -> None:
    """From now on, this process runs kernels for GPUs on CPU tensors with ``engine``, whatever its variables say."""
    _of_check[:] = [engine]


def engines_here() -> tuple[Engine, ...]:
    """The engines other than the native one that run kernels for GPUs on CPU tensors in this process. Triton kernels
    take the first one."""
    return tuple(e for e in _of_check or _of_environment() if e is not Engine.NATIVE)


def targets_here(device: str) -> list[Target]:
    """The targets on a type of device in this process, in the order in which kernels take them."""
    return [Target(device), *(Target(device, engine) for engine in engines_here() if device == "cpu")]


@functools.cache
def _of_environment() -> tuple[Engine, ...]:
    variables = {"TRITON_INTERPRET": Engine.INTERPRETER, "OPWRIGHT_CUDA_SIMULATOR": Engine.SIMULATOR}
    return tuple(engine for name, engine in variables.items() if _is_on(name))


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "0").lower() in ("1", "true", "on", "yes")
