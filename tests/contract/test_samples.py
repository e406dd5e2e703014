"""The author's own inputs: samples and sizes, in checks and benchmarks."""

from __future__ import annotations

import os

import pytest
import torch
from jaxtyping import Float, Inexact, Int64
from torch import Tensor

import opwright as ow
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError, KernelError
from opwright.timing.request import Request
from opwright.timing.run import measure
from opwright.timing.sizes import bench_cases
from tests.sampled import quick


@pytest.fixture
def sums(namespace):
    @ow.op(f"{namespace}::sums")
    def sums(x: Float[Tensor, "t d"], ends: Int64[Tensor, " b"], scale: float = 1.0) -> Float[Tensor, "b d"]:
        if (ends.diff() < 0).any() or (ends.numel() and not 0 <= ends[-1] <= x.shape[0]):
            raise ValueError("ends descend")
        starts = torch.cat([ends.new_zeros(1), ends])[: ends.shape[0]]
        return scale * torch.stack([x[i:j].sum(0) for i, j in zip(starts, ends, strict=True)])

    return sums


def add_samples(sums):
    @sums.samples
    def sequences():
        for lengths in ([3, 0, 5], [7] * 4):
            ends = torch.tensor(lengths).cumsum(0)
            yield {"x": torch.randn(int(ends[-1]), 8), "ends": ends}
        yield torch.randn(4, 2, dtype=torch.float16), torch.tensor([4]), 0.5


def test_samples_are_cases_with_their_sizes(sums):
    add_samples(sums)
    found = [str(c) for c in cases(sums.contract, "quick") if c.sample is not None]
    assert found == [
        "sample=0 t=8 d=8 b=3 dtype=float32 layout=contiguous",
        "sample=1 t=28 d=8 b=4 dtype=float32 layout=contiguous",
        "sample=2 t=4 d=2 b=1 dtype=float16 layout=contiguous",
        "sample=0 t=8 d=8 b=3 dtype=float32 layout=sliced",
        "sample=1 t=28 d=8 b=4 dtype=float32 layout=sliced",
        "sample=2 t=4 d=2 b=1 dtype=float16 layout=sliced",
    ]
    case = parse_case(sums.contract, "sample=1")
    first, again = (arguments_of(sums.contract, case, "cpu") for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert first[1].tolist() == [7, 14, 21, 28]
    assert first[2] == 1.0
    sliced = arguments_of(sums.contract, parse_case(sums.contract, found[3]), "cpu")
    assert sliced[0].stride() == (16, 2)


@pytest.mark.slow  # two whole checks
def test_a_fault_that_only_a_sample_shows_is_found_and_repeated(sums):
    add_samples(sums)

    def kernel(x, ends, scale=1.0):
        result = sums.contract.function(x, ends, scale)
        result[ends == 28] = 0
        return result

    sums.python(kernel, name="kernel")
    report = ow.check(sums, device="cpu", checks=["values"])
    found = report.verdicts[0].failures[0]
    assert found.case.startswith("sample=1 ")
    again = ow.check(sums, device="cpu", checks=["values"], case=found.case)
    assert again.verdicts[0].failures


def test_they_are_timed_when_no_sizes_are_asked_for(sums):
    add_samples(sums)
    sums.python(lambda x, ends, scale=1.0: sums.contract.function(x, ends, scale), name="kernel")
    options = {"device": "cpu", "quick": True, "iters": 2, "limits": False, "baselines": ["reference"]}
    report = measure(Request([sums], **options))
    assert not report.errors
    assert {m.case["t"] for m in report.measurements} == {8, 28}
    assert [c.sample for c in bench_cases(sums.contract, "cpu", sizes={"t": [5]}, dtypes=(), quick=True)] == [None]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: [torch.ones(2)], "op.samples yields Tensor"),
        (lambda: [(torch.ones(2), torch.ones(1, dtype=torch.int64))], "sample 0 of op.samples must be a call"),
        (lambda: [{"y": torch.ones(2)}], "an argument must be one of"),
        (lambda: 1 // 0, "op.samples raised ZeroDivisionError"),
    ],
)
def test_wrong_samples_are_refused(sums, function, message):
    sums.samples(function)
    with pytest.raises(CheckError) as error:
        cases(sums.contract, "quick")
    assert message in str(error.value)


