"""The checks "repeated calls", "execution context", "threads" and "own work": wrong kernels and right ones."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from opwright.checks.calls import growth
from opwright.checks.calls.repeated_calls import is_right
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.contract.inputs.cases import cases
from opwright.planted.kernels.state import RIGHT, WARNINGS, WRONG, scale
from opwright.results import Status
from opwright.target import Target
from tests.sampled import quick

CHECKS = ["repeated calls", "execution context", "threads", "own work"]


@pytest.fixture
def verdict(kernel):
    return ow.check(scale, kernels=[kernel], checks=CHECKS, device="cpu").verdicts[0]


@pytest.mark.parametrize("kernel", WRONG)
def test_is_found(verdict, kernel):
    status = Status.WARNING if kernel in WARNINGS else Status.FAIL
    found = [f.message for f in verdict.findings if f.status is status]
    assert any(WRONG[kernel] in message for message in found), verdict.findings


@pytest.mark.parametrize("kernel", RIGHT)
def test_is_left_alone(verdict, kernel):
    assert verdict.status is Status.PASS, verdict.findings


def leaves_a_file_open(x):
    os.open(os.devnull, os.O_RDONLY)
    return 2 * x


_open: list[int] = []


def closes_its_file(x):
    os.close(os.open(os.devnull, os.O_RDONLY))
    return 2 * x


def keeps_one_file(x):
    if not _open:
        _open.append(os.open(os.devnull, os.O_RDONLY))
    return 2 * x


@pytest.mark.parametrize(
    ("kernel", "grows"), [(leaves_a_file_open, True), (closes_its_file, False), (keeps_one_file, False)]
)
def test_files_that_are_never_closed_are_a_warning(namespace, kernel, grows):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    twice.python(kernel, name="kernel")
    (verdict,) = ow.check(twice, checks=["repeated calls"], kernels=["kernel"], device="cpu").verdicts
    assert verdict.status is (Status.WARNING if grows else Status.PASS), verdict.findings
    assert grows == any("files more are open after" in finding.message for finding in verdict.findings)


_gradients: list[torch.Tensor] = []


def keeps_every_gradient(ctx, g):
    _gradients.append(2 * g)
    return _gradients[-1]


def leaves_a_file_open_in_the_backward(ctx, g):
    os.open(os.devnull, os.O_RDONLY)
    return 2 * g


def keeps_the_last_gradient(ctx, g):
    _gradients[:] = [2 * g]
    return _gradients[0]


def makes_a_cycle(ctx, g):
    cycle: list[object] = [2 * g]
    cycle.append(cycle)
    return 2 * g


# Each is a whole check.
@pytest.mark.parametrize(
    ("backward", "grows"),
    quick(
        [
            (keeps_every_gradient, "memory grew by"),
            (leaves_a_file_open_in_the_backward, "files more are open"),
            (keeps_the_last_gradient, ""),
            (makes_a_cycle, ""),
            (lambda ctx, g: 2 * g, ""),
        ],
        0,
        2,
    ),
)
def test_what_backwards_do_not_give_back_is_a_warning(namespace, backward, grows):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 2 * x

    twice.python(lambda x: x + x, name="kernel")
    twice.register_autograd(backward)
    (verdict,) = ow.check(twice, checks=["repeated calls"], device="cpu").verdicts
    assert verdict.status is (Status.WARNING if grows else Status.PASS), verdict.findings
    assert not grows or any(grows in f.message and "backwards" in f.message for f in verdict.findings)


def keeps_its_result(ctx, inputs, output):
    ctx.result = output
    ctx.save_for_backward(*inputs)


def test_a_result_that_its_own_graph_holds_is_given_back_in_time(namespace):
    @ow.op(f"{namespace}::exponential")
    def exponential(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.exp()

    exponential.python(lambda x: x.exp(), name="kernel")
    exponential.register_autograd(lambda ctx, g: g * ctx.result, setup_context=keeps_its_result)
    (verdict,) = ow.check(exponential, checks=["repeated calls"], device="cpu").verdicts
    assert verdict.status is Status.PASS, verdict.findings


@pytest.mark.parametrize(("seconds", "made"), [(0.001, 5 * 40), (0.3, 5 * 8), (0.13, 5 * 16)])
@pytest.mark.slow  # calls that take long
def test_calls_that_take_long_are_fewer_and_as_many_in_each_round(seconds, made, monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(growth.time, "monotonic", lambda: now[0])

    def call():
        now[0] += seconds
        calls.append(os.open(os.devnull, os.O_RDONLY))

    context = Context(scale, next(iter(RIGHT)), Target("cpu"), [])
    (found,) = growth.findings(context, "repeated calls", cases(scale.contract, "quick")[0], call, 40, 64)
    for file in calls:
        os.close(file)
    assert len(calls) == made
    assert found.message == f"{made // 5} files more are open after {made // 5} calls"


_calls = [0]
_scratch = torch.empty(256)


def forgets_the_end_in_some_large_calls(x):
    _calls[0] += x.numel() > 4096
    result = 2 * x
    if x.numel() > 4096 and _calls[0] % 7 == 0:
        result[-1] = 0
    return result


def shares_scratch_of_small_calls(x):
    if not 0 < x.numel() <= 256 or x.dtype is not torch.float32:
        return 2 * x
    _scratch[: x.numel()] = x
    time.sleep(1e-4)
    return 2 * _scratch[: x.numel()]


def knows_up_to_four_threads(x):
    return 2 * x if torch.get_num_threads() <= 4 else x.clone()


# Each is a whole check.
@pytest.mark.parametrize(
    ("kernel", "found"),
    quick(
        [
            (forgets_the_end_in_some_large_calls, "with the same arguments: "),
            (shares_scratch_of_small_calls, "called by two threads at the same time: "),
            (knows_up_to_four_threads, "with seven of torch's threads: "),
            (lambda x: x + x, ""),
        ],
        1,
        3,
    ),
)
def test_large_small_and_many_threads(namespace, kernel, found):
    @ow.op(f"{namespace}::twice")
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    twice.python(kernel, name="kernel")
    checks = ["repeated calls", "threads", "execution context"]
    (verdict,) = ow.check(twice, checks=checks, kernels=["kernel"], device="cpu").verdicts
    assert verdict.status is (Status.FAIL if found else Status.PASS), verdict.findings
    assert any(found in finding.message for finding in verdict.findings)


@pytest.mark.parametrize("policy", [None, "float32"])
def test_only_contexts_that_were_tried_are_said(namespace, policy):
    @ow.op(f"{namespace}::twice", autocast=policy)
    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    twice.python(lambda x: x + x, name="kernel")
    (verdict,) = ow.check(twice, checks=["execution context"], kernels=["kernel"], device="cpu").verdicts
    (finding,) = verdict.findings
    assert ("under torch.autocast" in finding.message) == (policy is None)


def takes_one_tensor_for_a_square(x, y):
    return x + y if x.data_ptr() != y.data_ptr() else x * x


def asks_whether_they_are_one(x, y):
    return 2 * x if x is y else x + y


@pytest.mark.parametrize(
    ("kernel", "is_wrong"), [(takes_one_tensor_for_a_square, True), (asks_whether_they_are_one, False)]
)
def test_one_tensor_is_passed_for_two_arguments(namespace, kernel, is_wrong):
    @ow.op(f"{namespace}::add")
    def add(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + y

    add.python(kernel, name="kernel")
    (verdict,) = ow.check(add, checks=["execution context"], kernels=["kernel"], device="cpu").verdicts
    assert verdict.status is (Status.FAIL if is_wrong else Status.PASS), verdict.findings
    assert is_wrong == any("with one tensor for 'x' and 'y'" in finding.message for finding in verdict.findings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_dtype_of_a_result_is_the_promised_one_not_the_one_that_the_reference_has_on_a_cpu(dtype, monkeypatch):
    context = Context(scale, "counts its calls", Target("cpu"), cases(scale.contract, "smoke"))
    (case, *_) = typical_cases(context, 1)
    run = context.observe(case)
    monkeypatch.setattr(context, "observe", lambda case: dataclasses.replace(run, call=promising(run.call, dtype)))
    wrong = is_right(context, run, run.outputs)  # of float32
    assert (wrong is None) == (dtype is torch.float32), wrong


def promising(call, dtype):
    """A call of which the fake promises a dtype."""
    return dataclasses.replace(call, promised=tuple(dataclasses.replace(p, dtype=dtype) for p in call.promised))


# -- Triton kernels that are none -------------------------------------------------------------------------------------

tl = pytest.importorskip("triton.language")
triton = pytest.importorskip("triton")


@triton.jit
def _sums(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0)))


@ow.op("repeated::total")
def total(x: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    return x.sum()


@total.triton(name="sums up sums", dtypes=[torch.float32])
def _(x):
    x = x.contiguous()
    partial = x.new_empty(triton.cdiv(x.numel(), 256))
    if x.numel():
        _sums[(partial.numel(),)](x, partial, x.numel(), BLOCK=256)
    return partial.sum()


@total.triton(name="leaves it to torch", dtypes=[torch.float32])
def _(x):
    return x.sum()


def test_a_launcher_that_calls_torch_is_found_and_one_that_only_finishes_with_it_is_not():
    found = {v.kernel: v for v in ow.check(total, checks=["own work"], device="cpu").verdicts}
    assert found["sums up sums"].status is Status.PASS, found["sums up sums"].findings
    assert found["leaves it to torch"].status is Status.WARNING
    assert "torch computes it within the kernel: aten::sum" in found["leaves it to torch"].findings[0].message
