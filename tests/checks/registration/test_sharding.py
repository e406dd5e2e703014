"""The check "sharding": rules for DTensors that are wrong are found, and right ones left alone, however they look."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.registration import sharding
from opwright.checks.request import Request
from opwright.contract.inputs.cases import cases
from opwright.results import Finding, NotChecked, Status
from opwright.target import Target
from tests.sampled import quick

R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()


def found(operator: ow.Op, rule) -> list[Finding | NotChecked]:
    operator.register_sharding(rule)
    context = Context(operator, "kernel", Target("cpu"), [], Request("quick", reproduce="{check} {case}"))
    context.cases += [c for c in cases(operator.contract, "quick") if c.is_plain]
    with operator.only("kernel"):
        return list(sharding.check(context))


def messages(operator: ow.Op, rule) -> list[str]:
    result = found(operator, rule)
    assert all(isinstance(f, Finding) for f in result), result
    return [f.message for f in result if f.status is Status.FAIL]


@pytest.fixture
def softmax(namespace):
    @ow.op(f"{namespace}::softmax")
    def softmax(x: Float[Tensor, "m n"], scale: float = 1.0) -> tuple[Float[Tensor, "m n"], Float[Tensor, " m"]]:
        return torch.softmax(scale * x, 1), (scale * x).logsumexp(1)

    softmax.python(lambda x, scale: softmax.contract.function(x, scale), name="kernel")
    return softmax


@pytest.fixture
def product(namespace):
    @ow.op(f"{namespace}::product")
    def product(a: Float32[Tensor, "m k"], b: Float32[Tensor, "k n"]) -> Float32[Tensor, "m n"]:
        return a @ b

    product.python(lambda a, b: a @ b, name="kernel")
    return product


@pytest.fixture
def affine(namespace):
    @ow.op(f"{namespace}::affine")
    def affine(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 3 * x + 1

    affine.python(lambda x: 3 * x + 1, name="kernel")
    return affine


@pytest.fixture
def cat(namespace):
    @ow.op(f"{namespace}::cat")
    def cat(xs: list[Float[Tensor, "m ?n"]]) -> Float[Tensor, "m _"]:
        return torch.cat(xs, 1)

    cat.python(lambda xs: torch.cat(xs, 1), name="kernel")
    return cat


# -- wrong ----------------------------------------------------------------------------------------------------------


def test_a_dim_that_is_reduced_is_not_sharded(softmax):
    (message,) = messages(softmax, lambda x, scale: [([S1, R], [S1, None])])
    assert "(S(1), –) → (S(1), R)" in message
    assert "result 0" in message


def test_a_wrong_line_beside_right_ones_is_found(softmax):
    (message,) = messages(
        softmax, lambda x, scale: [([R, R], [R, None]), ([S0, S0], [S0, None]), ([S0, R], [S0, None])]
    )
    assert "(S(0), –) → (S(0), R)" in message
    assert "result 1 of one process has shape" in message


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    quick([([R], [S1, S0]), ([S0], [S1, S0]), ([P], [P, P]), ([Partial("avg")], [S1, S0]), ([S0], [R, R])], 0, 1, 3),
)
def test_parts_that_do_not_make_up_the_product(product, outputs, inputs):
    (message,) = messages(product, lambda a, b: [(outputs, inputs)])
    assert " → " in message


def test_a_sum_of_parts_goes_through_what_is_linear_only(affine):
    (message,) = messages(affine, lambda x: [([P], [P])])
    assert "expected" in message
    assert messages(affine, lambda x: [([Partial("avg")], [Partial("avg")])]) == []


@pytest.mark.parametrize(
    ("outputs", "inputs", "text"),
    [
        ([S0], [S0, None], "1 placements for 2 results"),
        ([S0, S0], [S0], "1 placements for 2 arguments"),
        ([R, R], [None, None], "argument 0 is a tensor and has None"),
        ([R, R], [R, R], "argument 1 is no tensor and has R"),
        ([R, R], [Shard(2), None], "argument 0 has 2 dims and S(2)"),
    ],
)
def test_a_line_that_contradicts_the_schema(softmax, outputs, inputs, text):
    (message,) = messages(softmax, lambda x, scale: [(outputs, inputs)])
    assert text in message


def test_a_rule_that_accepts_nothing(affine):
    (message,) = messages(affine, lambda x: [])
    assert "accepts no placements" in message


# -- right ----------------------------------------------------------------------------------------------------------


def test_the_right_placements_of_a_product_pass(product):
    rule = [([S0], [S0, R]), ([S1], [R, S1]), ([P], [S1, S0]), ([P], [P, R]), ([P], [R, P]), ([R], [R, R])]
    (finding,) = found(product, lambda a, b: rule)
    assert finding.status is Status.PASS
    assert "(S(1), S(0)) → (P" in finding.message
    assert str(finding.coverage) == "6 of 6 cases"


def test_a_rule_may_look_at_shapes_and_numbers(softmax):
    def rule(x, scale):
        assert scale is not None
        return [([Shard(d), S0], [Shard(d), None]) for d in range(x.ndim - 1)]

    (finding,) = found(softmax, rule)
    assert finding.status is Status.PASS


def test_dims_may_be_counted_from_the_end(product):
    assert messages(product, lambda a, b: [([Shard(-1)], [R, Shard(-1)])]) == []


def test_items_of_a_list_have_placements_of_their_own(cat):
    (finding,) = found(cat, lambda xs: [([S0], [S0] * len(xs))])
    assert finding.status is Status.PASS
    assert "argument" in messages(cat, lambda xs: [([S0], [S0])])[0]


def test_what_only_dtensor_knows_of_is_no_fault(affine):
    (unchecked,) = found(affine, lambda x: [([S0], [x.placements[0]])])
    assert isinstance(unchecked, NotChecked)
    assert "on tensors without placements" in unchecked.why


def test_a_reduction_of_another_kind_is_no_fault(affine):
    (unchecked,) = found(affine, lambda x: [([Partial("bor")], [S0])])
    assert isinstance(unchecked, NotChecked)


def test_a_contract_that_does_not_take_the_parts_is_no_fault(namespace):
    @ow.op(f"{namespace}::pairs", where=["n % 2 == 0"])
    def pairs(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + x.roll(1)

    pairs.python(lambda x: x + x.roll(1), name="kernel")
    assert all("of result" not in m for m in messages(pairs, lambda x: [([R], [R])]))


def test_a_derived_rule_is_torch_s(affine):
    context = Context(affine, "kernel", Target("cpu"), [])
    assert list(sharding.check(context)) == []


def test_it_is_part_of_a_check(product):
    product.register_sharding(lambda a, b: [([S0], [R, S1])])
    (verdict,) = ow.check(product, checks=["sharding"], device="cpu")
    (finding,) = verdict.failures
    assert "(R, S(1)) → (S(0)): result 0: parts of shape" in finding.message
