"""Triton kernels without a GPU: the simulator's speed beside the interpreter's, and the time of whole checks.

``python benchmarks/triton_simulator.py FILE`` writes the record and prints it. A check is a whole command, from the
start of its process to the end: first with an empty cache ("cold"), then with what the first has compiled ("warm"). The
record names each target that is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

if "--interpreter" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before kernels are decorated

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import kernelsim
import opwright as ow
from opwright.machine import this_machine

# What is asked for: seconds of a whole check without a cache, and times the interpreter's speed.
MOST_SECONDS = {"softmax": 10.0, "rms_norm": 10.0, "matmul": 10.0, "attention": 60.0}
LEAST_SPEEDUP = {"unchecked": 100.0, "checked": 20.0}
# A Python number is a float32 to Triton.
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


@triton.jit
def softmax_kernel(x, out, n, BLOCK: tl.constexpr):
    i, row = tl.arange(0, BLOCK), tl.program_id(0)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
    v = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * n + i, v / tl.sum(v, 0), mask=i < n)


@ow.op("simulated::softmax")
def softmax(x: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
    return torch.softmax(x, -1)


@softmax.triton(name="triton", dtypes=FLOATS)
def launch_softmax(x):
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


@triton.jit
def rms_norm_kernel(x, weight, out, n, eps, BLOCK: tl.constexpr):
    row, total = tl.program_id(0), tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + i, mask=i < n, other=0.0).to(tl.float32)
        total += v * v
    scale = tl.rsqrt(tl.sum(total, 0) / n + eps)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + i, mask=i < n, other=0.0).to(tl.float32)
        g = tl.load(weight + i, mask=i < n, other=0.0).to(tl.float32)
        tl.store(out + row * n + i, v * scale * g, mask=i < n)


@ow.op("simulated::rms_norm")
def rms_norm(
    x: Float[Tensor, "r n"], weight: Float[Tensor, " n"], eps: Annotated[float, ow.values(1e-6, 1e-3)] = 1e-5
) -> Float[Tensor, "r n"]:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


@rms_norm.triton(name="triton", dtypes=FLOATS)
def launch_rms_norm(x, weight, eps):
    x, weight, out = x.contiguous(), weight.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        rms_norm_kernel[(x.shape[0],)](x, weight, out, x.shape[1], eps, BLOCK=256)
    return out


@triton.jit
def matmul_kernel(a, b, out, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        in_a, in_b = (rows[:, None] < m) & (inner[None, :] < k), (inner[:, None] < k) & (columns[None, :] < n)
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=in_a, other=0.0)
        right = tl.load(b + inner[:, None] * n + columns[None, :], mask=in_b, other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(out + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@ow.op("simulated::matmul")
def matmul(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return a @ b


@matmul.triton(name="triton", dtypes=FLOATS)
def launch_matmul(a, b):
    a, b, out = a.contiguous(), b.contiguous(), a.new_empty(a.shape[0], b.shape[1])
    (m, k), n = a.shape, b.shape[1]
    if out.numel():
        matmul_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](a, b, out, m, n, k, BM=64, BN=64, BK=32)
    return out


@triton.jit
def attention_kernel(
    q, k, v, out, heads, groups, n, m, scale, CAUSAL: tl.constexpr, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr
):
    batch_head = tl.program_id(1)
    kv_head = batch_head // heads * (heads // groups) + batch_head % heads // groups
    i, d = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, D)
    query = tl.load(q + batch_head * n * D + i[:, None] * D + d[None, :], mask=i[:, None] < n, other=0.0)
    highest, total = tl.full([BQ], -float("inf"), tl.float32), tl.zeros([BQ], tl.float32)
    result = tl.zeros([BQ, D], tl.float32)
    for start in range(0, m, BK):
        j = start + tl.arange(0, BK)
        at, inside = kv_head * m * D + j[:, None] * D + d[None, :], j[:, None] < m
        scores = tl.dot(query, tl.trans(tl.load(k + at, mask=inside, other=0.0)), input_precision="ieee") * scale
        seen = (j[None, :] <= i[:, None]) & (j[None, :] < m) if CAUSAL else j[None, :] < m
        scores = tl.where(seen, scores, -float("inf"))
        now = tl.maximum(highest, tl.max(scores, 1))
        now_or_0 = tl.where(now == -float("inf"), 0.0, now)
        weights, keep = tl.exp(scores - now_or_0[:, None]), tl.exp(highest - now_or_0)
        total, highest = total * keep + tl.sum(weights, 1), now
        values = tl.load(v + at, mask=inside, other=0.0)
        result = result * keep[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    tl.store(out + batch_head * n * D + i[:, None] * D + d[None, :], result / total[:, None], mask=i[:, None] < n)


@ow.op("simulated::attention")
def attention(
    q: Float[Tensor, "b h n 64"], k: Float[Tensor, "b g m 64"], v: Float[Tensor, "b g m 64"], causal: bool
) -> Float[Tensor, "b h n 64"]:
    if q.shape[1] % max(1, k.shape[1]) or not k.shape[1] or not k.shape[2]:
        raise ValueError("heads are in groups, and there are keys")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


@attention.samples
def shapes():
    for n in (1, 63, 64, 65, 130):
        for causal in (False, True):
            yield torch.randn(1, 4, n, 64), torch.randn(1, 2, n, 64), torch.randn(1, 2, n, 64), causal


@attention.triton(name="triton", dtypes=FLOATS)
def launch_attention(q, k, v, causal):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    (b, h, n, d), (_, g, m, _) = q.shape, k.shape
    if out.numel():
        grid = (triton.cdiv(n, 64), b * h)
        attention_kernel[grid](q, k, v, out, h, h // g, n, m, d**-0.5, CAUSAL=causal, D=d, BQ=64, BK=64)
    return out


def best_seconds(call: Callable[[], Any], times: int) -> float:
    call()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def softmax_seconds() -> float | dict[str, float]:
    """A softmax of 1024 × 1024: of the interpreter in this process, or of the simulator."""
    x, out = torch.randn(1024, 1024), torch.empty(1024, 1024)

    def run() -> None:
        softmax_kernel[(1024,)](x, out, 1024, BLOCK=1024)

    if "--interpreter" in sys.argv:
        return best_seconds(run, 3)
    seconds = {}
    for checked in (True, False):
        with kernelsim.options(checked=checked), kernelsim.triton_launches():
            seconds["checked" if checked else "unchecked"] = best_seconds(run, 9)
        torch.testing.assert_close(out, x.softmax(1))
    return seconds


def check_seconds(name: str) -> dict[str, Any]:
    """A whole check of one operator, twice with one cache."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "opwright", "check", f"{__file__}:{name}", "--device", "cpu-sim"]
        command += ["--timeout", "300", "--json", str(report)]
        environment = {**os.environ, "OPWRIGHT_CACHE_DIR": str(Path(folder) / "cache")}
        for state in ("cold", "warm"):
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True, env=environment)
            found[state] = time.perf_counter() - start
        (verdict,) = json.loads(report.read_text())["verdicts"]
    (values,) = (finding for finding in verdict["findings"] if finding["check"] == "values")
    return {"status": verdict["status"], "cases": values["coverage"]["run"], **found}


