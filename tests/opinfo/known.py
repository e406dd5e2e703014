"""Bugs of torch that the table finds, each verified by hand, and sums in half precision: they are no false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["KNOWN", "Bug", "known_bug"]


@dataclass(frozen=True)
class Bug:
    """A bug of torch.

    Attributes:
        functions: the names of OpInfos that it affects.
        device: where; "" for every device.
        checks: the checks of opwright that find it.
        evidence: an input, what torch returns, and what is right.
    """

    functions: tuple[str, ...]
    device: str
    checks: tuple[str, ...]
    evidence: str


KNOWN: tuple[Bug, ...] = (
    Bug(
        ("nn.functional.max_unpool2d",),
        "",
        ("gradients", "opcheck"),
        "max_unpool2d(x, indices, 2, 2).sum().backward() with indices = arange(4).view(1, 1, 2, 2).expand(5, 2, 2, 2)"
        ".contiguous().mT.contiguous().mT raises 'view size is not compatible with input tensor's size and stride'; "
        "the forward takes the same indices, and with contiguous ones the backward is right (torch 2.13, CPU).",
    ),
    Bug(
        ("nn.functional.layer_norm", "native_layer_norm"),
        "cpu",
        ("gradients",),
        "The bias' gradient of layer_norm(x, (64,), w, b) with x = torch.ones(4100, 64).half(), an incoming gradient "
        "of ones and one thread is 2048: it is summed up in float16 (torch 2.15, CPU).",
    ),
    Bug(
        ("bincount",),
        "",
        ("metadata",),
        "torch.bincount(x, weights) of empty int64 and float64 tensors is int64, else float64 (torch 2.13, CPU).",
    ),
    Bug(
        ("median", "nanmedian"),
        "cpu",
        ("values", "gradients", "memory"),
        "torch.tensor([[3.0], [1.0], [2.0]]).expand(3, 2).median(1) has the values [1, 1, 0] instead of [3, 1, 2]: "
        "along an expanded dim it reads other memory; a contiguous copy is right (torch 2.13, CPU).",
    ),
    Bug(
        ("mv", "addmv"),
        "cpu",
        ("values", "contract", "gradients"),
        "torch.mv(x, v) in float16 and bfloat16 ends the process with SIGSEGV where the two rows of x are 2³¹ + 64 "
        "elements apart; in float32 it is right (torch 2.13, CPU).",
    ),
    Bug(
        ("cummin", "cummax"),
        "",
        ("values", "metadata"),
        "torch.cummin(x, 0) of x = torch.empty_strided((2, 7, 3), (2**31 + 64, 3, 1)) ends the process with SIGSEGV on "
        "a CPU (torch 2.14), where the reference runs.",
    ),
    Bug(
        ("nn.functional.margin_ranking_loss",),
        "",
        ("opcheck", "torch.compile"),
        "torch.compile(dynamic=True) of an operator whose registered fake calls margin_ranking_loss raises '2 is not a "
        "valid value for reduction': its decomposition for sizes that are symbols takes a str, and gets a number "
        "(torch 2.14, CPU; torch 2.11, CUDA).",
    ),
    # On an H200 or H100 with torch 2.11:
    Bug(
        ("nn.functional.embedding",),
        "cuda",
        ("gradients", "own backward"),
        "The backward of embedding(index, torch.zeros(5, 0)) reads address 0, which ends CUDA in the process: "
        "https://github.com/pytorch/pytorch/issues/189668. The check of gradients has a case a=5 b=0; not of the eager "
        "form, whose other dtypes take its place. (Found by reading: not run again on a GPU.)",
    ),
    Bug(
        ("nn.functional.hardsigmoid", "nn.functional.hardswish"),
        "cuda",
        ("values",),
        "Of 1.7 in float64, hardswish is 1.331666706353426 on a GPU, which takes 1/6 in float32, and "
        "1.3316666666666668 on a CPU; hardsigmoid 0.7833333566784859 and 0.7833333333333333.",
    ),
    Bug(
        ("igamma", "igammac"),
        "cuda",
        ("values",),
        "igamma(100, 100) in float64 is 0.5132987980941123 on a CPU and 0.5132987982793387 on a GPU; SciPy's gammainc "
        "gives 0.5132987982791487: the reference, on a CPU, is off.",
    ),
    Bug(
        ("nn.functional.threshold",),
        "cuda",
        ("values", "gradients"),
        "threshold(x, 1.9517877101898193, -7.0) of x = 1.9521484375 in float16 is -7.0 on a GPU, which rounds the "
        "threshold to float16, and 1.9521484375 on a CPU.",
    ),
    Bug(
        ("_upsample_bilinear2d_aa",),
        "cuda",
        ("values",),
        "Of a tensor of shape (0, 1, 1, 1) it raises 'CUDA error: invalid argument', of (1, 1, 1023, 1) 'Too much "
        "shared memory required'; a CPU takes both.",
    ),
    Bug(
        ("nn.functional.group_norm",),
        "cuda",
        ("values",),
        "Of shape (1, 0, 0) it raises 'CUDA error: invalid argument'. In float16, a GPU rounds mean and rstd to "
        "float16: of torch.randn(64, 5, 1), with one group and eps=0.5, it is off by 0.00105, a CPU by 0.00049.",
    ),
    Bug(
        ("nn.functional.avg_pool1d",),
        "cuda",
        ("gradients",),
        "The gradient of avg_pool1d(x, 6, 3, 2, True) with x = torch.randn(5, 3, 7).mT is off by 0.56 on a GPU, and "
        "right of x.contiguous().",
    ),
    Bug(
        ("nanmean", "masked.mean"),
        "cuda",
        ("gradients",),
        "The gradient of torch.ones(1, 300007).half().nanmean(1) is 0 on a GPU and 3.34e-06 on a CPU: the number of "
        "elements is infinite in float16.",
    ),
    Bug(
        (
            "gather",
            "index_add",
            "index_copy",
            "index_reduce.amax",
            "index_reduce.amin",
            "index_reduce.mean",
            "index_reduce.prod",
            "index_select",
            "scatter_add",
            "scatter_reduce.amax",
            "scatter_reduce.mean",
            "scatter_reduce.sum",
        ),
        "cuda",
        ("values", "gradients", "opcheck", "torch.compile"),
        "With torch.use_deterministic_algorithms(True, warn_only=True), torch.zeros(()).index_add(0, torch.zeros(1, "
        "dtype=torch.long), torch.ones(())) raises IndexError on a GPU; without, it is 1.",
    ),
    Bug(
        (
            "cumsum",
            "grid_sampler_2d",
            "grid_sampler_3d",
            "logcumsumexp",
            "masked.cumprod",
            "masked.cumsum",
            "nn.functional.adaptive_avg_pool1d",
            "nn.functional.adaptive_avg_pool2d",
            "nn.functional.conv_transpose1d",
            "nn.functional.grid_sample",
            "nn.functional.interpolate.linear",
            "put",
            "take",
        ),
        "cuda",
        ("values", "gradients", "streams", "torch.compile"),
        "They add up in float16 and bfloat16: torch.zeros(()).half().put(indices, torch.ones(4096).half(), "
        "accumulate=True) with indices of zeros is 2048, and so is the gradient of 4096 samples of one place. The "
        "others are off by as much as a sum of that size in half precision, where its terms are exact in float32: "
        "masked.cumsum gives -0.029297 for -0.029541.",
    ),
    Bug(
        ("round.decimals_3", "round.decimals_neg_3"),
        "cuda",
        ("values", "streams", "torch.compile"),
        "torch.round(0.3134765625, decimals=3) in float16 is 0.31396484375 on a GPU and 0.31298828125 on a CPU; "
        "torch.round(-29440, decimals=-3) in bfloat16 is -29952 and -29056.",
    ),
    Bug(
        (
            "special.chebyshev_polynomial_t",
            "special.chebyshev_polynomial_u",
            "special.chebyshev_polynomial_v",
            "special.chebyshev_polynomial_w",
            "special.laguerre_polynomial_l",
            "special.legendre_polynomial_p",
            "special.shifted_chebyshev_polynomial_t",
            "special.shifted_chebyshev_polynomial_u",
            "special.shifted_chebyshev_polynomial_v",
            "special.shifted_chebyshev_polynomial_w",
        ),
        "cuda",
        ("values",),
        "The order, infinity, is converted to an integer: chebyshev_polynomial_v(0.5, inf) is 0.967 on a GPU and 0 on "
        "a CPU; laguerre_polynomial_l and legendre_polynomial_p do not return on a GPU.",
    ),
    Bug(
        ("split",),
        "cuda",
        ("metadata",),
        "Of fake tensors, torch.empty(0, 0, 0).split(2, 0) raises 'list assignment index out of range', of others it "
        "gives one tensor; right in torch 2.13.",
    ),
    Bug(
        ("view_copy",),
        "cuda",
        ("metadata", "opcheck"),
        "Of a fake transposed tensor it raises 'Cannot view a tensor', of another it gives a copy; right in 2.13.",
    ),
    Bug(
        ("fft.fft", "fft.ifft", "fft.fftn"),
        "cuda",
        ("values", "gradients"),
        "The reference, on a CPU, is off: of 129 complex128 numbers, torch.fft.fft on the CPU of that machine differs "
        "from sums in longdouble by 3.3e-13, on the GPU by 9.7e-15.",
    ),
    Bug(
        ("nn.functional.scaled_dot_product_attention",),
        "cuda",
        ("memory",),
        "In float32, of tensors that begin one element after the start of their storage (shapes (4, 4, 3, 8) and "
        "(4, 4, 6, 8)), it ends in 'CUDA error: misaligned address', after which the process has no GPU.",
    ),
    Bug(
        ("logspace.tensor_overload",),
        "cuda",
        ("gradients",),
        "The backward for an end on a GPU raises 'invalid gradient at index 0 - expected device cpu but got cuda:0'.",
    ),
    Bug(
        ("nn.functional.channel_shuffle",),
        "cuda",
        ("values", "gradients", "opcheck", "torch.compile"),
        "channel_shuffle(torch.randn(2, 2, 4, 3).transpose(1, 2), 2) raises 'view size is not compatible' on a GPU; a "
        "CPU takes it.",
    ),
)


def known_bug(function: str, device: str, checks: Sequence[str]) -> str:
    """The evidence of the bug that explains all of these findings; empty if none does."""
    for bug in KNOWN:
        if function in bug.functions and bug.device in ("", device) and set(checks) <= set(bug.checks):
            return bug.evidence
    return ""