def test_a_wrong_sample_is_no_fault_of_a_kernel(sums):
    sums.python(lambda x, ends, scale=1.0: sums.contract.function(x, ends, scale), name="kernel")
    sums.samples(lambda: [(torch.ones(2), torch.ones(1, dtype=torch.int64))])
    with pytest.raises(CheckError, match=r"sample 0 of op\.samples must be a call"):
        ow.check(sums, device="cpu", checks=["values"])


@pytest.mark.slow  # whole checks
def test_samples_that_are_wrong_in_a_worker_only(sums):
    sums.python(lambda x, ends, scale=1.0: sums.contract.function(x, ends, scale), name="kernel")
    parent = os.getpid()
    sums.samples(lambda: [] if os.getpid() == parent else 1 // 0)
    (verdict,) = ow.check(sums, device="cpu", checks=["values"]).verdicts
    assert verdict.status is ow.results.Status.FAIL
    assert verdict.reason.startswith("nothing could be checked: inputs: ")
    assert not verdict.findings
    assert any("op.samples raised ZeroDivisionError" in n.reason for n in verdict.not_checked)


def test_a_case_of_no_sample_is_refused(sums):
    add_samples(sums)
    with pytest.raises(CheckError, match="sample must be a number below 3, got '3'"):
        parse_case(sums.contract, "sample=3")
    with pytest.raises(CheckError, match=r"must be those of the sample, sample=0 t=8 .*, got 't=9'"):
        parse_case(sums.contract, "sample=0 t=9")


# The whole check of both kernels in every dtype takes some ten seconds.
@pytest.mark.parametrize("dtypes", quick([[torch.complex64, torch.float32], None], 0), ids=["two", "all"])
def test_samples_that_are_lazily_conjugated_or_negated_are_what_kernels_get(namespace, dtypes):
    @ow.op(f"{namespace}::twice")
    def twice(x: Inexact[Tensor, " n"]) -> Inexact[Tensor, " n"]:
        return 2 * x

    @twice.samples
    def lazy():
        z = torch.randn(5, dtype=torch.complex64).conj()
        yield (z,)
        yield (z.imag,)

    assert next(lazy())[0].is_conj()
    assert [*lazy()][1][0].is_neg()
    twice.python(lambda x: (x + x).resolve_conj().contiguous(), name="right", dtypes=dtypes)
    twice.python(lambda x: (x + x.conj()).resolve_conj().contiguous(), name="wrong", dtypes=dtypes)
    right, wrong = ow.check(twice, checks=["values", "inputs unchanged"], device="cpu").verdicts
    assert right.status == "pass", right.failures
    assert wrong.status == "fail"


def test_typical_sizes_are_checked_unless_they_are_too_large(namespace):
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        return 2 * x

    scale.sizes(n=(500, 10**6), m=(77,))
    sizes = [dict(c.sizes) for c in cases(scale.contract, "quick")]
    assert {"n": 500, "m": 77} in sizes
    assert {"n": 10**6, "m": 77} not in sizes


def test_typical_sizes_of_any_number_of_axes(namespace):
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, "*n m"]) -> Float[Tensor, "*n m"]:
        return 2 * x

    scale.sizes(n=((3, 50), 70), m=(77,))
    sizes = [dict(c.sizes) for c in cases(scale.contract, "quick")]
    assert {"n": (3, 50), "m": 77} in sizes
    assert {"n": (70,), "m": 77} in sizes
    with pytest.raises(KernelError, match=r"a size of m must be an int of at least 0, got \(3, 4\)"):
        scale.sizes(m=((3, 4),))
    with pytest.raises(KernelError, match=r"a size of \*n must be an int of at least 0, or a tuple of them, got \[3\]"):
        scale.sizes(n=([3],))
