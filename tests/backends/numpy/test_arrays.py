"""Operators with a NumPy reference, called with arrays: they return arrays, with NumPy's rules for shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor

import opwright as ow
from opwright.backends.numpy import tracing
from opwright.errors import ArgumentError, ContractError


def scaled(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::scaled")
    def scaled(
        x: Float[np.ndarray, "n d"], a: float = 2.0, *, twice: bool = False
    ) -> tuple[Float[np.ndarray, "n d"], Int64[np.ndarray, ""]]:
        return x * a * (2 if twice else 1), np.argmax(x)

    return scaled


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_arrays_give_arrays_of_the_references_dtypes(namespace: str, dtype: Any) -> None:
    op = scaled(namespace)
    x = np.arange(6, dtype=dtype).reshape(3, 2)
    for _ in range(2):
        out, at = op(x, 3.0, twice=True)
        assert type(out) is np.ndarray
        assert out.dtype == dtype
        assert np.array_equal(out, x * 6)
        assert type(at) is np.int64
        assert at == 5


def test_tensors_still_give_tensors_before_and_after_arrays(namespace: str) -> None:
    op = scaled(namespace)
    t = torch.arange(6.0).reshape(3, 2)
    for value in (t, t.numpy(), t, t.numpy()):
        out, _ = op(value)
        assert type(out) is type(value)
        assert np.array_equal(np.asarray(out), 2 * t.numpy())


def test_a_kernel_gets_the_arrays_own_memory(namespace: str) -> None:
    op = scaled(namespace)
    seen: list[int] = []

    @op.python
    def look(x, a, *, twice):  # type: ignore[no-untyped-def]
        seen.append(x.data_ptr())
        return x * a, torch.argmax(x)

    x = np.ones((3, 2))
    op(x)
    x.flags.writeable = False  # an operator writes nothing, so this may be shared too, without a warning
    op(x)
    assert seen == [x.ctypes.data] * 2
    assert op.kernels["look"](torch.from_numpy(np.ones((3, 2))), 2.0, twice=False)


def test_any_layout_or_byte_order_is_right(namespace: str) -> None:
    op = scaled(namespace)
    x = np.arange(12.0).reshape(4, 3)
    for value in (x.T, x[::-1], x[:, ::-2], x[::2], x.astype(">f8"), np.broadcast_to(x[0], (5, 3)), x[:0]):
        if value.size:
            assert np.array_equal(op(value)[0], value * 2)
    record = np.zeros(3, dtype=[("a", "f8"), ("b", "i1")])
    record["a"] = [1, 2, 3]
    assert np.array_equal(op(record["a"][:, None])[0][:, 0], [2, 4, 6])


def test_what_is_wrong_with_an_array_is_said_in_the_contracts_words(namespace: str) -> None:
    op = scaled(namespace)
    with pytest.raises(ArgumentError, match="argument 'x' must be Float, got int64"):
        op(np.ones((2, 2), dtype=np.int64))
    with pytest.raises(ArgumentError, match=r"must have 2 dims"):
        op(np.ones(2))
    with pytest.raises(ArgumentError, match="no array of dtype <U1"):
        op(np.array([["a"]]))


def test_arrays_and_tensors_in_one_call_are_refused(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return x + y

    with pytest.raises(ArgumentError, match="must be given arrays or tensors, got both"):
        f(np.ones(2), torch.ones(2))


def test_lists_of_arrays_and_absent_ones(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(xs: list[Float[np.ndarray, " n"]], y: Float[np.ndarray, " n"] | None = None) -> Float[np.ndarray, " n"]:
        return xs[0] + xs[-1] if y is None else xs[0] + y

    x = np.arange(3.0)
    assert np.array_equal(f([x, x]), 2 * x)
    assert np.array_equal(f([x], x), 2 * x)


def test_an_operator_on_tensors_takes_no_arrays(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    with pytest.raises(ArgumentError, match="must be a tensor, got ndarray"):
        f(np.ones(3))


def test_gradients_go_through_a_numpy_reference(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(X: Float[np.ndarray, "n i"], Y: Float[np.ndarray, "n j"]) -> Float[np.ndarray, "i j"]:
        return np.sum(X[:, :, None] * Y[:, None, :], axis=0)

    X, Y = (torch.randn(4, k, dtype=torch.float64, requires_grad=True) for k in (2, 3))
    assert torch.autograd.gradcheck(f, (X, Y))
    assert torch.autograd.gradgradcheck(f, (X, Y))


def test_it_is_one_operator_in_a_compiled_numpy_function(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = scaled(namespace)
    graphs: list[Any] = []
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: graphs.append(graph) or graph)
    compiled = ow.compile_numpy(lambda x: op(x + 1, 3.0)[0] + 1)
    assert np.array_equal(compiled(np.zeros((2, 2))), np.full((2, 2), 4.0))
    assert any(f"{namespace}.scaled" in str(node.target) for node in graphs[0].graph.nodes)


def test_a_reference_with_a_function_that_is_lacking_is_refused_when_it_is_defined(namespace: str) -> None:
    with pytest.raises(ContractError) as refused:

        @ow.op(f"{namespace}::f")
        def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
            return np.interp(x, x, x)

    assert f"np.interp, used in f at {__file__}:" in str(refused.value)
    assert "np.searchsorted" in str(refused.value)


def test_a_reference_that_draws_random_numbers_is_refused_when_it_is_defined(namespace: str) -> None:
    with pytest.raises(ContractError, match="draws random numbers"):

        @ow.op(f"{namespace}::f")
        def f(x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
            return x + np.random.rand()
