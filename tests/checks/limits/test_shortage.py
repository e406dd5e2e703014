"""Memory that is short, maybe because of others, says nothing of a kernel; other errors in the same places do."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks.limits.shortage import is_shortage
from opwright.checks.process import run_job
from tests.sampled import quick

# What torch 2.11 says on a machine without NVML, where a GPU has no memory left.
WITHOUT_NVML = RuntimeError(
    "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
    '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1135, please report a bug to PyTorch. '
)


def doubling(name):
    @ow.op(f"shortage::{name}")
    def double(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    return double


def raises_in_other_threads(error):
    def kernel(x):
        if threading.current_thread() is not threading.main_thread():
            raise error
        return x * 2

    return kernel


@pytest.mark.parametrize(
    ("name", "error", "status"),
    quick([
        ("of_a_gpu", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"), "inconclusive"),
        ("of_cublas", RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
         "inconclusive"),
        ("without_nvml", WITHOUT_NVML, "inconclusive"),
        ("of_python", MemoryError(), "inconclusive"),
        ("other", RuntimeError("CUDA error: an illegal memory access was encountered"), "fail"),
    ], 0, 2, 4),
)  # fmt: skip
def test_a_kernel_without_memory_is_inconclusive_and_one_with_an_error_fails(name, error, status):
    op = doubling(name)
    op.python(raises_in_other_threads(error), name="kernel")
    (verdict,) = ow.check(op, device="cpu", checks=["threads"]).verdicts
    assert verdict.status.value == status
    (finding,) = verdict.findings
    assert finding.check == "threads"
    assert ("fewer kernels at a time" in finding.remedy) == (status == "inconclusive")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "pass"),
        (WITHOUT_NVML, "pass"),
        (RuntimeError("an INTERNAL ASSERT FAILED at another place"), "fail"),
    ],
)
def test_a_case_for_which_memory_is_short_is_left_out(error, status):
    def kernel(x):
        if len(x) > 1000:
            raise error
        return x * 2

    op = doubling(f"in_large_cases_{status}_{type(error).__name__}")
    op.python(kernel, name="kernel")
    (verdict,) = ow.check(op, device="cpu", checks=["values"]).verdicts
    assert verdict.status.value == status
    left_out = [what.reason for what in verdict.not_checked if "not enough memory" in what.reason]
    assert bool(left_out) == (status == "pass")


@pytest.mark.parametrize("short", [False, True])
def test_a_kernel_that_the_system_ends_for_its_memory_is_inconclusive(short, monkeypatch):
    def killed(x):
        os.kill(os.getpid(), signal.SIGKILL)
        return x

    op = doubling(f"killed_{short}")
    op.python(killed, name="kernel")
    counts = itertools.count() if short else itertools.repeat(3)
    monkeypatch.setattr(run_job, "ended_for_memory", lambda: next(counts))
    (verdict,) = ow.check(op, device="cpu", checks=["values"]).verdicts
    assert verdict.status.value == ("inconclusive" if short else "fail")
    said = "was ended by the system, whose memory was short" if short else "crashed with SIGKILL"
    assert said in verdict.findings[0].message


def test_errors_about_memory_that_is_there_are_no_shortage():
    assert not is_shortage("CUDA error: an illegal memory access was encountered")
    assert not is_shortage("the output shares memory with input 0")
    assert is_shortage("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000000000 bytes")
