"""The check "large offsets": kernels whose offsets overflow are found, and right ones left alone.

Most kernels here have offsets of 16 bits and a check that looks past 2¹⁵ elements, which takes milliseconds. Two have
the sizes in question.
"""

from __future__ import annotations

import fcntl
from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Float32, Int64, UInt8
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.limits.shortage import free_bytes
from opwright.checks.memory import large_offsets
from opwright.checks.request import Reports, Request
from opwright.machine import this_machine
from opwright.results import Finding, NotChecked, Status
from opwright.target import Target


@pytest.fixture(autouse=True)
def offsets_of_16_bits(request, monkeypatch):
    if request.node.get_closest_marker("slow") is None:
        for name, value in {"_MOST_OF_32_BITS": 1 << 15, "_PAST": 1 << 12, "_PERIOD": 251, "_OTHERS": 8,
                            "_LEAST_RESULT": 1 << 10, "_LONGEST_SUM": 1 << 12}.items():  # fmt: skip
            monkeypatch.setattr(large_offsets, name, value)


def found(operator: ow.Op, kernel: str) -> list[Finding | NotChecked]:
    context = Context(operator, kernel, Target("cpu"), [], Request("full", reproduce="again {check} {case}"))
    with operator.only(kernel):
        return list(large_offsets.check(context))


@ow.op("offsets::twice")
def twice(x: Float32[Tensor, "rows columns"]) -> Float32[Tensor, "rows columns"]:
    return 2 * x


def _leaves_out(x):
    out = torch.zeros_like(x)
    out.view(-1)[: 1 << 15] = 2 * x.view(-1)[: 1 << 15]
    return out


def _reads_elsewhere(x):
    at = torch.arange(x.numel()) & 0x7FFF
    return (2 * x.view(-1)[at]).view(x.shape)


def _writes_elsewhere(x):
    out = torch.zeros_like(x)
    out.view(-1)[torch.arange(x.numel()) & 0x7FFF] = 2 * x.view(-1)
    return out


twice.python(lambda x: x + x, name="right")
_WRONG = {"leaves out": _leaves_out, "reads elsewhere": _reads_elsewhere, "writes elsewhere": _writes_elsewhere}
for _name, _function in _WRONG.items():
    twice.python(_function, name=_name)


@pytest.mark.parametrize("kernel", _WRONG)
def test_an_offset_that_overflows_is_found(kernel):
    (finding,) = found(twice, kernel)
    assert finding.status is Status.FAIL
    assert "of the elements from" in finding.message
    assert "does not fit into 32 bits" in finding.message
    assert finding.reproduce.startswith("again large offsets rows=4608 columns=8")


def test_right_offsets_pass():
    (finding,) = found(twice, "right")
    assert finding.status is Status.PASS
    assert str(finding.coverage) == "2 of 2 cases"


# -- what looks suspicious, and is right ------------------------------------------------------------------------------


@ow.op("offsets::steps")
def steps(x: Float[Tensor, " n"], k: Annotated[int, ow.values(low=1, high=3)] = 2) -> Float[Tensor, " n"]:
    return (x * k).floor()


steps.python(lambda x, k: (x.float() * k).floor().to(x.dtype), name="rounds elsewhere")
steps.python(lambda x, k: x.new_empty(10**15), name="has not enough memory")


@steps.python(name="refuses long ones")
def _(x, k):
    if x.numel() > 1 << 15:
        raise ValueError("at most 32768 elements")
    return (x * k).floor()


@steps.python(name="is for short ones", when=lambda x, k: x.numel() <= 1 << 10)
def _(x, k):
    return (x * k).floor()


def test_rounding_is_left_alone():
    (finding,) = found(steps, "rounds elsewhere")
    assert finding.status is Status.PASS


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("has not enough memory", "there is not enough memory"),
        ("refuses long ones", "the kernel refuses it: ValueError: at most 32768 elements"),
    ],
)
def test_a_refusal_is_no_finding(kernel, why):
    (unchecked,) = found(steps, kernel)
    assert isinstance(unchecked, NotChecked)
    assert why in unchecked.why


def test_a_kernel_that_is_not_applicable_is_not_run():
    (unchecked,) = found(steps, "is for short ones")
    assert isinstance(unchecked, NotChecked)
    assert "not applicable" in unchecked.why


