"""Where compiled NumPy makes its arrays: ``np.arange`` and its like say no device, and their arguments have none.

torch.compile runs each NumPy call twice: on fake tensors while it traces, and again when the graph is turned into code.
Both happen under a mode here that names the device. ``with torch.device(...)`` around the whole call would not do:
Dynamo then takes arrays for tensors (torch 2.11 and 2.13), or makes arrays on the CPU all the same (2.15).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo import utils
from torch._numpy._ndarray import ndarray as TensorArray
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._device import DeviceContext, _device_constructors

__all__ = ["arrays_made_on", "place_of_arrays", "run_call"]

_place: contextvars.ContextVar[torch.device | None] = contextvars.ContextVar("opwright_numpy_place", default=None)
# How torch's wrappers of NumPy's functions, methods and operators are called, without a look at the block around them.
_calls: dict[type, Callable[..., Any]] = {}


@contextlib.contextmanager
def arrays_made_on(device: torch.device | None) -> Iterator[None]:
    """A block in which NumPy that is compiled makes its arrays on a device (None: the CPU), and
    ``with torch.device(...)`` around it does not count."""
    _let_each_block_choose()
    token = _place.set(device)
    try:
        with contextlib.ExitStack() as stack:
            while isinstance(_innermost_mode(), DeviceContext):
                stack.enter_context(torch.overrides._pop_mode_temporarily())
            yield
    finally:
        _place.reset(token)


def place_of_arrays() -> torch.device | None:
    """What the block around us says."""
    return _place.get()


def run_call(wrapper: Any, device: torch.device | None, *args: Any, **kwargs: Any) -> Any:
    """Run one NumPy call of a traced graph, which makes what it makes on a device."""
    operator = getattr(wrapper, "op", None)
    with _MadeOn(device) if device is not None else contextlib.nullcontext():
        if operator is None:
            return _calls.get(type(wrapper), type(wrapper).__call__)(wrapper, *args, **kwargs)
        # torch's wrapper of an operator hides its insides from modes.
        out = operator(*[TensorArray(a) if isinstance(a, torch.Tensor) else a for a in args])
        return _pytree.tree_map_only(TensorArray, lambda array: array.tensor, out)


class _MadeOn(TorchFunctionMode):
    """``torch.device(...)``, but for single numbers: on the CPU these are constants to the code that is generated."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func in _device_constructors() and keywords.get("device") is None and not _takes_no_list(func, args):
            keywords = {**keywords, "device": self._device}
        return func(*args, **keywords)


_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor})


def _takes_no_list(func: Any, args: Any) -> bool:
    return func in _FROM_DATA and not (args and isinstance(args[0], list | tuple))


def _innermost_mode() -> Any:
    depth = torch._C._len_torch_function_stack()
    return torch._C._get_function_stack_at(depth - 1) if depth else None


@functools.cache
def _let_each_block_choose() -> None:
    """Have Dynamo's NumPy calls look at the block around them; outside of such blocks they are as they were."""
    wrappers: tuple[Any, ...] = (
        utils.numpy_to_tensor_wrapper, utils.numpy_method_wrapper, utils.numpy_operator_wrapper,
    )  # fmt: skip
    for wrapper in wrappers:
        _calls[wrapper] = wrapper.__call__
        wrapper.__call__ = _call_where_the_block_says


def _call_where_the_block_says(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    if _place.get() is None:
        return _calls[type(wrapper)](wrapper, *args, **kwargs)
    return run_call(wrapper, _place.get(), *args, **kwargs)
