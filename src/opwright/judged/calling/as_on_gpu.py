"""A block in which code that was written for a GPU runs on tensors in memory, where a simulator runs its kernels.

Nothing runs beside the host there: streams have nothing to order, and to synchronise is to do nothing. Captured graphs
and libraries for GPUs are not simulated.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opwright.backends.gpu.answers import answers_of_a_gpu
from opwright.errors import NotSimulatedError

__all__ = ["as_on_gpu", "placed"]

# What torch and Triton say where there is no GPU.
_NO_GPU = (
    "NVIDIA driver",
    "No CUDA GPUs",
    "not compiled with CUDA",
    "CUDA driver",
    "0 active drivers",
    "dummy base class",
)


@contextlib.contextmanager
def as_on_gpu() -> Iterator[None]:
    """The block.

    Raises:
        NotSimulatedError: the code needs a GPU for something else, or a package that is not here.
    """
    try:
        with answers_of_a_gpu(is_available=_is_gpu_available), placed():
            yield
    except ImportError as error:  # of a package, or of a library for GPUs that a built extension needs
        is_module = isinstance(error, ModuleNotFoundError)
        missing = f"the module {error.name!r} must be installed" if is_module else str(error).splitlines()[0]
        raise NotSimulatedError(missing, fix="install its package") from error
    except (RuntimeError, AssertionError) as error:
        if isinstance(error, NotSimulatedError) or not any(words in str(error) for words in _NO_GPU):
            raise
        first = str(error).strip().splitlines()[0]
        raise NotSimulatedError(f"the candidate needs a GPU: {first}", fix="judge it on a GPU") from error


# Where a candidate finds a tensor.
_PLACES = {torch.Tensor.device.__get__: torch.device("cuda", 0), torch.Tensor.get_device: 0}
# The packages that have to know where a tensor is. What a candidate's own code does without a GPU is not its kernel.
_OTHERS = frozenset({"torch", "triton", "opwright", "kernelsim", "numba", "cupy"})


def _is_asked_by_a_candidate(asked: types.FrameType | None) -> bool:
    """Whether the function with this frame was called by a candidate's own code."""
    caller = asked.f_back if asked is not None else None
    return caller is not None and str(caller.f_globals.get("__name__", "")).partition(".")[0] not in _OTHERS


def _is_gpu_available() -> bool:
    return _is_asked_by_a_candidate(inspect.currentframe())


class placed(TorchFunctionMode):
    """A block in which what is to be made on a GPU is made in memory, and a tensor says that it is on one. It holds for
    one thread."""

    def __torch_function__(
        self, function: Any, classes: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if function in _PLACES and _is_asked_by_a_candidate(inspect.currentframe()):
            return _PLACES[function]
        if function is torch.Tensor.cuda:
            return args[0]
        placed = {name: _placed(value) if name == "device" else value for name, value in (kwargs or {}).items()}
        if placed.get("generator", 0) is None:  # functions of torch name this default to whoever takes the call over
            del placed["generator"]
        given = [_placed(value) if _is_device(function, value) else value for value in args]
        return function(*given, **placed)


def _is_device(function: Any, value: Any) -> bool:
    """Whether an argument by position is a device: text may also be something else, as in an einsum."""
    return isinstance(value, torch.device) or (function is torch.Tensor.to and isinstance(value, str))


def _placed(device: Any) -> Any:
    return torch.device("cpu") if str(device).partition(":")[0] == "cuda" or type(device) is int else device
