"""How much of a call's time torch's operators and NVIDIA's libraries take, by torch's profiler."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

__all__ = ["share_in_words"]

# The first call may compile, and allocate what later calls use again.
_FIRST_CALLS, _CALLS = 2, 5
_MOST_NAMES = 3
# Kernels of libraries that a candidate calls itself, without torch. CUTLASS is not among them: its templates may be
# part of a candidate's own source.
_LIBRARIES = {
    "cuBLAS": re.compile(r"cublas|^(nvjet|gemv|sm\d+_xmma_gemm|(ampere|volta|turing|maxwell|hopper)_\w*gemm)"),
    "cuDNN": re.compile(r"cudnn|^sm\d+_xmma_(fprop|dgrad|wgrad)"),
}


def share_in_words(call: Callable[[], Any], device: str, *, moves: frozenset[str]) -> str:
    """``97 % of GPU time (aten::addmm 90 %, aten::relu 7 %)``; "" if the profiler does not say.

    Args:
        call: one call of the kernel.
        device: "cuda", or "cpu", where the share is that of the whole call.
        moves: operators that compute nothing, and do not count.
    """
    try:
        total, by_name = _on_gpu(call, moves) if device == "cuda" else _on_cpu(call, moves)
    except Exception:  # the check "values" reports a call that raises; a share needs a profiler
        return ""
    if total <= 0:
        return ""
    named = [f"{name} {us / total:.0%}" for name, us in by_name.most_common(_MOST_NAMES) if us / total >= 0.005]
    share = min(by_name.total() / total, 1.0)
    words = f"{share:.0%} of {'GPU' if device == 'cuda' else 'CPU'} time"
    return (f"{words} ({', '.join(named)})" if named else words).replace("%", " %")


def _on_cpu(call: Callable[[], Any], moves: frozenset[str]) -> tuple[float, Counter[str]]:
    """The time of all calls in microseconds, and that of each operator without those that it calls."""
    for _ in range(_FIRST_CALLS):
        call()
    with torch.autograd.profiler.profile(use_kineto=False) as profile:  # kineto prints lines of its own
        began = time.perf_counter()
        for _ in range(_CALLS):
            call()
        total = (time.perf_counter() - began) * 1e6
    found = Counter[str]()
    for event in _of_operators(profile.function_events, moves):
        found[event.name] += event.self_cpu_time_total
    return total, found


def _on_gpu(call: Callable[[], Any], moves: frozenset[str]) -> tuple[float, Counter[str]]:
    """The time of all kernels on the GPU, and that of the kernels of each operator and each library."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for _ in range(_FIRST_CALLS):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(_CALLS):
            call()
        torch.cuda.synchronize()
    events = profile.events()
    kernels = [event for event in events if event.device_type.name == "CUDA"]
    total = sum(event.self_device_time_total for event in kernels)
    found = Counter[str]()
    for event in _of_operators(events, moves):
        found[event.name] += event.self_device_time_total
    of_torch = Counter(kernel.name for event in events if event.name.startswith("aten::") for kernel in event.kernels)
    for kernel in kernels:
        if of_torch[kernel.name] > 0:
            of_torch[kernel.name] -= 1
        elif library := next((name for name, known in _LIBRARIES.items() if known.search(kernel.name)), ""):
            found[library] += kernel.self_device_time_total
    return total, found


def _of_operators(events: Iterable[Any], moves: frozenset[str]) -> Iterator[Any]:
    """The events of torch's operators that compute."""
    for event in events:
        namespace, _, name = event.name.partition("::")
        if namespace == "aten" and name not in moves and event.device_type.name == "CPU":
            yield event
