"""Operators of tritonbench (https://github.com/pytorch-labs/tritonbench, BSD-3-Clause), among them those of Triton's
tutorials: vector addition, dropout, layer norm, attention, matrix multiplication, grouped and persistent."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.corpus.triton.comparison import BFLOAT16, both, case, difference
from tests.corpus.triton.packages import import_alone, stand_in

HALF = 2e-3


def operators(module: str) -> Any:
    stand_in("tabulate")
    stand_in("tritonbench.utils.env_utils", is_cuda=lambda: True, is_fbcode=lambda: True, is_hip_mi300=lambda: False)
    stand_in("triton.tools.experimental_descriptor")
    return import_alone(f"tritonbench.operators.{module}")


def normal(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(shape).to(dtype)


@case("tritonbench.vector_add")
def vector_add() -> float:
    x, y, out = torch.randn(2777), torch.randn(2777), torch.empty(2777)
    operators("vector_add.kernels").triton_add_kernel[(3,)](x, y, out, 2777, BLOCK_SIZE=1024)
    return difference(out, x + y)


@case("tritonbench.low_mem_dropout")
def dropout() -> float:
    x, kept, out = torch.randn(1777), (torch.rand(1777) > 0.5).int(), torch.empty(1777)
    operators("low_mem_dropout.kernels")._triton_dropout[(2,)](x, kept, out, 1777, 0.5, BLOCK_SIZE=1024)
    return difference(out, torch.where(kept == 1, x / 0.5, 0.0))


@case("tritonbench.low_mem_dropout, seeded")
def seeded_dropout() -> float:
    x, out = torch.randn(1777), torch.empty(1777)
    operators("low_mem_dropout.kernels")._seeded_triton_dropout[(2,)](x, out, 1777, 0.5, 123, BLOCK_SIZE=1024)
    kept = out != 0
    assert 0.45 < kept.float().mean() < 0.55
    return difference(out, torch.where(kept, x / 0.5, 0.0))


@case("tritonbench.layer_norm of the tutorial")
def layer_norm() -> float:
    ours = operators("layer_norm.tutorial").LayerNorm.apply
    inputs = torch.randn(37, 70), torch.randn(70), torch.randn(70)
    return both(lambda x, w, b: ours(x, (70,), w, b, 1e-5), lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-5), *inputs)


def product(module: str, function: str, a: Tensor, b: Tensor, *more: Any) -> float:
    found = getattr(operators(module), function)(a, b, *more)
    return difference(found, (a.float() @ b.float()).to(found.dtype))


@case("tritonbench.gemm of the tutorial", tolerance=HALF)
def matmul() -> float:
    return product("gemm.triton_matmul", "matmul", normal(130, 70), normal(70, 90))


@case("tritonbench.gemm of the tutorial with leaky_relu", tolerance=HALF)
def matmul_with_activation() -> float:
    a, b = normal(130, 70), normal(70, 90)
    found = operators("gemm.triton_matmul").matmul(a, b, "leaky_relu")
    return difference(found, F.leaky_relu(a.float() @ b.float() + 1, 0.01).half())


@case("tritonbench.gemm, partitioned along k", tolerance=HALF)
def partitioned() -> float:
    # Right where the result is square, and each of the 32 parts of k is 32 tiles of 64.
    return product("gemm.partition_k", "matmul_partition_k", normal(64, 65536), normal(65536, 64), True)


@case(
    "tritonbench.gemm, partitioned along k, 70 × 40",
    faulty="partition_k.py:177 stores whole tiles without a mask: past the end, and over the next column",
)
def partitioned_in_part() -> float:
    return product("gemm.partition_k", "matmul_partition_k", normal(70, 4096), normal(4096, 40), True)


@case("tritonbench.gemm, persistent", tolerance=HALF)
def persistent() -> float:
    return product("gemm.persistent_matmul", "matmul_persistent", normal(300, 150), normal(150, 290))


@case("tritonbench.gemm, stream-k", tolerance=HALF)
def stream_k() -> float:
    """Since August 2025 there are two: one for AMD, which is the earlier one, and one of descriptors."""
    kernels = operators("gemm.stream_k")
    if hasattr(kernels, "streamk_matmul"):
        return product("gemm.stream_k", "streamk_matmul", normal(300, 160), normal(160, 290))
    a, b = normal(304, 160), normal(160, 296)
    found = kernels.streamk_cuda_matmul(a, b.T.contiguous())
    return difference(found, (a.float() @ b.float()).half())


@case("tritonbench.fp8_gemm of the tutorial", tolerance=HALF)
def fp8() -> float:
    a, b = (torch.randn(*shape).to(torch.float8_e4m3fn) for shape in ((70, 64), (64, 90)))
    return product("fp8_gemm.tutorial", "matmul", a, b)


@case("tritonbench.int4_gemm", tolerance=BFLOAT16)
def int4() -> float:
    kernel = operators("int4_gemm.kernel")
    a, b = normal(70, 256, dtype=torch.bfloat16), torch.randint(-8, 8, (256, 130))
    return difference(kernel.matmul(a, kernel.pack_2xint4(b)), (a.float() @ b.float()).bfloat16())


@case("tritonbench.grouped_gemm of the tutorial, which finds its matrices by address", tolerance=HALF, by_address=True)
def grouped() -> float:
    groups = [(normal(m, k), normal(k, n)) for m, k, n in ((128, 256, 128), (256, 128, 384))]
    found = operators("grouped_gemm.kernels").triton_group_gemm_fn([a for a, _ in groups], [b for _, b in groups])
    return difference(list(found), [(a.float() @ b.float()).half() for a, b in groups])


@case("tritonbench.sum")
def total() -> float:
    kernels, x = operators("sum.kernels"), torch.randn(40, 70)
    columns = torch.empty(70)
    kernels.triton_sum_kernel_1D_result_buffer_then_sum.fn[(3,)](
        x, columns, 40, 70, BLOCK_SIZE_NON_REDUCE_DIM=32, BLOCK_SIZE_REDUCE_DIM=16, dim=0
    )
    return difference(columns, x.sum(0))


def attention_of(heads: int) -> float:
    apply = import_alone("tritonbench.kernels.triton_fused_attention").attention_opt
    inputs = [normal(1, heads, 256, 64, dtype=torch.bfloat16) for _ in range(3)]
    return both(
        lambda q, k, v: apply(q, k, v, True, 0.125, "base_opt"),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *inputs,
    )


@case("tritonbench.attention", tolerance=BFLOAT16)
def attention() -> float:
    return attention_of(heads=1)


@case(
    "tritonbench.attention of two heads",
    tolerance=BFLOAT16,
    faulty="m_mask = off_hz * N_CTX + offs_m < N_CTX stores the logarithms of the first head only, of those that the "
    "backward reads",
)
def attention_of_two_heads() -> float:
    return attention_of(heads=2)
