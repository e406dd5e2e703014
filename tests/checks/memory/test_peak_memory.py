"""The check "peak memory": kernels that take far more memory than they need are found, others left alone."""

from __future__ import annotations

import gc
import itertools
import threading

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.memory import peak_memory
from opwright.checks.memory.allocation import given_out, peak_of, without_collections
from opwright.contract.inputs.cases import cases
from opwright.planted.kernels.peak_memory import RIGHT, WRONG, product, running_sum, scale
from opwright.results import Finding, NotChecked, PeakMemory, Status
from opwright.results.json_form import from_json, to_json
from opwright.target import Engine, Target
from tests.sampled import quick

OPS = {op.contract.name: op for op in (scale, product, running_sum)}
MIB = 1 << 20


def of_each(kernels):
    return [(op, kernel) for op, named in kernels.items() for kernel in named]


def measured(op, kernel, device="cpu", engine=Engine.NATIVE):
    context = Context(op, kernel, Target(device, engine), cases(op.contract, "smoke"))
    (found,) = peak_memory.check(context)
    return found


@pytest.mark.parametrize(("op", "kernel"), quick(of_each(WRONG), 0, 3))
def test_is_found(op, kernel):
    found = measured(OPS[op], kernel)
    assert found.status is Status.WARNING
    assert "times the memory of its arguments, its results and the reference" in found.message
    last = found.peak_memory[-1]
    assert last.kernel > 8 * last.contract
    assert last.case in found.message


@pytest.mark.parametrize(("op", "kernel"), quick(of_each(RIGHT), 0, 4))
def test_is_left_alone(op, kernel):
    found = measured(OPS[op], kernel)
    assert found.status is Status.PASS, found.message


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "kernel"), of_each(WRONG))
def test_is_found_on_a_gpu(op, kernel):
    assert measured(OPS[op], kernel, "cuda").status is Status.WARNING


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "kernel"), of_each(RIGHT))
def test_is_left_alone_on_a_gpu(op, kernel):
    assert measured(OPS[op], kernel, "cuda").status is Status.PASS


@pytest.mark.slow
def test_growth_of_a_higher_order_is_told_from_a_multiple():
    faster = "and grows faster than they do"
    assert faster in measured(product, "all m x k x n products at a time").message
    assert faster not in measured(scale, "keeps the results of 64 steps").message


def test_a_verdict_and_its_record_have_the_bytes():
    (verdict,) = ow.check(running_sum, kernels=["a product with an n x n triangle"], checks=["peak memory"]).verdicts
    assert verdict.status is Status.WARNING
    (found,) = verdict.findings
    assert from_json(Finding, to_json(found)).peak_memory == found.peak_memory
    assert found.peak_memory[-1].case == found.case


