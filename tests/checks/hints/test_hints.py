"""What to state in the contract, where a kernel fails for inputs that it may not be meant for."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import opwright as ow
from opwright.checks import contract as contract_check
from opwright.checks.context import Context
from opwright.checks.outputs import values
from opwright.contract.inputs.cases import cases
from opwright.results import Finding, Status
from opwright.target import Target


@ow.op("hints::twice")
def twice(x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    return 2 * x


@twice.python(name="no float64")
def _(x):
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise KeyError(x.dtype)
    return 2 * x.contiguous()


@twice.python(name="wrong float16")
def _(x):
    return 2 * x.contiguous() + (x.dtype is torch.float16)


@twice.python(name="no float16 of some sizes")
def _(x):
    if x.dtype is torch.float16 and x.shape[0] > 4:
        raise KeyError(x.dtype)
    return 2 * x.contiguous()


@twice.python(name="nothing")
def _(x):
    raise KeyError(x.dtype)


@twice.python(name="nothing empty")
def _(x):
    assert x.numel(), "empty"
    return 2 * x.contiguous()


@twice.python(name="no single column")
def _(x):
    return (2 + (x.shape[1] == 1)) * x.contiguous()


@twice.python(name="no odd rows")
def _(x):
    return (2 + x.shape[0] % 2) * x.contiguous()


@ow.op("hints::rows")
def rows(x: Float[Tensor, "n m"], at: Annotated[Int[Tensor, " n"], ow.values(0, "n-1")]) -> Float[Tensor, "n m"]:
    return x[at.long()]


@rows.python(name="int64 only")
def _(x, at):
    if at.dtype is not torch.int64:
        raise RuntimeError("expected scalar type Long")
    return x[at]


@ow.op("hints::vectors")
def vectors(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return 2 * x


@vectors.python(name="nothing empty")
def _(x):
    assert x.numel(), "empty"
    return 2 * x.contiguous()


def failures(op, kernel):
    context = Context(op, kernel, Target("cpu"), cases(op.contract, "quick", longest=40))
    return [f for f in values.check(context) if isinstance(f, Finding) and f.status is Status.FAIL]


@pytest.mark.parametrize(
    ("op", "kernel", "remedy"),
    [
        (twice, "no float64", "should not take float64, state dtypes=(torch.float32, torch.float16, torch.bfloat16)"),
        (rows, "int64 only", "state Int64 in place of Int in the annotation of 'at'"),
        (twice, "nothing empty", 'all cases with n=0 or m=0 fail in this way, and larger ones pass: if the operator '
         'should not take them, state where=["n >= 1", "m >= 1"] of the operator'),
        (twice, "no single column", 'should not take them, state where="m >= 2" of the operator'),
        (vectors, "nothing empty", "state when= of the kernel, or return early for them"),
    ],
)  # fmt: skip
def test_inputs_that_a_kernel_may_not_be_meant_for(op, kernel, remedy):
    assert remedy in failures(op, kernel)[0].remedy


@pytest.mark.parametrize("kernel", ["wrong float16", "no float16 of some sizes", "nothing", "no odd rows"])
def test_other_failures_have_no_hint(kernel):
    found = failures(twice, kernel)
    assert found
    assert not any(f.remedy for f in found)


@twice.python(name="a tenth off")
def _(x):
    return 2.2 * x.contiguous()


@twice.python(name="only strided ones are off")
def _(x):
    return 2 * x.contiguous() + (x.numel() > 1 and not x.is_contiguous())


def test_the_most_ordinary_case_stands_beside_the_smallest():
    (found,) = [f for f in failures(twice, "a tenth off") if "elements differ" in f.message][:1]
    assert found.case == "n=1 m=1 dtype=float32 layout=contiguous"
    sizes = [int(part.partition("=")[2]) for part in found.ordinary_case.split()[:2]]
    assert min(sizes) > 1
    assert found.ordinary_case.endswith("dtype=float32 layout=contiguous")
    assert f"\nalso fails: {found.ordinary_case}\n" in str(found)


@pytest.mark.parametrize("kernel", ["nothing empty", "no single column", "only strided ones are off"])
def test_none_stands_there_if_ordinary_cases_pass(kernel):
    assert all(f.ordinary_case == "" for f in failures(twice, kernel))


def rms(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@ow.op("hints::rms_any")
def rms_any(x: Float[Tensor, "n m"], eps: float) -> Float[Tensor, "n m"]:
    return rms(x, eps)


@ow.op("hints::rms_default")
def rms_default(x: Float[Tensor, "n m"], eps: float = 1e-6) -> Float[Tensor, "n m"]:
    return rms(x, eps)


@ow.op("hints::rms_range")
def rms_range(x: Float[Tensor, "n m"], eps: Annotated[float, ow.values(0, 1)]) -> Float[Tensor, "n m"]:
    return rms(x, eps)


@ow.op("hints::entropy")
def entropy(p: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
    return -(p * p.log()).sum(-1)


@ow.op("hints::angle")
def angle(x: Float[Tensor, "n m"], y: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
    return x.acos().sum(-1) + y.sum(-1)


@ow.op("hints::logarithm")
def logarithm(x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    return x.log()  # the other half of the elements is compared


@ow.op("hints::masked")
def masked(x: Float[Tensor, "n m"], keep: Bool[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    return x.masked_fill(~keep, -torch.inf).softmax(-1)  # NaN where nothing is kept


def warnings(op):
    op.python(name="itself")(op.contract.function)
    context = Context(op, "itself", Target("cpu"), cases(op.contract, "quick", longest=40))
    return [f for f in contract_check.check(context) if isinstance(f, Finding) and "NaN" in f.message]


@pytest.mark.parametrize(
    ("op", "where", "remedy"),
    [
        (rms_any, "where 'eps' is negative", "eps: Annotated[float, ow.values(0, 1)], or a default such as 1e-6"),
        (entropy, "where 'p' is negative", "p: Annotated[Float[n m], ow.values(0, 1)]"),
        (angle, "where 'x' is not between -1 and 1", "x: Annotated[Float[n m], ow.values(-1, 1)]"),
    ],
)
def test_an_argument_that_makes_the_reference_nan_is_named(op, where, remedy):
    (found,) = warnings(op)
    assert where in found.message
    assert remedy in found.remedy


@pytest.mark.parametrize("op", [rms_default, rms_range, masked, logarithm])
def test_a_reference_that_is_seldom_nan_or_by_itself_has_no_hint(op):
    assert warnings(op) == []


@rms_any.python(name="clamped")
def _(x, eps):
    return x * torch.rsqrt((x.pow(2).mean(-1, keepdim=True) + eps).clamp(min=1e-30))


def test_a_difference_from_nan_names_the_argument():
    assert "the reference is NaN where 'eps' is negative" in failures(rms_any, "clamped")[0].remedy
