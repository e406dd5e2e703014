"""The checks "memory" and "protected memory": wrong accesses are found with their place; right kernels pass."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.memory import memory, protected_memory
from opwright.contract.inputs.cases import cases
from opwright.results import Finding, Status
from opwright.target import Engine, Target

CHECKS = ["memory", "protected memory"]


@ow.op("memory_checks::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x


def _size(tensor):
    return tensor.untyped_storage().nbytes()


@twice.python(name="writes past its output")
def _(x):
    out = x.new_empty(x.shape)
    out.copy_(2 * x)
    ctypes.memset(out.data_ptr() + _size(out), 0, 1)
    return out


@twice.python(name="writes before its output")
def _(x):
    out = x.new_empty(x.shape)
    out.copy_(2 * x)
    ctypes.memset(out.data_ptr() - 8, 0, 8)
    return out


@twice.python(name="writes past its argument")
def _(x):
    start = x.data_ptr() - x.storage_offset() * x.element_size()
    ctypes.memset(start + _size(x) + 2 * x.element_size(), 7, 1)
    return 2 * x


@twice.python(name="writes past its scratch")
def _(x):
    scratch = torch.zeros(x.numel(), dtype=x.dtype)
    ctypes.memset(scratch.data_ptr() + _size(scratch), 1, 4)
    return 2 * x + scratch


@twice.python(name="uses scratch that it has not written")
def _(x):
    scratch = torch.empty_like(x)
    return torch.where(scratch > 0.5, 2 * x * (1 + torch.finfo(x.dtype).eps), 2 * x)


@twice.python(name="leaves an element unwritten")
def _(x):
    out = x.new_empty(x.shape)
    out[: x.numel() - (x.numel() > 5)] = 2 * x[: x.numel() - (x.numel() > 5)]
    return out


@twice.python(name="returns before it has finished")
def _(x):
    out = x.new_zeros(x.shape)

    def finish():
        time.sleep(0.2)
        out.copy_(2 * x)

    threading.Thread(target=finish).start()
    return out


@twice.python(name="writes its argument after it has returned")
def _(x):
    result = 2 * x
    if x.numel():
        threading.Timer(0.2, x[:1].zero_).start()
    return result


@twice.python(name="reads past its argument")
def _(x):
    ctypes.string_at(x.data_ptr() + max(1, x.numel()) * x.stride(0) * x.element_size(), 1)
    return 2 * x


@twice.python(name="reads before its argument")
def _(x):
    ctypes.string_at(x.data_ptr() - 1, 1)
    return 2 * x


@twice.python(name="sets back what it wrote into its argument", when=lambda x: x.is_contiguous())
def _(x):
    twice_as_much = x.neg_() * -2
    x.neg_()
    return twice_as_much


@twice.python(name="marks its argument while it runs")
def _(x):
    first = ctypes.string_at(x.data_ptr(), 1) if x.numel() else b""
    ctypes.memset(x.data_ptr(), 7, len(first))
    result = 2 * x.clone()
    ctypes.memmove(x.data_ptr(), first, len(first))
    if x.numel():
        result[0] = 2 * x[0]
    return result


WRONG = {
    "writes past its output": "memory past the end of output 0 was written: 1 bytes, the nearest in element 1 beyond",
    "writes before its output": "memory before the start of output 0 was written",
    "writes past its argument": "memory past the end of argument 'x' was written: 1 bytes, the nearest in element 3",
    "writes past its scratch": "memory past the end of a new tensor of [",
    "uses scratch that it has not written": "depend on memory that was never written",
    "leaves an element unwritten": "depend on memory that was never written",
    "returns before it has finished": "results arrive after the call has returned",
    "writes its argument after it has returned": "argument 'x' was written after the call had returned",
    "reads past its argument": "crashed with SIGSEGV past the end of argument 'x'",
    "reads before its argument": "crashed with SIGSEGV before the start of argument 'x'",
    "sets back what it wrote into its argument": "crashed with SIGSEGV as it wrote into argument 'x'",
    "marks its argument while it runs": "crashed with SIGSEGV as it wrote into argument 'x'",
}


@twice.python(name="writes a copy of its argument and views of the copy")
def _(x):
    copy = x.clone()
    copy[x.numel() // 2 :] *= 2
    copy[: x.numel() // 2].add_(x[: x.numel() // 2])
    return copy


@twice.python(name="has arrays of NumPy over its argument")
def _(x):
    return torch.from_numpy(2 * x.detach().double().numpy()).to(x.dtype)


@twice.python(name="writes all of its scratch")
def _(x):
    scratch = torch.empty_like(x)
    scratch.copy_(x)
    return x + scratch


@twice.python(name="returns a part of a larger tensor")
def _(x):
    out = x.new_empty(x.numel() + 16)
    out[: x.numel()] = 2 * x
    return out[: x.numel()]


@twice.python(name="resizes its output")
def _(x):
    return x.new_empty(0).resize_(x.shape).copy_(2 * x)


@twice.python(name="reads its last element by address")
def _(x):
    if x.numel():
        ctypes.string_at(x.data_ptr() + (x.numel() - 1) * x.stride(0) * x.element_size(), x.element_size())
    return 2 * x


@twice.python(name="reads 16 bytes where they are aligned", when=lambda x: x.is_contiguous() and x.data_ptr() % 16 == 0)
def _(x):
    whole = _size(x) // 16
    ctypes.string_at(x.data_ptr(), whole * 16)
    return 2 * x


RIGHT = [name for name in twice.kernels if name not in WRONG]


def _messages(verdict):
    return [f.message for f in verdict.findings if f.status is Status.FAIL]


@pytest.fixture
def verdict(kernel):
    return ow.check(twice, kernels=[kernel], checks=CHECKS, device="cpu").verdicts[0]


@pytest.mark.parametrize("kernel", WRONG)
def test_is_found(verdict, kernel):
    assert any(WRONG[kernel] in message for message in _messages(verdict)), verdict.findings


@pytest.mark.parametrize("kernel", RIGHT)
def test_is_left_alone(verdict, kernel):
    assert verdict.status is Status.PASS, verdict.findings


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        ("sets back what it wrote into its argument", True),
        ("writes a copy of its argument and views of the copy", False),
        ("resizes its output", False),
    ],
)
def test_where_no_memory_is_protected_torch_tells_of_writes_that_are_set_back(kernel, wrong):
    context = Context(twice, kernel, Target("cpu", Engine.SIMULATOR), cases(twice.contract, "smoke"))
    messages = [found.message for found in protected_memory.check(context) if isinstance(found, Finding)]
    assert [m.split(",")[0] for m in messages] == (["a function of torch wrote into argument 'x'"] if wrong else [])


def test_a_failure_is_kept_though_a_simpler_case_ends_the_process():
    @ow.op("memory_checks::copied")
    def copied(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.clone()

    failed: list[int] = []

    @copied.python(name="kernel")
    def _(x):
        if x.numel() > 5000:
            failed.append(x.numel())
        elif failed and x.numel() == 0:
            ctypes.string_at(0)
        return x + (x.numel() > 5000)

    (verdict,) = ow.check(copied, checks=["values"], device="cpu").verdicts
    assert any("elements differ" in message for message in _messages(verdict)), verdict.findings
    assert any("SIGSEGV" in message for message in _messages(verdict))


CPP = """
#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/ops.h>
using torch::stable::Tensor;
Tensor suffix_sums(Tensor x) {
  Tensor out = torch::stable::new_empty(x, {x.size(0)});
  const float* in = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(out.data_ptr());
  const int64_t n = x.size(0);
  float sum = 0;
  BODY
  return out;
}
"""
BODIES = {
    "right": "for (int64_t i = n - 1; i >= 0; --i) to[i] = sum += in[i];",
    "writes": "for (int64_t i = n - 1; i >= 0; --i) to[i] = sum += in[i]; to[n] = 0;",
    "protected memory": "volatile float unused = in[n]; for (int64_t i = n - 1; i >= 0; --i) to[i] = sum += in[i];",
}


@pytest.mark.slow  # three builds by the C++ compiler
def test_a_kernel_in_cpp(tmp_path):
    @ow.op("memory_checks::suffix_sums")
    def suffix_sums(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x.flip(0).cumsum(0).flip(0)

    for name, body in BODIES.items():
        file = tmp_path / f"{name}.cpp"
        file.write_text(CPP.replace("BODY", body))
        suffix_sums.cpp(file, name=name, when=lambda x: x.is_contiguous())
    found = {v.kernel: _messages(v) for v in ow.check(suffix_sums, checks=CHECKS, device="cpu").verdicts}
    assert found["right"] == []
    assert "past the end of output 0" in found["writes"][0]
    assert "past the end of argument 'x'" in found["protected memory"][0]


def test_lists_and_written_arguments():
    @ow.op("memory_checks::add_all_")
    def add_all_(
        out: Annotated[Float[Tensor, " n"], ow.mutated], xs: list[Float[Tensor, " n"]], at: Int[Tensor, " k"]
    ) -> None:
        for x in xs:
            out += x

    @add_all_.python(name="right")
    def _(out, xs, at):
        for x in xs:
            out += x

    @add_all_.python(name="wrong")
    def _(out, xs, at):
        for x in xs:
            out += x
        last = xs[-1]
        ctypes.memset(last.data_ptr() - last.storage_offset() * last.element_size() - 1, 0, 1)

    found = {v.kernel: _messages(v) for v in ow.check(add_all_, checks=CHECKS, device="cpu").verdicts}
    assert found["right"] == []
    assert "memory before the start of argument 'xs'" in found["wrong"][0]


def test_arguments_of_one_element_have_any_strides():
    """Torch takes such memory for contiguous, and refuses to view it as bytes."""

    @ow.op("memory_checks::scale_by")
    def scale_by(x: Float[Tensor, " n"], a: Float32[Tensor, "1 1"], i: Int[Tensor, "1"]) -> Float[Tensor, " n"]:
        return x * a.view(()).to(x.dtype) + i.to(x.dtype)

    @scale_by.python
    def right(x, a, i):
        return x * a.view(()).to(x.dtype) + i.to(x.dtype)

    (verdict,) = ow.check(scale_by, checks=CHECKS, device="cpu").verdicts
    assert _messages(verdict) == []


def test_results_that_differ_by_chance_are_no_reads_of_other_memory(monkeypatch):
    def judged(results):
        """What is said of a kernel that gives one bit in each of these calls, with the two patterns in turn."""
        calls = iter(results)
        monkeypatch.setattr(memory, "_run_guarded", lambda *_: (torch.tensor([float(next(calls))]),))
        case = context.prepare(context.cases[0])
        return memory._find_error(context, case, waits_at=None)

    context = Context(twice, "writes all of its scratch", Target("cpu"), [])
    context.cases += [case for case in cases(twice.contract, "quick") if dict(case.sizes)["n"]][:1]
    assert judged([0, 1, 0, 1, 1, 1]) is None
    assert "memory that was never written" in judged([0, 1] * 20)
