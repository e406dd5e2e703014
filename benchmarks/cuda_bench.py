"""CUDA kernels on a GPU: the time of a call, the bandwidth, and the time to check an edited kernel.

Usage: cuda_bench.py OUTPUT_FOLDER [SECTION...]   (overhead, bandwidth, shapes, edit_to_result; default: all)

1. Eager calls on 1,024 elements: ``op(...)`` around a Python launcher, a host function (if there is nvcc), a Mojo
   kernel (a convolution with one tap, from shipped PTX) and a Triton kernel, ``torch.ops``, the bare kernel and
   ``torch.add`` in turn.
2. The add kernels at 1024², 4096² and 16384² against a device copy and ``torch.add``.
3. Other shapes of the same template (elements per load, elements per thread) at 16384².
4. From an edited source to the first checked result.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import records
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.gallery.add import add, cuda
from opwright.gallery.conv1d import conv1d
from opwright.machine import this_machine
from opwright.results import Refused

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
record: dict[str, object] = {"schema": "opwright.cuda_bench/1", "machine": this_machine().to_json()}


def per_call(calls: dict[str, Callable[[], object]], rounds: int = 15, n: int = 2000) -> dict[str, float]:
    """Median microseconds of CPU time per call, without a queue on the GPU; each round times all candidates in turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(200):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(n):
                call()
            found[name].append((time.perf_counter() - start) / n * 1e6)
    return {name: statistics.median(times) for name, times in found.items()}


