"""A block in which code that was written for a GPU runs on tensors in memory, where a simulator runs its kernels.

Nothing runs beside the host there: streams have nothing to order, and to synchronise is to do nothing. Captured graphs
and libraries for GPUs are not simulated.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opwright.errors import NotSimulatedError

__all__ = ["as_on_gpu", "placed"]

# What an H100 says of itself.
_PROPERTIES = {
    "name": "simulated GPU", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 80 << 30,
    "warp_size": 32, "max_threads_per_multi_processor": 2048, "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 48 << 10, "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10, "L2_cache_size": 50 << 20,
}  # fmt: skip
# What torch and Triton say where there is no GPU.
_NO_GPU = (
    "NVIDIA driver",
    "No CUDA GPUs",
    "not compiled with CUDA",
    "CUDA driver",
    "0 active drivers",
    "dummy base class",
)


class _Stream:
    """The only stream."""

    cuda_stream = 0

    def _nothing(self, *_: Any) -> None:
        """There is nothing to wait for."""

    synchronize = wait_stream = wait_event = record_event = _nothing


def _answers() -> dict[str, Callable[..., Any]]:
    """Functions of ``torch.cuda`` by name."""
    properties, stream = types.SimpleNamespace(**_PROPERTIES), _Stream()
    return {
        "synchronize": lambda *_, **__: None,
        "current_stream": lambda *_, **__: stream,
        "default_stream": lambda *_, **__: stream,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "is_current_stream_capturing": lambda: False,
        "get_device_properties": lambda *_, **__: properties,
        "get_device_capability": lambda *_, **__: (properties.major, properties.minor),
        "get_device_name": lambda *_, **__: properties.name,
        "device": lambda *_, **__: contextlib.nullcontext(),
    }


@contextlib.contextmanager
def as_on_gpu() -> Iterator[None]:
    """The block.

    Raises:
        NotSimulatedError: the code needs a GPU for something else, or a package that is not here.
    """
    answers = _answers()
    before = {name: getattr(torch.cuda, name) for name in answers}
    try:
        for name, answer in answers.items():
            setattr(torch.cuda, name, answer)
        with placed():
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
    finally:
        for name, function in before.items():
            setattr(torch.cuda, name, function)


class placed(TorchFunctionMode):
    """A block in which what is to be made on a GPU is made in memory, and a tensor says that it is on one. It holds for
    one thread."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
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
