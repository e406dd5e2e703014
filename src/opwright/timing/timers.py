"""Timers, which take samples. A sample is the time of one call, in microseconds.

GPU. *Cold*: the L2 is overwritten before each call, which takes longer than the CPU needs to launch the call, so that
the time between two CUDA events contains no launch gap. Inputs rotate through sets at other addresses. Persisting lines
of the L2 are reset before it is overwritten. *Warm*: a CUDA graph of many calls on one set, replayed; if the calls
cannot be captured, they are queued behind a long write. *Call*: the host time of a call, in bursts that are shorter
than the launch queue.

CPU. Threads are pinned to separate processors (``cores``). The monotonic clock is read around as many calls as take a
tenth of a millisecond (warm), or around one call after overwriting the last-level cache (cold).
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from opwright.internals.cuda import keep_gpu_busy
from opwright.runtime.cuda_graphs.capture import capturing
from opwright.timing.candidates import Candidate
from opwright.timing.hardware.cores import choose_cpus, pinned
from opwright.timing.hardware.persisting_l2 import reset_persisting_lines

__all__ = ["CpuTimer", "GpuTimer", "Timer", "make_timer"]


class Timer(Protocol):
    """The timer of one type of device."""

    cache_bytes: int
    most_bytes: int
    has_gpu_time: bool

    def warm_up(self, candidate: Candidate, sets: Sequence[Any]) -> None: ...
    def host_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]: ...
    def cold_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]: ...
    def warm_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]: ...
    def profiler_time(self, candidate: Candidate, sets: Sequence[Any]) -> float | None: ...
    def forget(self) -> None: ...
    def steady(self) -> contextlib.AbstractContextManager[None]:
        """A block in which samples are taken."""

    def not_captured(self, candidate: Candidate) -> str:
        """Why a candidate's warm time is not that of a CUDA graph; empty if it is, or if this device has none."""

    def settings(self) -> dict[str, str]:
        """The settings of the timer that depend on the machine."""


def make_timer(device: str) -> Timer:
    """The timer of a type of device."""
    return GpuTimer() if device == "cuda" else CpuTimer()


_WARM_UP_SECONDS = 0.05
# About 100 µs on the GPUs of today: longer than the CPU needs to launch a graph and two events.
_SPIN_CYCLES = 200_000


class CpuTimer:
    """Samples on the CPU, where host time is the only time."""

    has_gpu_time = False

    def __init__(self) -> None:
        self.cache_bytes = _last_level_cache_bytes()
        self.most_bytes = 2 << 30
        self._flush = torch.ones(2 * self.cache_bytes // 4)
        self._cpus = choose_cpus(torch.get_num_threads())

    def warm_up(self, candidate: Candidate, sets: Sequence[Any]) -> None:
        """By time and by stability: until two passes in a row agree within 5 %, at most a second."""
        started, last = time.perf_counter(), math.inf
        while True:
            seen = min(self.warm_times(candidate, sets, 3))
            spent = time.perf_counter() - started
            if spent > 1.0 or (spent > _WARM_UP_SECONDS and abs(seen - last) <= 0.05 * last):
                return
            last = seen

    def host_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]:
        return self.warm_times(candidate, sets, count)

    def warm_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]:
        one = sets[0]
        repeats = max(1, min(10_000, math.ceil(100 / max(_microseconds(candidate, one, 1), 0.05))))
        return [_microseconds(candidate, one, repeats) for _ in range(count)]

    def cold_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]:
        samples = []
        for i in range(count):
            self._flush.add_(1.0)
            samples.append(_microseconds(candidate, sets[i % len(sets)], 1))
        return samples

    def profiler_time(self, candidate: Candidate, sets: Sequence[Any]) -> float | None:
        return None

    def forget(self) -> None:
        """Nothing is kept between cases."""

    def steady(self) -> contextlib.AbstractContextManager[None]:
        return pinned(self._cpus)

    def not_captured(self, candidate: Candidate) -> str:
        return ""

    def settings(self) -> dict[str, str]:
        where = f"to processors {', '.join(map(str, self._cpus))}" if self._cpus else "no: too few processors"
        return {"threads": str(torch.get_num_threads()), "threads pinned": where}


def _microseconds(candidate: Candidate, arguments: Any, repeats: int) -> float:
    run = candidate.run
    started = time.perf_counter_ns()
    for _ in range(repeats):
        run(arguments)
    return (time.perf_counter_ns() - started) / repeats / 1e3


