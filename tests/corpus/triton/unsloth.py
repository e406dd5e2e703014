"""Kernels of unsloth (https://github.com/unslothai/unsloth, Apache-2.0)."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.corpus.triton.comparison import both, case, difference
from tests.corpus.triton.packages import import_alone, stand_in


def kernels(module: str) -> Any:
    """A module of unsloth's kernels; what its own utilities load besides them is left out."""
    import triton
    import triton.language as tl

    def calculate_settings(n: int) -> tuple[int, int]:
        block = triton.next_power_of_2(n)
        return block, 32 if block >= 32768 else 16 if block >= 8192 else 8 if block >= 2048 else 4

    @triton.jit
    def cast(x, dtype):  # type: ignore[no-untyped-def]
        return x.to(dtype)

    stand_in("unsloth_zoo.patching_utils", patch_layernorm=None)
    stand_in("unsloth.device_type", DEVICE_COUNT=1)
    stand_in(
        "unsloth.kernels.utils",
        calculate_settings=calculate_settings,
        torch_gpu_device=lambda device: contextlib.nullcontext(),
        torch_device_stream=lambda device: contextlib.nullcontext(),
        MAX_FUSED_SIZE=65536,
        triton_tanh=tl.extra.libdevice.tanh if hasattr(tl.extra, "libdevice") else tl.extra.cuda.libdevice.tanh,
        triton_cast=cast,
        is_cdna=lambda: False,
    )
    return import_alone(f"unsloth.kernels.{module}")


@case("unsloth.rms_layernorm")
def rms_norm() -> float:
    apply = kernels("rms_layernorm").Fast_RMS_Layernorm.apply
    w = torch.randn(70)
    return both(lambda x: apply(x, w, 1e-6, False), lambda x: F.rms_norm(x, (70,), w, 1e-6), torch.randn(3, 5, 70))


@case("unsloth.rms_layernorm of Gemma")
def gemma_rms_norm() -> float:
    apply = kernels("rms_layernorm").Fast_RMS_Layernorm.apply
    w = torch.randn(70)
    return both(lambda x: apply(x, w, 1e-6, True), lambda x: F.rms_norm(x, (70,), w + 1, 1e-6), torch.randn(3, 5, 70))


@case("unsloth.layernorm")
def layer_norm() -> float:
    apply, w, b = kernels("layernorm").Fast_Layernorm.apply, torch.randn(70), torch.randn(70)
    return both(lambda x: apply(x, w, b, 1e-6), lambda x: F.layer_norm(x, (70,), w, b, 1e-6), torch.randn(3, 5, 70))


@case("unsloth.swiglu")
def swiglu() -> float:
    e, g = torch.randn(2, 3, 700), torch.randn(2, 3, 700)
    return difference(kernels("swiglu").swiglu_fg_kernel(e, g), F.silu(e) * g)


@case("unsloth.swiglu, backward")
def swiglu_backward() -> float:
    incoming, e, g = (torch.randn(6, 700) for _ in range(3))
    return difference(
        list(kernels("swiglu").swiglu_DWf_DW_dfg_kernel(incoming.clone(), e.clone(), g.clone())),
        list(_gated_backward(F.silu, incoming, e, g)),
    )


def _gated_backward(activation: Any, incoming: Tensor, e: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What these kernels leave in their arguments: the product, and the gradients of g and e."""
    e = e.clone().requires_grad_()
    f = activation(e)
    (of_e,) = torch.autograd.grad(f, e, incoming * g)
    return (f * g).detach(), (incoming * f).detach(), of_e


@case("unsloth.geglu, exact")
def geglu() -> float:
    e, g = torch.randn(2, 3, 700), torch.randn(2, 3, 700)
    return difference(kernels("geglu").geglu_exact_forward_kernel(e, g), F.gelu(e) * g)


@case("unsloth.geglu, exact, backward")
def geglu_backward() -> float:
    incoming, e, g = (torch.randn(6, 700) for _ in range(3))
    found = kernels("geglu").geglu_exact_backward_kernel(incoming.clone(), e.clone(), g.clone())
    return difference(list(found), list(_gated_backward(F.gelu, incoming, e, g)))


@case("unsloth.geglu, approximate")
def geglu_approximate() -> float:
    e, g = torch.randn(2, 3, 700), torch.randn(2, 3, 700)
    return difference(kernels("geglu").geglu_approx_forward_kernel(e, g), F.gelu(e, approximate="tanh") * g)


@case("unsloth.rope_embedding")
def rope() -> float:
    apply = kernels("rope_embedding").Fast_RoPE_Embedding.apply
    angles = torch.randn(9, 16).repeat(1, 2)

    def reference(q: Tensor) -> Tensor:
        turned = torch.cat([-q[..., 16:], q[..., :16]], -1)
        return q * angles.cos()[None, :, None] + turned * angles.sin()[None, :, None]

    return both(lambda q: apply(q.clone(), angles.cos(), angles.sin()), reference, torch.randn(2, 9, 4, 32))