def missed(checks: dict[str, dict[str, Any]], speedups: dict[str, float]) -> list[str]:
    """The targets that are."""
    slow = [f"{name}: {checks[name]['cold']:.1f} s, not {most:g}" for name, most in MOST_SECONDS.items()
            if checks[name]["cold"] > most]  # fmt: skip
    return slow + [f"softmax, {how}: {speedups[how]:.0f} times as fast, not {least:g}"
                   for how, least in LEAST_SPEEDUP.items() if speedups[how] < least]  # fmt: skip


def main(file: Path) -> None:
    import records

    command = [sys.executable, __file__, "--interpreter"]
    interpreter = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    simulated = softmax_seconds()
    assert isinstance(simulated, dict)
    checks = {name: check_seconds(name) for name in MOST_SECONDS}
    speedups = {name: interpreter / s for name, s in simulated.items()}
    record = {
        "machine": this_machine().to_json(),
        "triton": triton.__version__,
        "softmax 1024 x 1024, seconds": {"interpreter": interpreter, **simulated},
        "times the interpreter's speed": speedups,
        "quick check, seconds": checks,
        "missed": missed(checks, speedups),
    }
    records.write(file, record)
    print(records.rounded({k: v for k, v in record.items() if k != "machine"}))


if __name__ == "__main__":
    if "--interpreter" in sys.argv:
        print(softmax_seconds())
    else:
        main(Path(sys.argv[1]))
