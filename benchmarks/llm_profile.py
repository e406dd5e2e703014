"""Where a training step of ``llm_model.py`` spends its time and its memory. Usage: llm_profile.py VARIANT

Prints ms of the GPU and of the host for the forward, the backward and the optimizer (medians of 10 steps), the kernels
of one step by their time, and the memory that is live at the peak of a step by the lines that allocated it.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import llm_model
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

PHASES = ("forward", "backward", "optimizer")
SHOWN, STEPS = 25, 10
GIB = 2**30


def phases_of(variant: str) -> list[Callable[[], None]]:
    """The three phases of a step, each a function."""
    model = llm_model.model_of(variant, "cuda").train()
    run, optimizer = llm_model.compiled(model, variant), llm_model.optimizer_of(model, variant, "cuda")
    generator = torch.Generator().manual_seed(1)
    size = (llm_model.BATCH, llm_model.TOKENS)
    ids = torch.randint(0, model.config.vocab_size, size, generator=generator).cuda()
    losses: list[torch.Tensor] = []

    def forward() -> None:
        optimizer.zero_grad()
        losses.append(run(input_ids=ids, labels=ids, use_cache=False).loss)

    return [forward, lambda: losses.pop().backward(), lambda: optimizer.step()]


def milliseconds(phases: list[Callable[[], None]]) -> tuple[list[float], list[float]]:
    """Of the GPU, and of the host until it has launched all."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(phases) + 1)]
    marks[0].record()
    host = []
    for phase, mark in zip(phases, marks[1:], strict=True):
        start = time.perf_counter()
        phase()
        host.append(1e3 * (time.perf_counter() - start))
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)], host


def print_kernels(phases: list[Callable[[], None]]) -> None:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        milliseconds(phases)
    times, counts = Counter[str](), Counter[str]()
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA:
            times[event.name] += event.time_range.elapsed_us()
            counts[event.name] += 1
    print(f"{sum(counts.values())} kernels, {sum(times.values()) / 1e3:.2f} ms")
    for name, us in times.most_common(SHOWN):
        print(f"{us / 1e3:9.2f} ms {counts[name]:5d} {name[:100]}")


def print_memory(phases: list[Callable[[], None]]) -> None:
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=1_000_000)
    before = torch.cuda.memory_allocated()
    milliseconds(phases)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    live, peak, at_peak = dict[int, Any](), 0, dict[int, Any]()
    size = 0
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = event
            size += event["size"]
        elif event["action"] == "free_completed" and event["addr"] in live:
            size -= live.pop(event["addr"])["size"]
        if size > peak:
            peak, at_peak = size, dict(live)
    sizes = Counter[str]()
    for event in at_peak.values():
        sizes[line_of(event.get("frames") or [])] += event["size"]
    print(f"{before / GIB:.2f} GiB before the step, {peak / GIB:.2f} more at its peak")
    for line, of_line in sizes.most_common(SHOWN):
        print(f"{of_line / GIB:9.2f} GiB {line}")


def line_of(frames: list[dict[str, Any]]) -> str:
    """The innermost two lines outside of torch."""
    outside = [f for f in frames if "/torch/" not in f["filename"]][:2]
    return (
        " < ".join(f"{f['filename'].rpartition('/')[2]}:{f['line']} {f['name']}" for f in outside)
        or "autograd's engine"
    )


def main(variant: str) -> None:
    if variant.startswith("opwright"):
        llm_model.build_fast_calls()
    phases = phases_of(variant)
    for _ in range(llm_model.FIRST + llm_model.WARM):
        milliseconds(phases)
    measured = [milliseconds(phases) for _ in range(STEPS)]
    for title, rows in (("GPU", [gpu for gpu, _ in measured]), ("host", [host for _, host in measured])):
        medians = (statistics.median(row[i] for row in rows) for i in range(len(PHASES)))
        print(title, "  ".join(f"{name} {ms:.2f} ms" for name, ms in zip(PHASES, medians, strict=True)))
    print_kernels(phases)
    print_memory(phases)


if __name__ == "__main__":
    main(sys.argv[1])
