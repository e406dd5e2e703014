"""Kernels that Numba compiles."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends import get_backend, under_check
from opwright.errors import CompileError, KernelError

numba = pytest.importorskip("numba", reason="Numba is not installed")


def reference(x: Float[Tensor, "m n"], a: float = 0.5) -> Float[Tensor, "m n"]:
    return a * x.cumsum(1)


def running(namespace: str) -> ow.Op:
    return ow.op(f"{namespace}::running")(reference)


def recurrence(x: Any, a: Any) -> Any:
    out = np.empty_like(x)
    for i in numba.prange(x.shape[0]):
        state = 0.0
        for j in range(x.shape[1]):
            state += x[i, j]
            out[i, j] = a * state
    return out


@pytest.mark.parametrize("options", [{}, {"parallel": True}, {"fastmath": True}], ids=str)
def test_a_recurrence_is_that_of_the_reference(namespace: str, options: dict[str, bool]) -> None:
    op = running(namespace)
    op.numba(recurrence, **options)
    for x in (torch.randn(5, 7), torch.randn(7, 5).T, torch.randn(0, 3), torch.randn(2, 3, dtype=torch.float64)):
        torch.testing.assert_close(op(x, 0.25), reference(x, 0.25))


@pytest.mark.slow  # checks two kernels, which Numba compiles for each dtype
def test_a_check_passes_the_right_and_finds_the_wrong_kernel(namespace: str) -> None:
    op = running(namespace)
    op.numba(recurrence)

    @op.numba
    def reads_past_the_end(x: Any, a: Any) -> Any:
        out = np.empty_like(x)
        for i in range(x.shape[0]):
            state = x[i, x.shape[1]] * 0  # the next row's, but for the last
            for j in range(x.shape[1]):
                state += x[i, j]
                out[i, j] = a * state
        return out

    # Numba compiles, on a machine that may be busy.
    right, wrong = ow.check(op, checks=["values"], timeout=600).verdicts
    assert right.status == "pass", right.findings
    assert wrong.status == "fail"
    assert "IndexError" in wrong.failures[0].message


def test_arguments_that_are_written(namespace: str) -> None:
    @ow.op(f"{namespace}::scale_")
    def scale_(x: Annotated[Float[Tensor, "m n"], ow.mutated], a: float) -> None:
        x.mul_(a)

    @scale_.numba
    def in_place(x: Any, a: Any) -> None:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                x[i, j] *= a

    x = torch.ones(4, 6)
    assert scale_(x[:, ::2], 3.0) is None
    assert x.sum() == 4 * 3 + 4 * 9


def test_indices_are_checked_within_a_check_only(namespace: str) -> None:
    @ow.op(f"{namespace}::first")
    def first(x: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        return x.sum() * 0

    @first.numba
    def kernel(x: Any) -> Any:
        return np.full((), x[x.shape[0]] * 0, x.dtype)

    assert not math.isnan(first.kernels["kernel"](torch.ones(8)[:4]).nan_to_num().item())
    with under_check(), pytest.raises(IndexError):
        first.kernels["kernel"](torch.ones(8)[:4])


def test_what_numba_cannot_compile_is_told_with_its_reason(namespace: str) -> None:
    op = running(namespace)

    @op.numba
    def kernel(x: Any, a: Any) -> Any:
        return np.linalg.no_such_function(x)

    with pytest.raises(CompileError, match=r"::running:kernel: Numba cannot compile it: .*no_such_function"):
        op.kernels["kernel"](torch.ones(2, 2))
    with pytest.raises(KernelError, match="parallel must be a bool, got 2"):
        op.numba(recurrence, parallel=2)


def test_a_function_that_numba_decorates_keeps_its_options(namespace: str) -> None:
    op = running(namespace)
    op.numba(numba.njit(recurrence), name="own")
    x = torch.randn(3, 4)
    torch.testing.assert_close(op(x), reference(x))
    assert torch.bfloat16 not in (get_backend("numba").dtypes or ())
    assert op(x.bfloat16()).dtype == torch.bfloat16  # the reference
