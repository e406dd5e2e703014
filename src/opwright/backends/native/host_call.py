"""Calling a host function that was built: through torch's dispatcher, or past it where that gives the same.

The dispatcher finds a private operator by its schema, and converts Python's objects by that schema and back: an
addition of 1,024 floats takes 1.9 µs through it and 0.8 µs past it (benchmarks/results/2026-11-21-cpu-calls.json). A
shared object therefore also exports its host function as a function of Python's own (``templates/python_call.h``). It
asks nothing of its arguments, so only calls that were recognised as like an earlier one come through it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends.base import Launch
from opwright.backends.native.tensor_access import access_to_tensors
from opwright.contract.contract import Contract
from opwright.internals.registration import call_directly

__all__ = ["HostFunction", "load_host_function"]

_EXPORTED = "opwright_python_function"


class HostFunction:
    """A host function, loaded: takes the operator's arguments flat, in signature order."""

    def __init__(self, through_dispatcher: Launch, direct: Launch | None) -> None:
        self._through_dispatcher = through_dispatcher
        self._direct = direct

    def __call__(self, *arguments: Any) -> Any:
        return self._through_dispatcher(*arguments)

    def for_calls_like(self, arguments: Sequence[Any]) -> Launch:
        """See ``base.launch_for_calls_like``: nobody listens to such calls, and their tensors are torch's own."""
        return self._direct or self._through_dispatcher


def load_host_function(file: Path, unique: str, contract: Contract) -> HostFunction:
    """Load a shared object that a binding made, once for the process."""
    if not hasattr(torch.ops.opwright_kernels, unique):
        torch.ops.load_library(str(file))
    operator = call_directly(getattr(torch.ops.opwright_kernels, unique).default)
    return HostFunction(contract.signature.flat(operator), _direct(file))


def _direct(file: Path) -> Launch | None:
    """The host function as Python's; None where it was built without Python's headers, has arguments that only the
    dispatcher passes, or this torch keeps its tensors in a way that is not known."""
    make = getattr(ctypes.PyDLL(str(file)), _EXPORTED, None)
    access = access_to_tensors()
    if make is None or access is None:
        return None
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_size_t, ctypes.c_void_p]
    function: Callable[..., Any] | None = make(*access)
    return function
