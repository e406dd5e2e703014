"""Many different kernels against themselves: how often is the verdict SAME? Usage: self_comparison.py [--quick]

Each kernel (elementwise, reductions, softmax, norms, transposes, gathers, matrix products …) is timed as two candidates
that take turns, warm and cold. Every verdict but SAME is a false one: UNCLEAR is no result, FASTER and
SLOWER are wrong. On a GPU they are Triton kernels and torch calls; without one, torch, NumPy and C++ kernels on the CPU
show that the script works. The record goes to self_comparison.json in $OUT, or in the current folder.

--quick takes fewer samples, about a second for each kernel.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.machine import this_machine
from opwright.timing.analysis.statistics import StopRule, compare, estimate
from opwright.timing.candidates import Candidate, input_sets, kernel_candidate
from opwright.timing.hardware.clocks import ClockWatch
from opwright.timing.hardware.precision import PrecisionFlags
from opwright.timing.measurement_pass import measure_in_turn
from opwright.timing.sizes import bench_cases
from opwright.timing.timers import make_timer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
QUICK = "--quick" in sys.argv[1:]
RULE = StopRule(min_seconds=0.15, max_seconds=0.4) if QUICK else StopRule()


@dataclass(frozen=True)
class Kernel:
    """One kernel of one operator at one size."""

    op: ow.Op
    name: str
    sizes: dict[str, int]


# -- the operators' references ------------------------------------------------------------------------------------


def unary(name: str, function: Callable[[Tensor], Tensor]) -> ow.Op:
    @ow.op(f"selfcomparison::{name}")
    def reference(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        return function(x)

    return reference


def row_reduction(name: str, function: Callable[[Tensor], Tensor]) -> ow.Op:
    @ow.op(f"selfcomparison::{name}")
    def reference(x: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
        return function(x)

    return reference


@ow.op("selfcomparison::add")
def add(x: Float[Tensor, "m n"], y: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x + y


@ow.op("selfcomparison::axpy")
def axpy(x: Float[Tensor, "m n"], y: Float[Tensor, "m n"], a: float = 1.5) -> Float[Tensor, "m n"]:
    return a * x + y


@ow.op("selfcomparison::transpose")
def transpose(x: Float[Tensor, "m n"]) -> Float[Tensor, "n m"]:
    return x.t()


@ow.op("selfcomparison::outer")
def outer(x: Float[Tensor, " m"], y: Float[Tensor, " n"]) -> Float[Tensor, "m n"]:
    return x[:, None] * y


@ow.op("selfcomparison::matmul")
def matmul(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return a @ b


@ow.op("selfcomparison::total")
def total(x: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return x.sum()


@ow.op("selfcomparison::cumsum")
def cumsum(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x.cumsum(1)


@ow.op("selfcomparison::sort")
def sort(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x.sort(1).values


# Elementwise operators: the reference, and the same in Triton's language and in C++.
ELEMENTWISE = {
    "negate": (lambda x: -x, "-x", "-x"),
    "square": (lambda x: x * x, "x * x", "x * x"),
    "relu": (torch.relu, "tl.maximum(x, 0.0)", "x > 0 ? x : 0.0f"),
    "sigmoid": (torch.sigmoid, "1 / (1 + tl.exp(-x))", "1 / (1 + std::exp(-x))"),
    "exponential": (torch.exp, "tl.exp(x)", "std::exp(x)"),
    "silu": (torch.nn.functional.silu, "x / (1 + tl.exp(-x))", "x / (1 + std::exp(-x))"),
    "shift": (lambda x: x + 1, "x + 1", "x + 1"),
    "leaky": (torch.nn.functional.leaky_relu, "tl.where(x > 0, x, 0.01 * x)", "x > 0 ? x : 0.01f * x"),
    "cube": (lambda x: x * x * x, "x * x * x", "x * x * x"),
}
ROWS = {
    "row_sum": (lambda x: x.sum(1), "tl.sum(x, 0)"),
    "row_max": (lambda x: x.amax(1), "tl.max(x, 0)"),
    "row_square_sum": (lambda x: (x * x).sum(1), "tl.sum(x * x, 0)"),
}
ROW_MAPS = {
    "softmax": (lambda x: torch.softmax(x, 1), "tl.exp(x - tl.max(x, 0)) / tl.sum(tl.exp(x - tl.max(x, 0)), 0)"),
    "center": (lambda x: x - x.mean(1, keepdim=True), "x - tl.sum(x, 0) / n"),
}

TRITON_HEAD = """\
import torch
import triton
import triton.language as tl
"""
TRITON_ELEMENTWISE = """

