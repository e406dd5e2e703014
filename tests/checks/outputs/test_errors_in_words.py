"""A finding of values has the error and the allowed error of the elements that it shows."""

from __future__ import annotations

import re

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

import opwright as ow
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.outputs.errors_in_words import describe_errors


def of(values: Tensor, got: Tensor) -> str:
    computation = Computation(lambda arguments: [arguments[0] * 2], (values,), lambda i: 1)
    return describe_errors(computation, 0, got, computation.wrong(0, got))


def test_an_error_and_what_is_allowed():
    text = of(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.5]))
    found = re.search(r"at \(1,\): expected 4.0, got 4.5 \(off by 0.5, allowed (\S+)\)", text)
    assert found is not None, text
    assert 0 < float(found[1]) < 1e-4


def test_what_has_no_error_is_left_alone():
    nan = of(torch.tensor([1.0, 2.0]), torch.tensor([2.0, torch.nan]))
    assert nan.endswith("expected 4.0, got nan")
    integers = of(torch.tensor([1, 2]), torch.tensor([2, 5]))
    assert integers.endswith("expected 4, got 5")


def test_findings_of_a_check(namespace):
    @ow.op(f"{namespace}::double")
    def double(x: Float32[Tensor, " n"], k: Int32[Tensor, " n"]) -> tuple[Float32[Tensor, " n"], Int32[Tensor, " n"]]:
        return 2 * x, k + 1

    double.python(lambda x, k: (2.001 * x, k + 1), name="wrong")
    double.register_autograd(lambda ctx, g, _: (2.001 * g, None), setup_context=lambda ctx, inputs, output: None)
    verdict = ow.check(double, checks=["values", "gradients"], level="smoke").verdicts[0]
    assert [f.check for f in verdict.failures] == ["values", "gradients"]
    assert all(re.search(r"off by \S+, allowed \S+\)", f.message) for f in verdict.failures), verdict.failures
