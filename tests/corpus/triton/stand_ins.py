"""What libraries of Triton kernels ask of a GPU before they launch: answers for a machine that has none."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

__all__ = ["as_if_on_a_gpu"]

_PROPERTIES = SimpleNamespace(
    multi_processor_count=4, major=9, minor=0, name="NVIDIA H100", total_memory=1 << 34,
    shared_memory_per_block_optin=232448, shared_memory_per_block=49152,
)  # fmt: skip
_FACTORIES = ("empty", "full", "zeros", "ones", "arange", "tensor", "rand", "randn", "randint")


class _Driver:
    """Triton's driver, as far as libraries ask it."""

    utils = SimpleNamespace(get_device_properties=lambda device: {"multiprocessor_count": 4, "max_shared_mem": 232448})

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextlib.contextmanager
def as_if_on_a_gpu(*, has_gpu: bool = False) -> Iterator[None]:
    """A block in which a machine without a GPU describes one. What is asked for on ``cuda`` is on the CPU.

    Args:
        has_gpu: whether it has one, so that Triton can launch there, too.
    """
    import triton

    if not has_gpu:
        triton.runtime.driver.set_active(_Driver())
    with contextlib.ExitStack() as stack:
        if has_gpu:  # libraries compare the device of their tensors with it
            driver = triton.runtime.driver.active
            stack.enter_context(mock.patch.object(driver, "get_active_torch_device", return_value=torch.device("cpu")))
        for name, answer in {
            "get_device_properties": lambda *_: _PROPERTIES,
            "get_device_capability": lambda *_: (9, 0),
            "get_device_name": lambda *_: _PROPERTIES.name,
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "device": lambda *_: contextlib.nullcontext(),
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        for name in _FACTORIES:
            stack.enter_context(mock.patch.object(torch, name, _on_the_cpu(getattr(torch, name))))
        stack.enter_context(mock.patch.object(triton.runtime.Autotuner, "__init__", _with_known_keys()))
        yield


def _with_known_keys() -> Callable[..., None]:
    """Triton 3.9 refuses keys of an autotuner that are no arguments; a kernel of flash-linear-attention has one."""
    import triton

    make = triton.runtime.Autotuner.__init__

    def make_with_known(self: Any, function: Any, names: Any, configs: Any, key: Any, *rest: Any, **named: Any) -> None:
        make(self, function, names, configs, [k for k in key if k in names], *rest, **named)

    return make_with_known


def _on_the_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def make(*args: Any, **keywords: Any) -> Any:
        if str(keywords.get("device", "")).startswith("cuda"):
            keywords["device"] = "cpu"
        return factory(*args, **keywords)

    return make
