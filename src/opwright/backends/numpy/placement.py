"""The device on which compiled NumPy code makes its arrays: ``np.arange`` and similar functions take no device.

torch.compile runs each NumPy call twice: on fake tensors while it traces, and again when the graph is turned into code.
Both happen under a mode that sets the device. ``with torch.device(...)`` around the whole call would not work:
Dynamo then takes arrays for tensors (torch 2.11 and 2.13), or makes arrays on the CPU all the same (2.15).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opwright.contract.numpy.calls import run_step
from opwright.contract.numpy.facts import NotLikeNumpyError
from opwright.contract.numpy.rules import DefaultFloatDtype
from opwright.errors import KernelRefusedError
from opwright.internals.numpy_layer import (
    arrays_made_by,
    can_place_arrays,
    default_device_is_chosen,
    is_device_constructor,
    reset_run_call,
    set_run_call,
    without_default_device,
)

__all__ = ["arrays_made_on", "numpy_steps", "place_of_arrays", "run_call"]

_place: contextvars.ContextVar[torch.device | None] = contextvars.ContextVar("opwright_numpy_place", default=None)


_float: contextvars.ContextVar[DefaultFloatDtype] = contextvars.ContextVar("opwright_numpy_float", default="float64")


@contextlib.contextmanager
def arrays_made_on(device: torch.device | None, default_float: DefaultFloatDtype = "float64") -> Iterator[None]:
    """A block in which compiled NumPy code follows NumPy's rules and makes its arrays on a device (None: the CPU), and
    ``with torch.device(...)`` around it has no effect.

    Raises:
        KernelRefusedError: this torch makes arrays on the CPU only.
    """
    device = None if device is None or (device.type == "cpu" and not default_device_is_chosen()) else device
    if device is not None and not can_place_arrays():
        raise KernelRefusedError(
            f"NumPy code compiled by torch {torch.__version__} makes its arrays on the CPU, not on {device}",
            fix="pass CPU tensors, or use a torch between 2.11 and 2.15",
        )
    place, floats, steps = _place.set(device), _float.set(default_float), _steps.set([0])
    hidden = without_default_device() if default_device_is_chosen() else contextlib.nullcontext()
    try:
        with arrays_made_by(_run_call_here), hidden:
            yield
    finally:
        _place.reset(place)
        _float.reset(floats)
        _steps.reset(steps)


class numpy_steps:
    """``arrays_made_on(None, ...)`` for a call that must be short: nothing is hidden, and arrays are on the CPU."""

    __slots__ = ("_default_float", "_tokens")

    def __init__(self, default_float: DefaultFloatDtype) -> None:
        self._default_float = default_float

    def __enter__(self) -> None:
        self._tokens = (_place.set(None), _float.set(self._default_float), set_run_call(_run_call_here))

    def __exit__(self, *_: object) -> None:
        place, floats, run = self._tokens
        _place.reset(place)
        _float.reset(floats)
        reset_run_call(run)


def place_of_arrays() -> torch.device | None:
    """The device of the enclosing block."""
    return _place.get()


# torch.compile writes a loop out, step by step, and the time for code generation grows faster than the steps.
_MOST_STEPS = 300
_steps: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("opwright_numpy_steps", default=None)


def _run_call_here(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    steps = _steps.get()
    if steps is not None:
        steps[0] += 1
        if steps[0] > _MOST_STEPS:
            raise NotLikeNumpyError(
                f"more than {_MOST_STEPS} steps in one graph: torch.compile writes loops out",
                'use compiler="numba" or "auto", which compile loops as loops, or compile the body of the loop only',
            )
    return run_call(wrapper, _place.get(), _float.get(), *args, **kwargs)


def run_call(
    wrapper: Any, device: torch.device | None, default_float: DefaultFloatDtype, *args: Any, **kwargs: Any
) -> Any:
    """Run one NumPy call of a traced graph, which makes new arrays on ``device``."""
    with _MadeOn(device) if device is not None else contextlib.nullcontext():
        return run_step(wrapper, args, kwargs, default_float)


class _MadeOn(TorchFunctionMode):
    """Like ``torch.device(...)``, except for single numbers, which stay constants of the generated code on the CPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if is_device_constructor(func) and keywords.get("device") is None and not _makes_scalar(func, args):
            keywords = {**keywords, "device": self._device}
        return func(*args, **keywords)


_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor})


def _makes_scalar(func: Any, args: Any) -> bool:
    return func in _FROM_DATA and not (args and isinstance(args[0], list | tuple))
