"""Blocks around a call or its backward. Each notes what it has seen, as text without the operator's namespace."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CONTEXTS", "Notes"]

Notes = list[str]


class Dispatched(TorchDispatchMode):
    """Notes the operators that reach a dispatch mode."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._notes.append(f"dispatched {func}")
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes the functions that reach a function mode."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._notes.append(f"function {getattr(func, '__name__', func)}")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _profiled(notes: Notes) -> Iterator[None]:
    with torch.autograd.profiler.profile() as profile:
        yield
    notes.extend(sorted({f"profiled {e.name}" for e in profile.function_events if "fuzz" in e.name}))


@contextlib.contextmanager
def _traced(notes: Notes) -> Iterator[None]:
    descriptor, name = tempfile.mkstemp(suffix=".json")  # a name that ends in gz is compressed
    os.close(descriptor)
    observer = torch.profiler.ExecutionTraceObserver().register_callback(name)
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        observer.unregister_callback()
        with open(name) as file:
            notes.append(f"traced {file.read().count('fuzz')} nodes")
        os.unlink(name)


@contextlib.contextmanager
def _packed(notes: Notes) -> Iterator[None]:
    """Hooks of saved tensors, which autograd calls for what a forward saves."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        notes.append(f"packed {tuple(tensor.shape)}")
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


@contextlib.contextmanager
def _deterministic(notes: Notes) -> Iterator[None]:
    """Memory that is allocated is filled, as long as algorithms have to be deterministic."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _default_dtype(notes: Notes) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# By the name that a step gives: a function of the notes that makes the block.
CONTEXTS: dict[str, Callable[[Notes], contextlib.AbstractContextManager[Any]]] = {
    "no_grad": lambda notes: torch.no_grad(),
    "enable_grad": lambda notes: torch.enable_grad(),
    "inference_mode": lambda notes: torch.inference_mode(),
    "autocast": lambda notes: torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16),
    "dispatch_mode": Dispatched,
    "function_mode": Functions,
    "profiler": _profiled,
    "trace_observer": _traced,
    "saved_tensors_hooks": _packed,
    "deterministic": _deterministic,
    "default_dtype": _default_dtype,
    "default_device": lambda notes: torch.device("cpu"),
    "anomaly": lambda notes: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "dual_level": lambda notes: forward_ad.dual_level(),
    "below_autograd": lambda notes: torch._C._AutoDispatchBelowAutograd(),
    "fake_mode": lambda notes: FakeTensorMode(allow_non_fake_inputs=True),
}
