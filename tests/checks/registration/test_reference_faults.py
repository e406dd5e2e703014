"""A reference that torch cannot trace with symbolic sizes is not the kernel's fault; a fake that raises is."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.results import Status

MESSAGE = "Cannot call sizes() on tensor with symbolic sizes"


class _NeedsNumbers(torch.autograd.Function):
    """As functions of torch in C++ that read sizes as numbers."""

    @staticmethod
    def forward(ctx, x):
        if any(isinstance(n, torch.SymInt) for n in x.shape):
            raise RuntimeError(MESSAGE)
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def doubling(namespace: str, reference, fake=None):
    @ow.op(f"{namespace}::double")
    def double(x: Float32[Tensor, " n"]) -> Float32[Tensor, "..."]:
        return reference(x)

    double.python(lambda x: 2 * x, name="kernel")
    if fake is not None:
        double.register_fake(fake)
    return ow.check(double, checks=["opcheck", "torch.compile"], level="smoke").verdicts[0]


def test_a_reference_that_raises_with_dynamic_shapes(namespace):
    verdict = doubling(namespace, _NeedsNumbers.apply)
    assert not verdict.failures, verdict.failures
    assert {n.check for n in verdict.not_checked if MESSAGE in n.why} == {"opcheck", "torch.compile"}
    assert [f.message for f in verdict.findings if f.check == "torch.compile"] == ["fullgraph, static, aot_eager"]


def test_a_right_one_is_checked_whole(namespace):
    verdict = doubling(namespace, lambda x: 2 * x)
    assert verdict.status is Status.PASS, verdict.findings
    assert "static and dynamic" in verdict.findings[-1].message


def _raising(x):
    if any(isinstance(n, torch.SymInt) for n in x.shape):
        raise RuntimeError(MESSAGE)
    return torch.empty_like(x)


@pytest.mark.parametrize("reference", [lambda x: 2 * x, lambda x: 2 * x + 0 * x.shape[0]])
def test_a_fake_that_raises_is_a_failure(namespace, reference):
    verdict = doubling(namespace, reference, _raising)
    assert {f.check for f in verdict.failures} == {"opcheck", "torch.compile"}
    assert all(MESSAGE in f.message for f in verdict.failures)
