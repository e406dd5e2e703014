"""Methods of ufuncs in references in NumPy, from whose steps on tensors gradients are derived."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int

import opwright as ow
from opwright.contract.numpy.facts import NotLikeNumpyError


def test_a_scatter_has_the_gradient_of_its_gather(namespace: str) -> None:
    @ow.op(f"{namespace}::scatter")
    def scatter(x: Float[np.ndarray, "n k"], i: Int[np.ndarray, " n"], m: int = 5) -> Float[np.ndarray, "m k"]:
        out = np.zeros((m, x.shape[1]), x.dtype)
        np.add.at(out, i, x)
        return out

    x, i = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.tensor([0, 4, 4, -2])
    expected = torch.zeros(5, 3, dtype=torch.float64).index_add(0, i % 5, x)
    torch.testing.assert_close(scatter(x, i), expected)
    assert torch.autograd.gradcheck(lambda t: scatter(t, i), x)


def test_outer_reduce_and_accumulate(namespace: str) -> None:
    @ow.op(f"{namespace}::table")
    def table(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n n"]:
        pairs = np.subtract.outer(x, np.add.accumulate(x))
        return pairs / np.maximum.reduce(np.abs(pairs)) + np.add.reduce(np.multiply.outer(x, x), axis=1)

    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(table(x).detach(), table(x.detach()))  # on tensors, and NumPy itself
    assert torch.autograd.gradcheck(table, x)


def test_a_method_that_is_not_known_is_refused(namespace: str) -> None:
    @ow.op(f"{namespace}::running_max")
    def running_max(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return np.maximum.accumulate(x)

    assert running_max(np.array([1.0, 3.0, 2.0])).tolist() == [1, 3, 3]
    with pytest.raises(NotLikeNumpyError, match=r"np\.maximum\.accumulate; np\.add, np\.multiply have it"):
        running_max(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("method", ["multiply", "maximum", "minimum", "subtract"])
def test_derivatives_go_through_what_is_written(namespace: str, method: str) -> None:
    @ow.op(f"{namespace}::combined")
    def combined(
        x: Float[np.ndarray, " n"], i: Int[np.ndarray, " k"], v: Float[np.ndarray, " k"]
    ) -> Float[np.ndarray, " n"]:
        out = x * 1
        getattr(np, method).at(out, i, v)
        return out

    x, v = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (5, 4))
    i = torch.tensor([0, 3, 3, -1])
    assert torch.autograd.gradcheck(lambda x, v: combined(x, i, v), (x, v))


def test_a_number_that_the_dtype_does_not_hold_is_refused(namespace: str) -> None:
    @ow.op(f"{namespace}::products")
    def products(x: Float[np.ndarray, " n"], s: float) -> Float[np.ndarray, " n"]:
        out = x * 1
        np.multiply.at(out, [0, 0], s)
        return out

    x = torch.full((3,), 0.5, dtype=torch.float16, requires_grad=True)
    torch.testing.assert_close(products(x, 2.0).detach(), products(x.detach(), 2.0))
    with pytest.raises(NotLikeNumpyError, match=r"100000\.0, with which NumPy computes in another dtype"):
        products(x, 1e5)