def add_with_host_function() -> ow.Op | None:
    """An addition in a .cu file with its host function: only the operator itself is in Python."""

    @ow.op("bench::add_host")
    def add_host(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + y

    add_host.cuda(Path(__file__).with_name("add_host.cu"), name="host", dtypes=[torch.float32])
    x = torch.ones(8, device="cuda")
    reason = add_host.kernels["host"].probe("cuda")
    if isinstance(reason, Refused):
        print(f"the host function is left out: {reason.reason}")
        return None
    with add_host.only("host"):
        assert torch.equal(add_host(x, x), 2 * x)
    return add_host


def overhead() -> dict[str, float]:
    x, y = torch.randn(1024, device="cuda"), torch.randn(1024, device="cuda")
    tap = torch.ones(1, device="cuda")
    made = torch.empty_like(x)
    kernel, launcher = cuda["add<float, 4, 4>"], add.kernels["f32x4"]
    with_host = add_with_host_function()
    triton_launcher = add.kernels["triton"].load()

    def bare() -> torch.Tensor:
        made = torch.empty_like(x)
        kernel[1, 256](x, y, made, 1024)
        return made

    calls = {
        "torch.add": lambda: torch.add(x, y),
        "op, Python launcher": lambda: add(x, y),
        "op, host function": (lambda: with_host(x, y)) if with_host else None,
        "op, Mojo kernel": lambda: conv1d(x, tap),  # the first applicable one
        "torch.ops, Python launcher": lambda: torch.ops.gallery.add(x, y),
        "that launcher alone": functools.partial(launcher.load(), x, y),
        "bare kernel + empty_like": bare,
        "bare kernel": lambda: kernel[1, 256](x, y, made, 1024),
        "bare Triton launcher": lambda: triton_launcher(x, y),
        "empty_like": lambda: torch.empty_like(x),
    }
    times = per_call({name: call for name, call in calls.items() if call is not None})
    with add.only("triton"):
        times |= per_call({"torch.add (again)": calls["torch.add"], "op, Triton kernel": lambda: add(x, y)}, rounds=5)
    for name, us in times.items():
        print(f"{name:>26}: {us:7.2f} µs  {us / times['torch.add']:5.2f} × torch.add")
    return times


def bandwidth() -> list[dict[str, object]]:
    rows = []
    for dtype in ("float32", "float16", "bfloat16"):
        kernels = [n for n, k in add.kernels.items() if k.backend == "cuda" and str(k.spec.dtypes[0]).endswith(dtype)]
        report = ow.bench(
            add, kernels=[*kernels, "triton"], sizes={"n": [1024**2, 4096**2, 16384**2]}, dtypes=[dtype],
            directions=["forward"], device="cuda", baselines=["eager"], iters=30,
        )  # fmt: skip
        for error in report.errors:
            print("error:", error)
        (out / f"add-{dtype}.json").write_text(json.dumps(report.to_json()))
        found = [m for m in report.measurements if m.cache == "cold" or m.case["n"][0] < 2**26]
        eager = {(m.case["n"][0], m.cache): m.gpu_us.median for m in found if m.kernel == "eager"}
        for m in found:
            n, us = m.case["n"][0], m.gpu_us.median
            row = {"dtype": dtype, "kernel": m.kernel, "n": n, "cache": m.cache, "us": us}
            row |= {"GB/s": m.bytes / us / 1e3, "of copy": m.roofline_fraction, "of torch.add": eager[n, m.cache] / us}
            rows.append(row)
            print(" ".join(f"{v:>10.3f}" if isinstance(v, float) else f"{v!s:>10}" for v in row.values()))
    return rows


def events(call: Callable[..., object], *arguments: object, n: int = 20) -> float:
    """Median microseconds on the GPU; the data are far larger than its cache."""
    for _ in range(3):
        call(*arguments)
    times = []
    for _ in range(n):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call(*arguments)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def shapes() -> list[dict[str, object]]:
    rows = []
    n = 16384**2
    for name, dtype, loads in (("float", torch.float32, (1, 2, 4)), ("__half", torch.float16, (1, 2, 8))):
        x, y = torch.randn(n, device="cuda").to(dtype), torch.randn(n, device="cuda").to(dtype)
        made = torch.empty_like(x)
        torch_us = events(functools.partial(torch.add, out=made), x, y)
        copy_us = events(made.copy_, x) * 1.5  # the time for as many bytes as an addition moves
        print(f"{name:>7}: torch.add {torch_us:.1f} µs, a copy of as many bytes {copy_us:.1f} µs")
        for load in loads:
            for times in (1, 2, 4, 8):
                for threads in (128, 256, 512, 1024):
                    kernel = cuda[f"add<{name}, {load}, {load * times}>"]
                    grid = ow.cdiv(n, threads * load * times)
                    us = events(kernel[grid, threads], x, y, made, n, n=7)
                    rows.append({"type": name, "load": load, "a thread": load * times, "threads": threads, "us": us,
                                 "of torch.add": torch_us / us, "of copy": copy_us / us})  # fmt: skip
        for r in sorted((r for r in rows if r["type"] == name), key=lambda r: r["us"])[:8]:
            print("  ", r)
    return rows


def edited_operator(i: int) -> ow.Op:
    """An operator whose CUDA kernel no process has compiled yet."""
    module = ow.cuda_module(f"""
    // {i}, {time.time()}
    __global__ void twice(const float* x, float* out, long long n) {{
      long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
      if (i < n) out[i] = 2 * x[i];
    }}""")

    @ow.op("bench::twice")
    def twice(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        return 2 * x

    @twice.cuda(name="edited", dtypes=[torch.float32])
    def _(x):
        x = x.contiguous()
        made = torch.empty_like(x, memory_format=torch.contiguous_format)
        module["twice"][ow.cdiv(x.numel(), 256), 256](x, made, x.numel())
        return made

    return twice


def edit_to_result() -> dict[str, float]:
    text = Path(cuda.source.path).read_text()
    x = torch.randn(1000, device="cuda")
    direct = []
    for i in range(5):
        start = time.perf_counter()
        kernel = ow.cuda_module(f"{text}\n// edit {i}, {time.time()}\n")["add<float, 4, 4>"]
        made = torch.empty_like(x)
        kernel[1, 256](x, x, made, 1000)
        assert torch.equal(made, 2 * x)
        direct.append(time.perf_counter() - start)
    checked = []
    for i in range(3):
        add_one, seconds = edited_operator(i), time.perf_counter()
        report = ow.check(add_one, kernels=["edited"], device="cuda", checks=["values"])
        checked.append(time.perf_counter() - seconds)
        assert report.verdicts[0].status == "pass", report
    times = {"compiled, launched, compared": statistics.median(direct), "ow.check, values": min(checked)}
    print(times)
    return times


SECTIONS = {section.__name__: section for section in (overhead, bandwidth, shapes, edit_to_result)}
for section in [SECTIONS[name] for name in sys.argv[2:] or SECTIONS]:
    start = time.perf_counter()
    print(f"== {section.__name__}")
    try:
        record[section.__name__] = section()
    except Exception:
        traceback.print_exc()
        record[section.__name__] = {"failed": traceback.format_exc()}
    print(f"   {time.perf_counter() - start:.1f} s", flush=True)
    records.write(out / "cuda.json", record)
