"""Hard values among those that go together: empty tails, ties, equal arguments; and statements that still hold."""

from __future__ import annotations

from typing import Annotated

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases


def status_of(operator, kernel):
    operator.python(kernel, name="kernel")
    (verdict,) = ow.check(operator, checks=["values"], kernels=["kernel"]).verdicts
    return verdict.status, verdict.findings


def log_probabilities(shape, generator):
    return torch.randn(shape, generator=generator).log_softmax(-1)


Logs = Annotated[Float32[Tensor, "b n"], ow.inputs.drawn_by(log_probabilities)]
Shares = Annotated[Float32[Tensor, "b n"], ow.inputs.probabilities()]


def middle(p, q):
    """The logarithm of the mean of two probabilities."""
    return torch.logaddexp(p, q) - 0.6931471805599453


def by_exp(p, q):
    return ((p.exp() + q.exp()) / 2).log()


def by_largest(p, q):
    top = torch.maximum(p, q)
    return top + (((p - top).exp() + (q - top).exp()) / 2).log()


@pytest.mark.parametrize(("kernel", "status"), [(by_exp, "fail"), (by_largest, "pass")])
def test_tails_of_what_a_function_draws_are_empty(kernel, status):
    @ow.op(f"reach_of_arranged_values::{kernel.__name__}", where="n >= 1")
    def mean_of_logs(p: Logs, q: Logs) -> Float32[Tensor, "b n"]:
        return middle(p, q)

    found, findings = status_of(mean_of_logs, kernel)
    assert found == status, findings


@pytest.mark.parametrize(
    ("name", "kernel", "status"),
    [
        ("half", lambda p, q: torch.where(p > q, 1.0, torch.where(p < q, -1.0, -0.5)), "fail"),
        ("zero", lambda p, q: (p > q).float() - (p < q).float(), "pass"),
    ],
)
def test_two_probabilities_may_be_equal(name, kernel, status):
    @ow.op(f"reach_of_arranged_values::sign_{name}", where="n >= 1")
    def side(p: Shares, q: Shares) -> Float32[Tensor, "b n"]:
        return (p - q).sign()

    found, findings = status_of(side, kernel)
    assert found == status, findings


@pytest.mark.parametrize(
    ("name", "kernel", "status"),
    [
        ("last", lambda p: p.shape[1] - 1 - p.flip(1).cummax(1).indices[:, -1:], "fail"),
        ("first", lambda p: (p == p.amax(1, keepdim=True)).int().argmax(1, keepdim=True), "pass"),
    ],
)
def test_of_equal_probabilities_the_number_of_larger_ones_is_the_reference_s(name, kernel, status):
    @ow.op(f"reach_of_arranged_values::larger_{name}", where="n >= 1")
    def larger(p: Shares) -> Float32[Tensor, "b n"]:
        return (p >= p[:, :1]).float()

    if status == "fail":
        found, findings = status_of(larger, lambda p: (p > p[:, :1]).float() + (torch.arange(p.shape[1]) == 0))
    else:
        found, findings = status_of(larger, lambda p: (~(p < p[:, :1])).float())
    assert found == status, findings


def test_a_kernel_that_takes_zero_times_the_logarithm_of_zero_for_zero_is_left_alone():
    @ow.op("reach_of_arranged_values::entropy", where="n >= 1")
    def entropy(p: Shares) -> Float32[Tensor, " b"]:
        return -(p * p.log()).sum(1)

    found, findings = status_of(entropy, lambda p: -torch.xlogy(p, p).sum(1))
    assert found == "pass", findings


def kinds_of(operator):
    return {c.values for c in cases(operator.contract, "quick")}


def drawn(operator, kind):
    case = next(c for c in cases(operator.contract, "quick") if c.values == kind)
    return arguments_of(operator.contract, case, "cpu")


def test_what_is_stated_still_holds_in_hard_cases():
    @ow.op("reach_of_arranged_values::divergence")
    def divergence(p: Shares, q: Shares, logs: Logs) -> Float32[Tensor, " b"]:
        return (p * logs).sum(1) + q.sum(1)

    assert {"confident", "dyadic"} <= kinds_of(divergence)
    for kind in ("confident", "dyadic"):
        p, q, logs = drawn(divergence, kind)
        for shares in (p, q, logs.exp()):
            assert torch.allclose(shares.sum(1), torch.ones(len(p)), atol=1e-5)
            assert (shares >= 0).all()
    assert 0 < (p == q).all(1).sum() < len(p)
    p, q, logs = drawn(divergence, "confident")
    assert (p == 0).any()
    assert logs.min() < -104
    assert logs.isfinite().all()


def positive(shape, generator):
    return torch.randn(shape, generator=generator).exp()


def large(shape, generator):
    return torch.randn(shape, generator=generator).exp().pow(20)


def until_small(shape, generator):
    while True:
        found = torch.randn(shape, generator=generator)
        if not found.numel() or found.abs().mean() < 3:
            return found


def refused(shape, generator):
    found = torch.randn(shape, generator=generator)
    if found.numel() and float(found.abs().max()) > 20:
        raise ValueError("too large")
    return found


@pytest.mark.parametrize("function", [positive, large, until_small, refused])
def test_a_function_whose_values_would_be_too_large_draws_what_it_draws(function):
    @ow.op(f"reach_of_arranged_values::of_{function.__name__}")
    def twice(x: Annotated[Float32[Tensor, "b n"], ow.inputs.drawn_by(function)]) -> Float32[Tensor, "b n"]:
        return 2 * x

    (x,) = drawn(twice, "confident")
    assert x.isfinite().all()
    plain = function(tuple(x.shape), torch.Generator().manual_seed(1))
    assert float(x.abs().max()) <= max(1e5, 1e3 * float(plain.abs().max()))