def test_narrow_numbers_may_be_held_as_wide_ones():
    @ow.op("peak_memory::mean")
    def mean(x: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
        return x.mean(1)

    @mean.python(name="wide", dtypes=[torch.float16])
    def _(x):
        return torch.stack([x.double(), *[x.float()] * 2]).mean((0, 2)).to(x.dtype)  # float64: 28 bytes for each of 2

    context = Context(mean, "wide", Target("cpu"), cases(mean.contract, "smoke", [torch.float16]))
    (found,) = peak_memory.check(context)
    assert found.status is Status.PASS, found.message


def test_a_kernel_that_no_size_suits_is_not_judged():
    @ow.op("peak_memory::fixed")
    def fixed(x: Float[Tensor, "3 4"]) -> Float[Tensor, "3 4"]:
        return 2 * x

    @fixed.python(name="k")
    def _(x):
        return 2 * x

    found = measured(fixed, "k")
    assert isinstance(found, NotChecked)
    assert "sizes" in found.why


# -- measuring ------------------------------------------------------------------------------------------------------


def test_the_peak_of_a_call_is_exact_whoever_allocates():
    def with_torch():
        a = torch.empty(8 * MIB, dtype=torch.uint8)
        return a, torch.empty(4 * MIB, dtype=torch.uint8)[:1].clone()

    def with_numpy():
        return np.ones(MIB).cumsum()

    for call, expected in ((with_torch, 12 * MIB), (with_numpy, 16 * MIB)):
        call()
        assert expected <= min(peak_of(call, "cpu") for _ in range(2)) < expected + MIB


def test_what_is_freed_before_is_seen_again():
    """The peak of a smaller call after a larger one, though the process has never been larger."""
    sizes = (64 * MIB, 16 * MIB)
    found = [
        min(peak_of(lambda size=size: torch.empty(size, dtype=torch.uint8), "cpu") for _ in range(2)) for size in sizes
    ]
    assert [round(peak / MIB) for peak in found] == [64, 16]


def test_garbage_that_is_freed_meanwhile_hides_nothing():
    """Before each call, the garbage of earlier code becomes due: a collection in the call would free more than the
    call takes."""

    def kernel():
        for _ in range(2 * gc.get_threshold()[0]):
            kept.append([])
        return torch.empty(16 * MIB, dtype=torch.uint8)

    def leave_garbage():
        cycle = [torch.empty(64 * MIB, dtype=torch.uint8)]
        cycle.append(cycle)

    kept: list[list[int]] = []
    kernel()
    leave_garbage()
    with without_collections():
        found = [peak_of(kernel, "cpu") for _ in range(3)]
    assert gc.isenabled()
    assert round(min(found) / MIB) == 16, found


def test_what_is_kept_is_given_out():
    before = dict(given_out("cpu"))["memory"]
    kept = torch.empty(16 * MIB, dtype=torch.uint8)
    assert dict(given_out("cpu"))["memory"] - before >= kept.nbytes


# -- judging --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "contract", "excessive"),
    [
        ([1, 16, 256], [1, 2, 4], True),  # of a higher order
        ([20, 40, 80], [1, 2, 4], True),  # a multiple
        ([60, 61, 63], [1, 2, 4], False),  # a workspace
        ([6, 12, 24], [1, 2, 4], False),  # partial results
        ([1, 2, 300], [1, 2, 4], False),  # threads from some size on, each with its stack
        ([1, 200, 202], [1, 2, 4], False),  # a pool that has grown
        ([256, 16, 1], [1, 2, 4], False),
    ],
)
def test_what_is_too_much(kernel, contract, excessive):
    points = [PeakMemory("n=1", k * MIB, c * MIB) for k, c in zip(kernel, contract, strict=True)]
    assert peak_memory._is_excessive(points) is excessive


def test_little_is_never_too_much():
    points = [PeakMemory("n=1", k << 10, 1 << at) for at, k in enumerate((1, 50, 2500))]
    assert not peak_memory._is_excessive(points)


CPP = """
#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <vector>
using torch::stable::Tensor;
Tensor twice(Tensor x) {
  Tensor out = torch::stable::new_empty(x, {x.size(0)});
  const float* in = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  const int64_t n = x.size(0);
  SCRATCH
  for (int64_t i = 0; i < n; ++i) to[i] = 2 * in[i] + scratch[i];
  return out;
}
"""
SCRATCH = {
    "of n": "std::vector<double> scratch(n);",
    "of n x n": "std::vector<char> scratch(n < 20000 ? n * n : n);",
    "kept of n x n": "static std::vector<char> scratch; if (n < 20000 && scratch.size() < n * n) scratch.resize(n * n);"
                     "else if (scratch.size() < n) scratch.resize(n);",
}  # fmt: skip


@pytest.mark.slow  # three builds by the C++ compiler
@pytest.mark.compiler
def test_what_a_kernel_in_cpp_allocates(tmp_path):
    @ow.op("peak_memory::twice")
    def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    for name, scratch in SCRATCH.items():
        file = tmp_path / f"{name}.cpp"
        file.write_text(CPP.replace("SCRATCH", scratch))
        twice.cpp(file, name=name, when=lambda x: x.is_contiguous())
    found = {v.kernel: v for v in ow.check(twice, checks=["peak memory"], device="cpu").verdicts}
    assert found["of n"].status is Status.PASS, found["of n"].findings
    for kernel in ("of n x n", "kept of n x n"):
        assert found[kernel].status is Status.WARNING, found[kernel].findings


def test_a_simulator_is_not_measured():
    pytest.importorskip("triton")

    @ow.op("peak_memory::on_gpu")
    def on_gpu(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    on_gpu.triton(lambda x: 2 * x, name="k")
    found = measured(on_gpu, "k", engine=Engine.SIMULATOR)
    assert isinstance(found, NotChecked)
    assert "simulator" in found.why


def test_threads_that_a_call_starts_once_are_not_counted_as_growth():
    @ow.op("peak_memory::threaded")
    def threaded(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    @threaded.python(name="k")
    def _(x):
        if x.numel() > 50_000:  # each has a stack of megabytes
            barrier = threading.Barrier(9)
            for _ in itertools.repeat(None, 8):
                threading.Thread(target=barrier.wait).start()
            barrier.wait()
        return 2 * x

    assert measured(threaded, "k").status is Status.PASS