def _last_level_cache_bytes() -> int:
    sizes = [p.read_text().strip() for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    found = [int(m[1]) << {"K": 10, "M": 20}[m[2]] for s in sizes if (m := re.fullmatch(r"(\d+)([KM])", s))]
    # A server's last-level cache is shared with other cores; overwriting 64 MiB evicts this process's part.
    return min(max(found, default=32 << 20), 64 << 20)


@dataclass(frozen=True)
class _Graph:
    """A captured graph of a number of calls, with its arguments, which must live as long as the graph."""

    graph: Any
    calls: int
    arguments: Any


class GpuTimer:
    """Samples on the current CUDA device."""

    has_gpu_time = True

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cache_bytes = int(properties.L2_cache_size)
        free, _ = torch.cuda.mem_get_info()
        self.most_bytes = free // 4
        self._flush = torch.ones(4 * self.cache_bytes // 4, device="cuda")
        self._flush_us = 0.0
        self._flush_us = self._events(lambda: self._write(1), 5)
        self._host_us: dict[Candidate, float] = {}
        # By candidate: the captured input sets, and the graph or the reason why there is none.
        self._graphs: dict[Candidate, tuple[Sequence[Any], _Graph | str]] = {}
        self._stream = torch.cuda.Stream()
        self._not_reset = reset_persisting_lines()

    def _write(self, times: int) -> None:
        for _ in range(times):
            self._flush.add_(1.0)

    def _events(self, action: Any, times: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        action()
        start.record()
        for _ in range(times):
            action()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / times

    def warm_up(self, candidate: Candidate, sets: Sequence[Any]) -> None:
        """By time and by stability: until two passes in a row agree within 5 %, at most a second."""
        started, last = time.perf_counter(), math.inf
        while True:
            seen = statistics.median(self.host_times(candidate, sets, 3))
            spent = time.perf_counter() - started
            if spent > 1.0 or (spent > _WARM_UP_SECONDS and abs(seen - last) <= 0.05 * last):
                break
            last = seen
        self._host_us[candidate] = seen

    def host_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]:
        samples = []
        for _ in range(count):
            torch.cuda.synchronize()
            # Fewer launches than the driver's queue holds (about 1,000), or the CPU would wait for the GPU.
            samples.append(_microseconds(candidate, sets[0], 20))
        torch.cuda.synchronize()
        return samples

    def cold_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]:
        head_start = self._head_start(candidate)
        pairs = []
        for i in range(count):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if not self._not_reset:
                self._not_reset = reset_persisting_lines()
            self._write(head_start)
            start.record()
            candidate.run(sets[i % len(sets)])
            end.record()
            pairs.append((start, end))
            torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in pairs]

    def _head_start(self, candidate: Candidate) -> int:
        """The number of writes that keep the GPU busy while the CPU launches the call and both events."""
        wanted = 2.0 * self._host_us.get(candidate, 50.0) + 30.0
        return max(1, math.ceil(wanted / max(self._flush_us, 1.0)))

    def warm_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]:
        captured = self._graph(candidate, sets)
        if isinstance(captured, str):
            return self._queued_times(candidate, sets, count)
        return [self._replay(captured.graph) / captured.calls for _ in range(count)]

    def not_captured(self, candidate: Candidate) -> str:
        found = self._graphs.get(candidate)
        return found[1] if found is not None and isinstance(found[1], str) else ""

    def _replay(self, graph: Any) -> float:
        """The GPU time of one replay. The GPU spins before it, so that the graph's launch is not counted."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        keep_gpu_busy(_SPIN_CYCLES)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def _graph(self, candidate: Candidate, sets: Sequence[Any]) -> _Graph | str:
        known = self._graphs.get(candidate)
        if known is None or known[0] is not sets:
            known = self._graphs[candidate] = sets, self._capture(candidate, sets[0])
        return known[1]

    def _capture(self, candidate: Candidate, arguments: Any) -> _Graph | str:
        """A graph of as many calls as take about two milliseconds, to keep its overhead small; or why there is none."""
        try:
            (about_us,) = self._queued_times(candidate, [arguments], 1)
            calls = max(1, min(1000, math.ceil(2000 / max(about_us, 0.5))))
            if candidate.for_capture is not None:
                arguments = self._arguments_on_stream(candidate)
            return _Graph(self._capture_calls(candidate, arguments, calls), calls, arguments)
        except RuntimeError as error:  # the call synchronises, or allocates in a way that cannot be captured
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
            return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"

    def _arguments_on_stream(self, candidate: Candidate) -> Any:
        """Make arguments on the stream of the capture, and run there once: libraries initialise on first use."""
        assert candidate.for_capture is not None  # tested by the caller
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            arguments = candidate.for_capture()
            for _ in range(3):
                candidate.run(arguments)
        torch.cuda.synchronize()
        return arguments

    def _capture_calls(self, candidate: Candidate, arguments: Any, calls: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, stream=self._stream):
            for _ in range(calls):
                candidate.run(arguments)
        self._replay(graph)
        return graph

    def _queued_times(self, candidate: Candidate, sets: Sequence[Any], count: int) -> list[float]:
        calls = 10
        samples = []
        for _ in range(count):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._write(self._head_start(candidate) * calls)
            candidate.run(sets[0])
            start.record()
            for _ in range(calls):
                candidate.run(sets[0])
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / calls)
        return samples

    def profiler_time(self, candidate: Candidate, sets: Sequence[Any]) -> float | None:
        """The profiler's sum of kernel times of one warm call, without gaps. None if it recorded no kernel."""
        from torch.profiler import ProfilerActivity, profile

        calls = 10
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(calls):
                candidate.run(sets[0])
            torch.cuda.synchronize()
        total = sum(e.device_time_total for e in seen.key_averages())
        return total / calls or None

    def forget(self) -> None:
        """Free captured graphs (and the memory that they hold) before the next case."""
        self._graphs.clear()
        self._host_us.clear()

    def steady(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def settings(self) -> dict[str, str]:
        done = "reset before each cold sample" if not self._not_reset else f"not reset: {self._not_reset}"
        return {"persisting lines of the L2": done}
