"""Products of matrices with a scale for each group of elements (OCP Microscaling Formats), in torch and in Triton."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton.compiler")

import triton
import triton.language as tl

from tests.kernelsim.loading import simulated

pytestmark = [pytest.mark.triton, pytest.mark.compiler]

M, N, K = 16, 32, 64
FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@triton.jit
def product(
    a, b, a_scale, b_scale, out,
    A: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, INNER_A: tl.constexpr, INNER_B: tl.constexpr,
    COLUMNS: tl.constexpr, GROUPS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    m, n, g = tl.arange(0, M), tl.arange(0, N), tl.arange(0, GROUPS)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    left = tl.load(a + rows[:, None] * INNER_A + tl.arange(0, INNER_A)[None, :])
    right = tl.load(b + tl.arange(0, INNER_B)[:, None] * COLUMNS + columns[None, :])
    left_scale = tl.load(a_scale + m[:, None] * GROUPS + g[None, :])
    if b_scale is None:  # noqa: SIM108 - Triton compiles the branch that is taken
        right_scale = None
    else:
        right_scale = tl.load(b_scale + n[:, None] * GROUPS + g[None, :])
    total = tl.dot_scaled(left, left_scale, A, right, right_scale, B, lhs_k_pack=ROWS == M, rhs_k_pack=COLUMNS == N)
    tl.store(out + m[:, None] * N + n[None, :], total)


def decoded(x: torch.Tensor, axis: int) -> torch.Tensor:
    """The numbers of a matrix; pairs of four bits lie along an axis."""
    if x.dtype != torch.uint8:
        return x.double()
    pairs = torch.stack([FOUR_BITS[(x & 15).long()], FOUR_BITS[(x >> 4).long()]], axis + 1)
    return pairs.flatten(axis, axis + 1).double()


def scales(rows: int, groups: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.uint8:  # powers of two
        return torch.randint(119, 134, (rows, groups), dtype=dtype)
    return (torch.rand(rows, groups) + 0.1).to(dtype)


def of_each_element(scale: torch.Tensor | None, rows: int) -> torch.Tensor:
    if scale is None:
        return torch.ones(rows, K).double()
    numbers = torch.exp2(scale.double() - 127) if scale.dtype == torch.uint8 else scale.double()
    return numbers.repeat_interleave(K // scale.shape[1], 1)


def pairs(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


CASES: dict[str, tuple[str, str, torch.Tensor, torch.Tensor, int, torch.dtype, bool]] = {
    "four bits": ("e2m1", "e2m1", pairs(M, K // 2), pairs(K // 2, N), 32, torch.uint8, True),
    "four bits, along the other axes": ("e2m1", "e2m1", pairs(M // 2, K), pairs(K, N // 2), 32, torch.uint8, True),
    "four bits, float8 scales of 16": (
        "e2m1", "e2m1", pairs(M, K // 2), pairs(K // 2, N), 16, torch.float8_e4m3fn, True,
    ),
    "eight bits": (
        "e4m3", "e5m2", torch.randn(M, K).to(torch.float8_e4m3fn), torch.randn(K, N).to(torch.float8_e5m2), 32,
        torch.uint8, True,
    ),
    "four bits and bfloat16": ("e2m1", "bf16", pairs(M, K // 2), torch.randn(K, N).bfloat16(), 32, torch.uint8, False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_product_with_scales(case: str) -> None:
    a_format, b_format, a, b, group, dtype, both = CASES[case]
    a_scale, b_scale = scales(M, K // group, dtype), scales(N, K // group, dtype) if both else None
    out = torch.empty(M, N)
    sizes: dict[str, Any] = {"ROWS": a.shape[0], "INNER_A": a.shape[1], "INNER_B": b.shape[0], "COLUMNS": b.shape[1]}
    with simulated():
        product[(1,)](a, b, a_scale, b_scale, out, a_format, b_format, **sizes, GROUPS=K // group, M=M, N=N)
    left = decoded(a, 0 if a.shape[0] < M else 1) * of_each_element(a_scale, M)
    right = decoded(b, 1 if b.shape[1] < N else 0) * of_each_element(b_scale, N).T
    # Sums in single precision err by their terms' sizes; where large terms cancel, the sum itself says nothing of it.
    error, terms = (out.double() - left @ right).abs(), left.abs() @ right.abs()
    assert (error <= K * torch.finfo(torch.float32).eps * terms).all(), (error / terms).max()
    assert (left @ right).abs().max() > 1


def test_a_scale_that_is_no_number_gives_none() -> None:
    a_format, b_format, a, b, group, dtype, _ = CASES["eight bits"]
    a_scale, b_scale = scales(M, K // group, dtype), scales(N, K // group, dtype)
    a_scale[3, 1] = 255
    out = torch.empty(M, N)
    sizes: dict[str, Any] = {"ROWS": M, "INNER_A": K, "INNER_B": K, "COLUMNS": N}
    with simulated():
        product[(1,)](a, b, a_scale, b_scale, out, a_format, b_format, **sizes, GROUPS=K // group, M=M, N=N)
    assert out.isnan().all(1).tolist() == [row == 3 for row in range(M)]
