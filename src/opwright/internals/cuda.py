"""Wrappers of private APIs of torch's CUDA support, and of autograd's memory there."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from opwright.internals.lookup import find

__all__ = [
    "COUNTS_HOLDERS", "backward_may_run_again", "clear_cublas_workspaces", "current_device", "current_stream",
    "gpus_counted_by_nvml", "holders_of", "keep_gpu_busy", "may_use_gpus",
]  # fmt: skip


def _stream_of(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


# The index of the current GPU, and the handle of a GPU's current stream. C functions if torch has them: a new
# stream object for each call costs as much as the rest of a launch.
current_device: Any = find("current_device") or torch.cuda.current_device
current_stream: Any = find("current_stream") or _stream_of

_sleep: Any = find("gpu_sleep")


def keep_gpu_busy(cycles: int) -> None:
    """Occupy the current stream for about this many clock cycles."""
    if _sleep is not None:
        _sleep(cycles)
        return
    square = torch.ones(2048, 2048, device="cuda")
    for _ in range(1 + cycles // 500_000):  # a product of this size takes some 300 µs
        square = square @ square


_clear_workspaces: Any = find("clear_cublas_workspaces")


def clear_cublas_workspaces() -> None:
    """Give back the memory that torch keeps for cuBLAS; the next product on a stream allocates it anew."""
    if _clear_workspaces is not None:
        _clear_workspaces()


# -- forks ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def gpus_counted_by_nvml() -> Iterator[None]:
    """A block in which torch looks for GPUs without asking their driver. A fork of a process that has asked the driver
    cannot use them."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def may_use_gpus() -> bool:
    """Whether this process, a fork of one that has imported torch, could use GPUs; False if it is not known."""
    is_bad = find("bad_fork")
    return is_bad is not None and not is_bad()


# -- references to a storage -----------------------------------------------------------------------------------------


def _counts_holders(count: Callable[[int], int]) -> bool:
    tensor = torch.zeros(2, device="cpu")
    storage = _identity.__get__(tensor.untyped_storage())
    alone = count(storage)
    view = tensor[1:]
    shared = count(storage)
    del view
    return shared == alone + 1 and count(storage) == alone


_identity: Any = find("storage_identity")
_count: Any = find("storage_holders", _counts_holders)
# Whether ``holders_of`` is available.
COUNTS_HOLDERS = _identity is not None and _count is not None


def holders_of(tensor: torch.Tensor) -> Callable[[], int]:
    """A function that counts the tensors and autograd nodes that hold a tensor's storage."""
    return functools.partial(_count, _identity.__get__(tensor.untyped_storage()))


# -- in a backward ---------------------------------------------------------------------------------------------------


def _detects_retained_graph(keeps_graph: Callable[[], bool]) -> bool:
    answers = []

    def ask(gradient: torch.Tensor) -> None:
        answers.append(keeps_graph())

    with torch.enable_grad():
        x = torch.ones(1, device="cpu", requires_grad=True)
        y = x * x
        y.register_hook(ask)
        torch.autograd.grad(y, x, retain_graph=True)
        torch.autograd.grad(y, x)
    return answers == [True, False]


@functools.cache
def _keeps_graph() -> Any:
    return find("keeps_graph", _detects_retained_graph)


def backward_may_run_again() -> bool:
    """Within a backward: whether it retains its graph; True if that is not known."""
    keeps = _keeps_graph()
    return keeps is None or bool(keeps())
