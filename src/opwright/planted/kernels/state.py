"""Kernels with a state: wrong in some call, in some thread or with some setting; and right ones that look alike."""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
import time

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import correct, planted

__all__ = ["RIGHT", "ROWS", "WARNINGS", "WRONG", "scale"]


@ow.op("selftest_state::scale")
def scale(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
    return a * x


# -- wrong kernels ----------------------------------------------------------------------------------------------------

_by_address: dict[object, Tensor] = {}
_calls = [0]
_leaked: list[Tensor] = []
_mappings: list[mmap.mmap] = []
_c = ctypes.CDLL(None)
_own = threading.local()
_own.is_main = True


@scale.python(name="keeps results by address")
def _(x: Tensor, a: float) -> Tensor:
    key = (x.data_ptr(), x.shape, x.dtype, a)
    if key not in _by_address:
        _by_address[key] = a * x
    return _by_address[key].clone()


@scale.python(name="keeps results by address alone")
def _(x: Tensor, a: float) -> Tensor:
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype)
    if key not in _by_address:
        _by_address[key] = a * x
    return _by_address[key].clone()


@scale.python(name="keeps results by address and first value")
def _(x: Tensor, a: float) -> Tensor:
    key = (x.data_ptr(), x.shape, x.dtype, a, x[:1].tolist()[0] if len(x) else 0)
    if key not in _by_address:
        _by_address[key] = a * x
    return _by_address[key].clone()


@scale.python(name="keeps results by address and sum")
def _(x: Tensor, a: float) -> Tensor:
    key = (x.data_ptr(), x.shape, x.dtype, a, round(float(x.sum(dtype=torch.float64)), 6))
    if key not in _by_address:
        _by_address[key] = a * x
    return _by_address[key].clone()


@scale.python(name="is wrong in one call of fifty")
def _(x: Tensor, a: float) -> Tensor:
    _calls[0] += 1
    return a * x if _calls[0] % 50 else a * x + 1


@scale.python(name="is right in the first sixty calls")
def _(x: Tensor, a: float) -> Tensor:
    _calls[0] += 1
    return a * x if x.numel() > 4096 or _calls[0] < 160 else torch.zeros_like(x)


@scale.python(name="returns one buffer")
def _(x: Tensor, a: float) -> Tensor:
    return torch.mul(x, a, out=_buffer(x.numel(), x.dtype, x.device))


@scale.python(name="returns one buffer for large results")
def _(x: Tensor, a: float) -> Tensor:
    return a * x if x.numel() <= 4096 else torch.mul(x, a, out=_buffer(x.numel(), x.dtype, x.device))


@scale.python(name="returns one of fifty buffers")
def _(x: Tensor, a: float) -> Tensor:
    _calls[0] += 1
    if (_calls[0] % 50, x.numel(), x.dtype) not in _ring:
        _ring[_calls[0] % 50, x.numel(), x.dtype] = torch.empty_like(x, memory_format=torch.contiguous_format)
    return torch.mul(x, a, out=_ring[_calls[0] % 50, x.numel(), x.dtype])


_ring: dict[object, Tensor] = {}


@functools.cache
def _buffer(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(count, dtype=dtype, device=device)


@scale.python(name="leaks")
def _(x: Tensor, a: float) -> Tensor:
    _leaked.append(torch.ones_like(x))
    return a * x


@scale.python(name="leaks memory of the CPU")
def _(x: Tensor, a: float) -> Tensor:
    _leaked.append(torch.ones(x.shape, dtype=x.dtype))
    return a * x


@scale.python(name="leaks pages that nobody touches", devices=["cpu"])
def _(x: Tensor, a: float) -> Tensor:
    _mappings.append(mmap.mmap(-1, max(1, x.nbytes)))
    return a * x


@scale.python(name="leaves a thread")
def _(x: Tensor, a: float) -> Tensor:
    _start_native_thread()
    return a * x


def _start_native_thread() -> None:
    """One that Python does not know, and that sleeps until the process ends."""
    waits = ctypes.cast(_c.pause, ctypes.c_void_p)
    _c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, waits, None)


@scale.python(name="is right with deterministic algorithms")
def _(x: Tensor, a: float) -> Tensor:
    return a * x if torch.are_deterministic_algorithms_enabled() else a * x + 1


@scale.python(name="fails in inference mode")
def _(x: Tensor, a: float) -> Tensor:
    assert not x.is_inference()
    return a * x


@scale.python(name="is right in one thread")
def _(x: Tensor, a: float) -> Tensor:
    return a * x if getattr(_own, "is_main", False) else x.clone()


@scale.python(name="is right with several threads", devices=["cpu"])
def _(x: Tensor, a: float) -> Tensor:
    return a * x if torch.get_num_threads() > 1 else x.clone()


@scale.python(name="leaves the dtype to a setting")
def _(x: Tensor, a: float) -> Tensor:
    return a * x if x.dtype is not torch.float32 else (a * x).to(torch.get_default_dtype())


@scale.python(name="computes in autocast's dtype")
def _(x: Tensor, a: float) -> Tensor:
    return (x.unsqueeze(1) @ x.new_full((1, 1), a)).squeeze(1)


