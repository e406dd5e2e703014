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

from opwright import tree
from opwright.errors import KernelRefusedError
from opwright.internals.numpy_layer import (
    Array,
    arrays_made_by,
    call_numpy,
    can_place_arrays,
    is_device_constructor,
    without_default_device,
)

__all__ = ["arrays_made_on", "place_of_arrays", "run_call"]

_place: contextvars.ContextVar[torch.device | None] = contextvars.ContextVar("opwright_numpy_place", default=None)


@contextlib.contextmanager
def arrays_made_on(device: torch.device | None) -> Iterator[None]:
    """A block in which compiled NumPy code makes its arrays on a device (None: the CPU), and
    ``with torch.device(...)`` around it has no effect.

    Raises:
        KernelRefusedError: this torch makes arrays on the CPU only.
    """
    if device is not None and not can_place_arrays():
        raise KernelRefusedError(
            f"NumPy code compiled by torch {torch.__version__} makes its arrays on the CPU, not on {device}",
            fix="pass CPU tensors, or use a torch between 2.11 and 2.15",
        )
    token = _place.set(device)
    try:
        with arrays_made_by(_run_call_here if device is not None else None), without_default_device():
            yield
    finally:
        _place.reset(token)


def place_of_arrays() -> torch.device | None:
    """The device of the enclosing block."""
    return _place.get()


def _run_call_here(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    return run_call(wrapper, _place.get(), *args, **kwargs)


def run_call(wrapper: Any, device: torch.device | None, *args: Any, **kwargs: Any) -> Any:
    """Run one NumPy call of a traced graph, which makes new arrays on ``device``."""
    operator = getattr(wrapper, "op", None)
    with _MadeOn(device) if device is not None else contextlib.nullcontext():
        if operator is None:
            return call_numpy(wrapper, *args, **kwargs)
        # torch's wrapper of an operator hides the calls within it from modes.
        out = operator(*[Array(a) if isinstance(a, torch.Tensor) else a for a in args])
        return tree.map_only(Array, lambda array: array.tensor, out)


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
