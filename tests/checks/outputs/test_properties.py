"""Properties of results: they hold or a finding says where, of the reference and of kernels; several right answers."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.outputs import properties
from opwright.contract.inputs.text import parse_case
from opwright.results import Finding, Status
from opwright.target import Target
from tests.sampled import quick


@pytest.fixture
def topk(namespace):
    @ow.op(f"{namespace}::topk", where="1 <= k <= n")
    def topk(
        x: Annotated[Float32[Tensor, "m n"], ow.values(one_of=(0, 1, 2, 3))], k: int
    ) -> tuple[Float32[Tensor, "m k"], Annotated[Int64[Tensor, "m k"], ow.by_property]]:
        return tuple(x.topk(k))

    @topk.register_property
    def indices_point_at_the_values(x, result0, result1):
        return x.gather(1, result1) == result0

    @topk.register_property
    def indices_differ(result1, k):
        assert all(len(set(row)) == k for row in result1.tolist()), "an index is there twice"

    return topk


def by_sorting(x, k):
    values, indices = x.sort(dim=1, descending=True, stable=True)
    return values[:, :k].contiguous(), indices[:, :k].contiguous()


def last_of_equals(x, k):
    values, indices = x.flip(1).sort(dim=1, descending=True, stable=True)
    return values[:, :k].contiguous(), (x.shape[1] - 1 - indices)[:, :k].contiguous()


@pytest.mark.parametrize("right", [by_sorting, last_of_equals])
@pytest.mark.slow  # every check
def test_every_right_answer_passes(topk, right):
    topk.python(right, name="kernel")
    report = ow.check(topk, device="cpu")
    assert report.passed, report.verdicts[0].failures
    finding = next(f for f in report.verdicts[0].findings if f.check == "properties")
    assert finding.message.startswith("indices_point_at_the_values, indices_differ: ")


def one_too_far(x, k):
    values, indices = by_sorting(x, k)
    return values, (indices + 1) % x.shape[1]


def the_first_of_equals_twice(x, k):
    values, _ = by_sorting(x, k)
    return values, (x[:, None, :] == values[:, :, None]).to(torch.int8).argmax(-1)


# Each is a whole check.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "check", "message"),
    quick(
        [
            (one_too_far, "properties", "indices_point_at_the_values: it does not hold at ["),
            (the_first_of_equals_twice, "properties", "indices_differ: an index is there twice"),
            (lambda x, k: (x[:, :k].clone(), by_sorting(x, k)[1]), "values", ""),
            (lambda x, k: (by_sorting(x, k)[0], by_sorting(x, k)[1].int()), "metadata", "dtype"),
            (lambda x, k: (by_sorting(x, k)[0], by_sorting(x, k)[1] + 100), "properties", "it raised RuntimeError"),
        ],
        0,
        1,
        3,
    ),
)
def test_a_wrong_answer_is_found_shrunk_and_repeated(topk, wrong, check, message):
    topk.python(wrong, name="kernel")
    report = ow.check(topk, device="cpu", checks=["values", "properties", "metadata"])
    found = next(f for f in report.verdicts[0].failures if f.check == check)
    assert message in found.message
    again = ow.check(topk, device="cpu", checks=[check], case=found.case)
    assert again.verdicts[0].failures[0].message.splitlines()[0] == found.message.splitlines()[0]


def test_a_property_that_the_reference_lacks_is_wrong_itself(topk):
    topk.register_property(lambda result0: result0 > 100, name="large")
    report = ow.check(topk, device="cpu", checks=["properties"])
    assert "large: the reference itself does not have the property" in report.verdicts[0].failures[0].message


@pytest.mark.slow
def test_an_output_of_several_right_values_without_a_property_is_not_checked(namespace):
    @ow.op(f"{namespace}::order")
    def order(x: Float[Tensor, " n"]) -> Annotated[Int64[Tensor, " n"], ow.by_property]:
        return x.argsort()

    order.python(lambda x: torch.zeros(x.shape, dtype=torch.int64), name="kernel")
    verdict = ow.check(order, device="cpu").verdicts[0]
    assert ("properties", "output 0: compared by properties only, and op.register_property states none") in {
        (n.check, n.why) for n in verdict.not_checked
    }


def test_an_operator_without_properties_has_no_row_of_them(namespace):
    @ow.op(f"{namespace}::plain")
    def plain(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    verdict = ow.check(plain, device="cpu", level="smoke").verdicts[0]
    assert "properties" not in {f.check for f in verdict.findings} | {n.check for n in verdict.not_checked}


def test_a_property_may_call_again_and_see_what_was_written(namespace):
    @ow.op(f"{namespace}::decay")
    def decay(x: Annotated[Float[Tensor, " n"], ow.mutated], rate: Annotated[float, ow.values(0, 1)]) -> None:
        x.mul_(rate)

    @decay.register_property
    def shrinks(x, new_x):
        return new_x.abs() <= x.abs()

    @decay.register_property
    def once_more_is_the_square(x, new_x, rate, call):
        y = new_x.clone()
        call(y, rate)
        torch.testing.assert_close(y.float(), x.float() * rate**2, rtol=1e-2, atol=1e-2)

    decay.python(lambda x, rate: _write(x, rate), name="right")
    assert ow.check(decay, device="cpu", checks=["properties"]).passed
    decay.python(lambda x, rate: _write(x, -1.5), name="wrong")
    report = ow.check(decay, kernels=["wrong"], device="cpu", checks=["properties"])
    assert "shrinks: it does not hold at" in report.verdicts[0].failures[0].message


def _write(x, rate):
    x.mul_(rate)


def test_a_parameter_that_is_not_known_is_refused(topk):
    with pytest.raises(ow.errors.KernelError) as error:
        topk.register_property(lambda y: True)
    assert "a property must take arguments, results or call, got 'y'" in str(error.value)
    assert "x, k, result, result0, result1, call" in str(error.value)


@pytest.mark.parametrize(("off", "is_found"), [(0.0, False), (0.5, True)])
def test_a_property_sees_what_is_saved_for_the_backward(namespace, off, is_found):
    @ow.op(f"{namespace}::scaled")
    def scaled(
        x: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " n"], Annotated[Float[Tensor, ""], ow.by_property, ow.saved_for_backward]]:
        return 2 * x, x.sum() * 0 + 2

    @scaled.register_property
    def is_the_factor(x, result, result0, result1):
        assert torch.equal(result, result0)
        return result == x * result1

    scaled.python(lambda x: ((2 * x).contiguous(), x.sum() * 0 + 2 + off), name="kernel")
    context = Context(scaled, "kernel", Target("cpu"), [parse_case(scaled.contract, "n=5")])
    found = [f for f in properties.check(context) if isinstance(f, Finding)]
    assert [f.status is Status.FAIL for f in found] == [is_found]
