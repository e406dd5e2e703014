"""The versions that results depend on, in words."""

from __future__ import annotations

import importlib.metadata

from opwright.machine import Compiler, Machine

__all__ = ["versions_of"]


def versions_of(machine: Machine) -> dict[str, str]:
    """What has to be equal on all machines of a sweep, and in a run that takes up an earlier one."""
    return {
        "opwright": _own_version(),
        "Python": machine.python,
        "torch": machine.torch,
        "Triton": machine.triton or "none",
        "C++": _version(machine.cxx),
        "nvcc": _version(machine.nvcc),
        "Mojo": _version(machine.mojo),
    }


def _version(compiler: Compiler | None) -> str:
    return compiler.version if compiler is not None else "none"


def _own_version() -> str:
    try:
        return importlib.metadata.version("opwright")
    except importlib.metadata.PackageNotFoundError:  # a source tree on the path
        return "of a source tree"