@scale.python(name="shares scratch memory")
def _(x: Tensor, a: float) -> Tensor:
    scratch = _shared(x.device)[: x.nbytes].view(x.dtype)
    scratch.copy_(x)
    time.sleep(1e-4)
    return a * scratch


@functools.cache
def _shared(device: torch.device) -> Tensor:
    return torch.empty(1 << 23, dtype=torch.uint8, device=device)


@scale.python(name="calls the reference")
def _(x: Tensor, a: float) -> Tensor:
    return scale.contract.function(x, a)


WRONG = {
    "keeps results by address": "results are kept by address",
    "keeps results by address alone": "elements differ",
    "keeps results by address and first value": "results are kept by address",
    "keeps results by address and sum": "results are kept by address",
    "is wrong in one call of fifty": "elements differ",
    "is right in the first sixty calls": "elements differ",
    "returns one buffer": "of an earlier call was changed by a later one",
    "returns one buffer for large results": "is in the memory of an earlier result",
    "returns one of fifty buffers": "is in the memory of an earlier result",
    "leaks": "emory grew by",
    "leaks memory of the CPU": "memory grew by",
    "leaks pages that nobody touches": "address space grew by",
    "leaves a thread": "threads more are there",
    "is right with deterministic algorithms": "without deterministic algorithms: ",
    "fails in inference mode": "in inference mode: the kernel raised",
    "is right in one thread": "in another thread: ",
    "is right with several threads": "with one of torch's threads: ",
    "leaves the dtype to a setting": "with float64 as the default dtype: ",
    "computes in autocast's dtype": "under torch.autocast: ",
    "shares scratch memory": "called by two threads at the same time: ",
    "calls the reference": "it calls the reference",
}
WARNINGS = {
    "leaks", "leaks memory of the CPU", "leaks pages that nobody touches", "leaves a thread",
    "leaves the dtype to a setting", "computes in autocast's dtype", "calls the reference",
}  # fmt: skip

# -- right kernels ----------------------------------------------------------------------------------------------------

_count = [0]
_lock = threading.Lock()


@scale.python(name="counts its calls")
def _(x: Tensor, a: float) -> Tensor:
    _count[0] += 1
    return a * x


@scale.python(name="keeps a table by size")
def _(x: Tensor, a: float) -> Tensor:
    return x * _ones(x.numel(), x.dtype, x.device) * a


@functools.cache
def _ones(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(count, dtype=dtype, device=device)


@scale.python(name="shares scratch memory under a lock", devices=["cpu"])  # GPU streams do not know the lock
def _(x: Tensor, a: float) -> Tensor:
    with _lock:
        scratch = _shared(x.device)[: x.nbytes].view(x.dtype)
        scratch.copy_(x)
        return a * scratch


@scale.python(name="has scratch memory for each thread and device")
def _(x: Tensor, a: float) -> Tensor:
    kept = _own.__dict__.setdefault("scratch", {})
    if x.device not in kept:
        kept[x.device] = torch.empty(1 << 23, dtype=torch.uint8, device=x.device)
    scratch = kept[x.device][: x.nbytes].view(x.dtype)
    scratch.copy_(x)
    return a * scratch


@scale.python(name="starts a thread and waits for its end")
def _(x: Tensor, a: float) -> Tensor:
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(a * x))
    thread.start()
    thread.join()
    return results[0]


@scale.python(name="keeps results by all values", devices=["cpu"])
def _(x: Tensor, a: float) -> Tensor:
    key = (x.shape, x.dtype, a, x.contiguous().view(torch.uint8).numpy().tobytes() if len(x) else b"")
    if key not in _by_values:
        _by_values[key] = a * x
    return _by_values[key].clone()


_by_values: dict[object, Tensor] = {}


@scale.python(name="computes in as many pieces as there are threads")
def _(x: Tensor, a: float) -> Tensor:
    return torch.cat([a * piece for piece in x.chunk(torch.get_num_threads())]) if len(x) else a * x


@scale.python(name="has results in a larger buffer of each call")
def _(x: Tensor, a: float) -> Tensor:
    return torch.mul(x, a, out=torch.empty(2 * len(x), dtype=x.dtype, device=x.device)[: len(x)])


@scale.python(name="multiplies matrices without autocast")
def _(x: Tensor, a: float) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return (x.unsqueeze(1) @ x.new_full((1, 1), a)).squeeze(1)


@scale.python(name="keeps some megabytes")
def _(x: Tensor, a: float) -> Tensor:
    _kept.append(torch.empty(1 << 10)) if len(_kept) < 1000 else None
    return a * x


_kept: list[Tensor] = []

RIGHT = [name for name in scale.kernels if name not in WRONG]

_EXPECTED = {"calls the reference": "own work", "shares scratch memory": "threads"}


def _expected(kernel: str) -> str:
    in_context = WRONG[kernel].startswith(("without ", "in ", "with ", "under "))
    return _EXPECTED.get(kernel, "execution context" if in_context else "repeated calls")


ROWS = [*(planted(scale, name, _expected(name)) for name in WRONG), *(correct(scale, name) for name in RIGHT)]