def test_long_sums_are_left_out():
    @ow.op("offsets::running")
    def running(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x.cumsum(0)

    running.python(lambda x: torch.zeros_like(x), name="wrong")
    (unchecked,) = found(running, "wrong")
    assert "rounding in sums" in unchecked.why


def test_arguments_whose_elements_go_together_are_left_out():
    @ow.op("offsets::permuted")
    def permuted(
        x: Float[Tensor, " n"], order: Annotated[Int64[Tensor, " n"], ow.values(low=0, high="n - 1", unique=True)]
    ) -> Float[Tensor, " n"]:
        return x[order]

    permuted.python(lambda x, order: x[order].clone(), name="right")
    assert found(permuted, "right") == []


def test_it_needs_memory(monkeypatch):
    monkeypatch.setattr(large_offsets, "free_bytes", lambda device: 1000)
    unchecked = found(twice, "right")
    assert all("GB of memory" in u.why for u in unchecked if isinstance(u, NotChecked))
    assert len(unchecked) == 2


@pytest.mark.parametrize(("each", "runs"), [(1e-9, True), (1e-2, False)])
def test_the_time_of_an_empty_call_is_not_taken_for_that_of_its_elements(monkeypatch, each, runs):
    monkeypatch.setattr(
        large_offsets, "_seconds", lambda context, run, arguments: 5.0 + each * large_offsets._elements_of(arguments)
    )
    result = found(twice, "right")
    assert [isinstance(r, Finding) for r in result] == ([True] if runs else [False, False])
    assert runs or all("it takes about" in r.why for r in result)


def test_a_reference_that_takes_too_much_memory_is_stopped(monkeypatch):
    monkeypatch.setattr(large_offsets, "free_bytes", lambda device: 64 << 20)

    @ow.op("offsets::greedy")
    def greedy(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x + torch.zeros(1 << 28)[: x.numel()] if x.numel() > 1 << 15 else x + 0

    greedy.python(lambda x: x.clone(), name="right")
    (unchecked,) = found(greedy, "right")
    assert "there is not enough memory" in unchecked.why
    assert torch.zeros(1 << 28).numel() == 1 << 28, "the limit is lifted"


def test_it_waits_for_another_kernel_s_check_without_a_long_step():
    folder = this_machine().cache_dir
    folder.mkdir(parents=True, exist_ok=True)
    steps = []
    with (folder / "large_offsets.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def progress(*step):
            steps.append(step)
            if len(steps) == 3:
                fcntl.flock(other, fcntl.LOCK_UN)

        context = Context(twice, "right", Target("cpu"), [], Request("full"), Reports(progress))
        with twice.only("right"):
            (finding,) = large_offsets.check(context)
    assert finding.status is Status.PASS
    assert len(steps) > 3


def test_in_place():
    @ow.op("offsets::halve")
    def halve(x: Annotated[Float[Tensor, " n"], ow.mutated]) -> None:
        x.div_(2)

    @halve.python(name="right")
    def _(x):
        x.mul_(0.5)

    @halve.python(name="wrong")
    def _(x):
        x[: 1 << 15].mul_(0.5)

    assert [f.status for f in found(halve, "right")] == [Status.PASS]
    (finding,) = found(halve, "wrong")
    assert "argument 'x' after the call" in finding.message


# -- the real size ----------------------------------------------------------------------------------------------------


@ow.op("offsets::flipped")
def flipped(x: UInt8[Tensor, " n"]) -> UInt8[Tensor, " n"]:
    return x.bitwise_not()


flipped.cpp("large_offsets.cpp", entry="flip_wide", name="wide")
flipped.cpp("large_offsets.cpp", entry="flip_narrow", name="narrow")


@pytest.mark.compiler
@pytest.mark.slow  # billions of elements
@pytest.mark.skipif(free_bytes("cpu") < 12 << 30, reason="12 GB of memory are needed")
@pytest.mark.exhaustive  # most of a minute
def test_more_than_2_to_the_31_elements():
    report = ow.check(flipped, checks=[large_offsets.NAME], device="cpu", jobs=1)
    verdicts = {v.kernel: v for v in report.verdicts}
    if any("of memory" in n.why or "not enough memory" in n.why for v in report.verdicts for n in v.not_checked):
        pytest.skip("other processes have the memory that is needed")
    assert verdicts["wide"].status is Status.PASS, verdicts["wide"]
    assert verdicts["narrow"].status is Status.FAIL, verdicts["narrow"]
    (finding,) = verdicts["narrow"].findings
    assert "n=21" in finding.case
    assert "100% of the elements from" in finding.message
