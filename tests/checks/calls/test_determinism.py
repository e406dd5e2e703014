"""The check "determinism" of operators that are declared so, with the self-test's kernels and others."""

from __future__ import annotations

import random

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.errors import ContractError
from opwright.planted.kernels.determinism import ROWS
from opwright.results import Status
from tests.sampled import quick

NAME = "determinism"


def check(op, kernel, device="cpu"):
    (verdict,) = ow.check(op, kernels=[kernel], checks=[NAME], device=device).verdicts
    return [finding for finding in verdict.findings if finding.check == NAME]


# Those in CUDA and Triton are compiled for the simulators.
_EACH = [row if row.backend == "python" else pytest.param(row, marks=pytest.mark.slow) for row in ROWS]


@pytest.mark.parametrize("row", _EACH, ids=lambda row: row.kernel)
@pytest.mark.slow  # whole checks
def test_planted_kernels(row):
    (finding,) = check(row.op, row.kernel)
    assert finding.status is (Status.FAIL if row.expected else Status.PASS), finding
    if row.expected:
        assert "gave other bits" in finding.message
        assert "deterministic=True" in finding.message


def sums_in_any_order(x):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(random.getrandbits(32)))
    return x[order].sum(0, keepdim=True)


@pytest.mark.parametrize(("kernel", "is_found"), [(sums_in_any_order, True), (lambda x: x.sum(0, keepdim=True), False)])
@pytest.mark.parametrize("declared", quick([True, False], 0))
def test_only_what_is_declared_is_checked(namespace, kernel, is_found, declared):
    @ow.op(f"{namespace}::total", deterministic=declared)
    def total(x: Float32[Tensor, " n"]) -> Float32[Tensor, "1"]:
        return x.sum(0, keepdim=True)

    total.python(kernel, name="kernel")
    found = [finding.status for finding in check(total, "kernel")]
    assert found == ([] if not declared else [Status.FAIL if is_found else Status.PASS])


def test_zeros_of_another_sign_are_other_bits(namespace):
    @ow.op(f"{namespace}::nothing", deterministic=True)
    def nothing(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x * 0

    nothing.python(lambda x: x * random.choice((0.0, -0.0)), name="kernel")
    (finding,) = check(nothing, "kernel")
    assert finding.status is Status.FAIL
    assert "-0.0" in finding.message


def test_the_same_seed_gives_the_same_bits(namespace):
    @ow.op(f"{namespace}::noise", random="seed", deterministic=True)
    def noise(x: Float32[Tensor, " n"], seed: int) -> Float32[Tensor, " n"]:
        return torch.empty_like(x).uniform_(generator=torch.Generator().manual_seed(seed))

    noise.python(
        lambda x, seed: torch.empty_like(x).uniform_(generator=torch.Generator().manual_seed(seed)), name="right"
    )
    noise.python(lambda x, seed: torch.rand_like(x), name="wrong")
    assert [finding.status for finding in check(noise, "right")] == [Status.PASS]
    assert [finding.status for finding in check(noise, "wrong")] == [Status.FAIL]


def test_an_operator_is_not_random_and_deterministic(namespace):
    with pytest.raises(ContractError, match="random must be False with deterministic=True, got True"):

        @ow.op(f"{namespace}::noise", random=True, deterministic=True)
        def noise(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
            return torch.rand_like(x)


def test_calls_under_a_user_s_deterministic_flag_leave_it_as_it_was():
    from opwright.checks.calls.blocks import without_deterministic_algorithms

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with without_deterministic_algorithms():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(before)
