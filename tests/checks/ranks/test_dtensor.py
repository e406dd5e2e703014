"""The check "DTensor": operators whose arguments are sharded over ranks, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import opwright as ow
from opwright.checks.ranks import world
from opwright.gallery.conv1d import conv1d
from opwright.gallery.outer_sum import outer_sum
from opwright.planted.kernels import registrations
from opwright.runtime.register.replicated import has_no_placements

_RULES = {row.defect.removeprefix("sharding: "): row for row in registrations.ROWS if "sharding" in row.defect}


def _checked(op: ow.Op, kernel: str = "kernel", ranks: int | None = 2) -> ow.results.Verdict:
    (verdict,) = ow.check(op, kernels=[kernel], checks=["DTensor"], ranks=ranks, device="cpu")
    return verdict


_ALWAYS = ("rows said to be columns", "rows")  # the others are slow: each is a whole check with two processes


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in _ALWAYS)) for n in _RULES])
def test_a_wrong_rule_is_found_on_real_ranks_and_a_right_one_left_alone(name):
    row = _RULES[name]
    verdict = _checked(row.op)
    assert verdict.status is (ow.results.Status.FAIL if row.expected else ow.results.Status.PASS), verdict


def test_derived_placements_are_compared_along_every_dim():
    (finding,) = [f for f in _checked(outer_sum, "reference").findings if f.check == "DTensor"]
    assert finding.status is ow.results.Status.PASS
    assert finding.message == "along n, i, j on 2 ranks, forward and backward"


def test_a_gradient_that_is_wrong_only_for_parts_is_found(namespace):
    @ow.op(f"{namespace}::scaled")
    def scaled(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        return x * x.shape[0]  # the kernel and its gradient, of a part, scale by the number of its rows

    scaled.python(lambda x: x * x.shape[0], name="kernel")
    scaled.register_sharding(lambda x: [([Shard(0)], [Shard(0)]), ([Replicate()], [Replicate()])])
    verdict = _checked(scaled)
    assert verdict.status is ow.results.Status.FAIL
    assert verdict.failures[0].message.startswith("sharded along 'm' on 2 ranks: on rank 0, result 0: ")


@pytest.mark.slow
def test_a_rule_that_gathers_everything_is_right(namespace):
    @ow.op(f"{namespace}::centred")
    def centred(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        return x - x.mean(0)

    centred.python(lambda x: x - x.mean(0), name="kernel")
    centred.register_sharding(lambda x: [([Replicate()], [Replicate()])])
    assert _checked(centred).status is ow.results.Status.PASS


@pytest.mark.slow
def test_what_torch_cannot_place_is_computed_whole_in_every_process():
    verdict = _checked(conv1d, "cpp")  # with a backward operator, for which torch has no placements either
    assert verdict.status is ow.results.Status.PASS, verdict


def _renormed(name: str) -> ow.Op:
    @ow.op(name)
    def renormed(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
        return torch.renorm(x, 2, 0, 1.0)  # for which torch 2.13 and 2.14 have no placements

    renormed.python(lambda x: torch.renorm(x, 2, 0, 1.0), name="kernel")
    renormed.python(lambda x: torch.renorm(x, 2, 0, 1.0) + (len(x) == 6), name="wrong")
    return renormed


@pytest.mark.slow  # checks with ranks
def test_its_derived_gradient_is_computed_whole_too(namespace):
    renormed = _renormed(f"{namespace}::renormed")
    assert _checked(renormed).status is ow.results.Status.PASS
    assert _checked(renormed, "wrong").status is ow.results.Status.FAIL


def test_a_call_says_that_it_gathers(namespace):
    renormed = _renormed(f"{namespace}::renormed")
    world.join_alone("cpu")
    try:
        mesh = init_device_mesh("cpu", (1,))
        x = torch.randn(4, 3)
        part = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
        with pytest.warns(UserWarning, match=r"renormed: torch has no placements .*op\.register_sharding"):
            result = renormed(part)
        assert result.placements == (Replicate(),)
        result.sum().backward()
        whole = x.clone().requires_grad_()
        torch.renorm(whole, 2, 0, 1.0).sum().backward()
        torch.testing.assert_close(part.grad.full_tensor(), whole.grad)
    finally:
        dist.destroy_process_group()


def test_a_custom_rule_that_refuses_placements_is_not_replaced(namespace):
    renormed = _renormed(f"{namespace}::renormed")
    renormed.register_sharding(lambda x: [([Shard(0)], [Shard(0)])])
    world.join_alone("cpu")
    try:
        mesh = init_device_mesh("cpu", (1,))
        assert renormed(distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)])).placements == (Shard(0),)
        assert not has_no_placements(NotImplementedError("no valid sharding strategy for the input placements"))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow  # checks with ranks
def test_it_runs_only_if_ranks_are_asked_for():
    (verdict,) = ow.check(outer_sum, kernels=["reference"], checks=["values", "DTensor"], device="cpu")
    assert [f.check for f in verdict.findings] == ["values"]
    assert "DTensor" not in {n.check for n in verdict.not_checked}


def test_operators_that_write_or_take_lists_are_not_checked(namespace):
    @ow.op(f"{namespace}::total")
    def total(xs: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        return torch.stack(xs).sum(0)

    total.python(lambda xs: torch.stack(xs).sum(0), name="kernel")
    why = [n.why for n in _checked(total).not_checked if n.check == "DTensor"]
    assert why == ["lists of tensors are not sharded here"]