@triton.jit
def _{name}(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, at < n)
    tl.store(out_ptr + at, {formula}, at < n)


def {name}(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    _{name}[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out
"""
# A row has as many elements as its block, so no lane is masked at the sizes timed here.
TRITON_ROWS = """

@triton.jit
def _{name}(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, at < n)
    tl.store(out_ptr + row{store}, {formula}{mask})


def {name}(x):
    x = x.contiguous()
    out = {out}
    _{name}[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
"""
TRITON_TRANSPOSE = """

@triton.jit
def _transpose(x_ptr, out_ptr, m, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    x = tl.load(x_ptr + rows[:, None] * n + columns[None, :], inside)
    tl.store(out_ptr + columns[None, :] * m + rows[:, None], x, inside)


def transpose(x):
    x = x.contiguous()
    m, n = x.shape
    out = x.new_empty((n, m))
    _transpose[(triton.cdiv(m, 32), triton.cdiv(n, 32))](x, out, m, n, BLOCK=32)
    return out
"""
CPP = """\
#include <cmath>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor {name}(const Tensor& argument) {{
  const Tensor input = torch::stable::contiguous(argument);
  Tensor output = torch::stable::empty_like(input);
  const float* in = input.const_data_ptr<float>();
  float* out = output.mutable_data_ptr<float>();
  for (int64_t i = 0; i < input.numel(); ++i) {{
    const float x = in[i];
    out[i] = {formula};
  }}
  return output;
}}
"""


def all_kernels(folder: Path) -> list[Kernel]:
    """At least twenty kernels, in all languages that this machine has."""
    operators = {name: unary(name, reference) for name, (reference, *_) in ELEMENTWISE.items()}
    rows = {name: row_reduction(name, reference) for name, (reference, _) in ROWS.items()}
    maps = {name: unary(name, reference) for name, (reference, _) in ROW_MAPS.items()}
    large = {"m": 4096, "n": 4096} if DEVICE == "cuda" else {"m": 256, "n": 256}
    if DEVICE == "cuda":
        attach_triton(folder, operators, rows, maps)
    else:
        attach_on_cpu(folder, operators, rows, maps)
    own = (*operators.values(), *rows.values(), *maps.values(), transpose)
    return [Kernel(op, name, large) for op in own for name in op.kernels] + torch_kernels(large)


def attach_triton(folder: Path, operators: dict[str, ow.Op], rows: dict[str, ow.Op], maps: dict[str, ow.Op]) -> None:
    text = TRITON_HEAD
    for name, (_, formula, _) in ELEMENTWISE.items():
        text += TRITON_ELEMENTWISE.format(name=name, formula=formula)
    for name, (_, formula) in ROWS.items():
        text += TRITON_ROWS.format(name=name, formula=formula, store="", mask="", out="x.new_empty(x.shape[0])")
    for name, (_, formula) in ROW_MAPS.items():
        text += TRITON_ROWS.format(
            name=name, formula=formula, store=" * n + at", mask=", at < n", out="torch.empty_like(x)"
        )
    file = folder / "self_comparison_triton.py"
    file.write_text(text + TRITON_TRANSPOSE)
    for op in (*operators.values(), *rows.values(), *maps.values(), transpose):
        op.triton(file, entry=op.contract.name)


def attach_on_cpu(folder: Path, operators: dict[str, ow.Op], rows: dict[str, ow.Op], maps: dict[str, ow.Op]) -> None:
    for name, op in operators.items():
        if this_machine().cxx is not None:
            file = folder / f"{name}.cpp"
            file.write_text(CPP.format(name=name, formula=ELEMENTWISE[name][2]))
            op.cpp(file, dtypes=[torch.float32])
        else:
            op.python(one_argument(ELEMENTWISE[name][0]), name="torch")
    for name, op in rows.items():
        op.python(one_argument(ROWS[name][0]), name="torch")
    for name, op in maps.items():
        op.python(one_argument(ROW_MAPS[name][0]), name="torch")


def one_argument(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def kernel(x: Tensor) -> Tensor:
        return function(x).contiguous()

    return kernel


def torch_kernels(large: dict[str, int]) -> list[Kernel]:
    """torch's kernels: its own and its libraries'."""
    n = large["n"]
    implementations: list[tuple[ow.Op, Any, dict[str, int]]] = [
        (add, lambda x, y: torch.add(x, y).contiguous(), large),
        (axpy, lambda x, y, a: torch.add(y, x, alpha=a).contiguous(), large),
        (transpose, lambda x: x.t().contiguous(), large),
        (outer, lambda x, y: torch.outer(x, y), large),
        (matmul, lambda a, b: torch.mm(a, b), {"m": n // 4, "k": n // 4, "n": n // 4}),
        (total, lambda x: x.sum(), {"n": n * n}),
        (cumsum, lambda x: x.cumsum(1).contiguous(), large),
        (sort, lambda x: x.sort(1).values.contiguous(), {"m": 64, "n": n}),
    ]
    for op, function, _ in implementations:
        op.python(function, name="torch")
    return [Kernel(op, "torch", sizes) for op, _, sizes in implementations]


# -- measuring --------------------------------------------------------------------------------------------------


def against_itself(kernel: Kernel, timer: Any, watch: ClockWatch) -> list[dict[str, Any]]:
    """Compare the kernel with itself, cold and warm. Raises the kernel's exceptions."""
    sizes = {name: [size] for name, size in kernel.sizes.items()}
    (case,) = bench_cases(kernel.op.contract, DEVICE, sizes=sizes, dtypes=(), declared={}, quick=True)
    sets = input_sets(kernel.op, case, DEVICE, timer.cache_bytes, timer.most_bytes)
    one = kernel_candidate(kernel.op, kernel.name)
    pair = [one, Candidate("again", one.backend, one.run, one.prepared)]
    for candidate in pair:
        with candidate.prepared():
            timer.warm_up(candidate, sets)
    rows = []
    for cache in ("cold", "warm"):
        with timer.steady():
            found = measure_in_turn(timer, pair, {s.name: sets for s in pair}, cache, RULE, watch, lambda what: None)
        verdict = compare(found[one.name].rounds, found["again"].rounds)
        rows.append(
            {
                "op": kernel.op.contract.name, "kernel": kernel.name, "backend": one.backend, "sizes": kernel.sizes,
                "cache": cache, "us": estimate(found[one.name].all).median, "samples": len(found[one.name].all),
                "note": timer.not_captured(one) if cache == "warm" else "", **vars(verdict),
            }
        )  # fmt: skip
    timer.forget()
    return rows


def main() -> None:
    started = time.monotonic()
    timer, watch = make_timer(DEVICE), ClockWatch()
    if DEVICE == "cuda":
        watch.start(torch.cuda.current_device())
    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = all_kernels(Path(folder))
        print(f"{len(kernels)} kernels on {DEVICE}{', quick' if QUICK else ''}")
        print(f"{'':<25}{'cold µs':>10}  {'verdict':<8}{'ratio':>7}{'warm µs':>12}  {'verdict':<8}{'ratio':>7}")
        for kernel in kernels:
            try:
                cold, warm = against_itself(kernel, timer, watch)
            except Exception as error:  # a kernel that does not compile is reported, and the others continue
                errors.append(
                    f"{kernel.op.contract.name} {kernel.name}: {type(error).__name__}: {str(error).splitlines()[0]}"
                )
                continue
            rows += [cold, warm]
            print(
                f"{cold['op']:<16}{cold['kernel']:<9}{cold['us']:>10.2f}  {cold['verdict']:<8}{cold['ratio']:>7.3f}"
                f"{warm['us']:>12.2f}  {warm['verdict']:<8}{warm['ratio']:>7.3f}",
                flush=True,
            )
    counts = {how: dict(Counter(str(r["verdict"]) for r in rows if r["cache"] == how)) for how in ("cold", "warm")}
    seconds = time.monotonic() - started
    for cache, found in counts.items():
        print(f"{cache}: {found.get('SAME', 0)} of {sum(found.values())} SAME {found}")
    print(f"{seconds:.0f} s", *errors, *watch.notes, sep="\n")
    record = {
        "what": "kernels timed against themselves",
        "machine": this_machine().to_json(),
        "opwright": ow.__version__,
        "settings": {**PrecisionFlags().to_json(), **timer.settings()},
        "quick": QUICK,
        "seconds": seconds,
        "counts": counts,
        "rows": rows,
        "errors": errors,
        "notes": watch.notes,
    }
    file = Path(os.environ.get("OUT", ".")) / "self_comparison.json"
    records.write(file, record)
    print(file)


if __name__ == "__main__":
    main()
