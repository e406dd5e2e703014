"""Calls a compiled host function, through torch's dispatcher or directly.

The dispatcher finds a private operator by its schema, and converts Python's objects by that schema and back: an
addition of 1,024 floats takes 2.0 µs through it and 0.7 µs without it
(benchmarks/results/2026-11-28-cpu-call-overhead.json).
A shared object therefore also exports its host function as a Python function (``templates/python_call.h``). That
function does not check its arguments, which an operator has checked and the dispatcher has converted before a kernel
runs. It takes plain tensors; others go through the dispatcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends.base import Launch
from opwright.backends.native.python_function import python_function
from opwright.contract.contract import Contract
from opwright.internals.registration import call_directly

__all__ = ["HostFunction", "load_host_function"]


class HostFunction:
    """A loaded host function. It takes the operator's arguments flat, in signature order."""

    for_any_size = True

    def __init__(self, through_dispatcher: Launch, direct: Launch | None) -> None:
        self._through_dispatcher = through_dispatcher
        self._direct = direct

    def __call__(self, *arguments: Any) -> Any:
        if self._direct is not None and all(map(_is_plain, arguments)):
            return self._direct(*arguments)
        return self._through_dispatcher(*arguments)

    def for_calls_like(self, arguments: Sequence[Any]) -> Launch:
        """See ``base.launch_for_calls_like``. Such calls have no dispatch modes and no tensor subclasses."""
        return self._direct or self._through_dispatcher


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, bool, int, float, type(None)})


def _is_plain(argument: Any) -> bool:
    """Whether the direct function takes an argument: no list, and no subclass, which may be a tensor without memory."""
    return type(argument) in _PLAIN


def load_host_function(file: Path, unique: str, contract: Contract) -> HostFunction:
    """Load the shared object of a binding, once per process."""
    if not hasattr(torch.ops.opwright_kernels, unique):
        torch.ops.load_library(str(file))
    operator = call_directly(getattr(torch.ops.opwright_kernels, unique).default)
    return HostFunction(contract.signature.flat(operator), python_function(file, unique))
