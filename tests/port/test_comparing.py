"""What counts as a difference between two kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from opwright.checks.comparison.tolerance import Computation
from opwright.port.comparing import _difference, _is_wrong

X = torch.linspace(-1, 1, 1000)


def summed() -> Computation:
    """A sum, which rounding changes by more than a few units of its last place."""
    return Computation(lambda arguments: (arguments[0].sum()[None],), (X * 100 + 0.1,), lambda i: X.numel())


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([X], [X.clone()], ""),
        ([X], [X * (1 + 2e-7)], ""),  # a rounding
        ([X], [X + 1e-3], "result 0 differs by"),
        ([X], [X.double()], "result 0 is torch.float32"),
        ([X], [X[:3]], "result 0 is torch.float32 [1000] and torch.float32 [3]"),
        ([X], [X, X], "1 and 2 results"),
        ([X.long()], [X.long() + 1], "result 0 differs by inf"),
        ([torch.tensor([float("nan"), 1])], [torch.tensor([float("nan"), 1])], ""),
        ([torch.tensor([float("nan"), 1])], [torch.tensor([0.0, 1])], "result 0 differs by inf"),
        ([X], RuntimeError("no"), "only the new kernel raised no"),
        (RuntimeError("no"), [X], "only the original raised no"),
    ],
)
def test_a_difference_is_named(before: list[Tensor] | Exception, after: list[Tensor] | Exception, message: str) -> None:
    what, _ = _difference(before, after, lambda: Computation(lambda a: a, (X,), lambda i: 1))
    assert what.startswith(message)
    assert bool(what) is bool(message)


def test_what_rounding_explains_is_no_difference() -> None:
    (exact,) = summed().exact
    off = (exact * (1 + 3e-6)).float()
    assert _difference([exact.float()], [off], summed)[0] == ""
    assert "differs by" in _difference([exact.float()], [off * 1.01], summed)[0]


def test_an_original_that_is_wrong_is_no_measure() -> None:
    right = list(summed().rounded)
    assert not _is_wrong(right, summed)
    assert _is_wrong([right[0] + 5], summed)
    assert not _is_wrong([right[0].expand(2)], summed)
