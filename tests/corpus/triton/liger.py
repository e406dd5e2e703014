"""Operators of Liger-Kernel (https://github.com/linkedin/Liger-Kernel, BSD-2-Clause)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.corpus.triton.comparison import TF32, both, case, difference


def apply(module: str, name: str, *last: Any) -> Callable[..., Any]:
    """An operator as a function of its tensors; ``last`` are its other arguments."""
    function = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
    return lambda *tensors: function.apply(*tensors, *last)


@case("liger.rms_norm")
def rms_norm() -> float:
    ours = apply("rms_norm", "LigerRMSNormFunction", 1e-6, 0.0, "llama", False)
    return both(ours, lambda x, w: F.rms_norm(x, (70,), w, 1e-6), torch.randn(3, 5, 70), torch.randn(70))


@case("liger.layer_norm")
def layer_norm() -> float:
    ours = apply("layer_norm", "LigerLayerNormFunction", 1e-6)
    inputs = torch.randn(9, 70), torch.randn(70), torch.randn(70)
    return both(ours, lambda x, w, b: F.layer_norm(x, (70,), w, b, 1e-6), *inputs)


@case("liger.group_norm")
def group_norm() -> float:
    ours = apply("group_norm", "LigerGroupNormFunction", 8, 4, 1e-6)
    inputs = torch.randn(3, 8, 33), torch.randn(8), torch.randn(8)
    return both(ours, lambda x, w, b: F.group_norm(x, 4, w, b, 1e-6), *inputs)


@case("liger.softmax")
def softmax() -> float:
    return both(apply("softmax", "LigerSoftmaxFunction"), lambda x: x.softmax(-1), torch.randn(9, 300))


@case("liger.softmax of long rows")
def softmax_of_long_rows() -> float:
    return both(apply("softmax", "LigerSoftmaxFunction"), lambda x: x.softmax(-1), torch.randn(2, 40000))


@case("liger.sparsemax")
def sparsemax() -> float:
    def reference(x: Tensor) -> Tensor:
        ordered = x.sort(-1, descending=True)[0]
        sums, k = ordered.cumsum(-1), torch.arange(1, 31)
        support = (1 + k * ordered > sums).sum(-1, keepdim=True)
        return (x - (sums.gather(-1, support - 1) - 1) / support).clamp(min=0)

    return both(apply("sparsemax", "LigerSparsemaxFunction", -1), reference, torch.randn(9, 30))


@case("liger.swiglu")
def swiglu() -> float:
    ours = apply("swiglu", "LigerSiLUMulFunction")
    return both(ours, lambda a, b: F.silu(a) * b, torch.randn(4, 70), torch.randn(4, 70))


@case("liger.geglu")
def geglu() -> float:
    ours = apply("geglu", "LigerGELUMulFunction")
    return both(ours, lambda a, b: F.gelu(a, approximate="tanh") * b, torch.randn(4, 70), torch.randn(4, 70))


@case("liger.relu_squared")
def relu_squared() -> float:
    return both(apply("relu_squared", "LigerReLUSquaredFunction"), lambda a: F.relu(a) ** 2, torch.randn(4, 70))


@case("liger.dyt")
def dynamic_tanh() -> float:
    inputs = torch.randn(4, 70), torch.tensor([0.7]), torch.randn(70), torch.randn(70)
    # It has no answer for a machine without a GPU.
    with mock.patch.object(importlib.import_module("liger_kernel.ops.dyt"), "infer_device", return_value="cuda"):
        return both(apply("dyt", "LigerDyTFunction"), lambda x, a, g, b: g * torch.tanh(a * x) + b, *inputs)


@case("liger.rope")
def rope() -> float:
    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    q, k, angles = torch.randn(2, 3, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(1, 9, 8)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    ours = apply("rope", "LigerRopeFunction", cos, sin)(q.clone(), k.clone())
    return difference(ours, [x * cos[:, None] + rotated(x) * sin[:, None] for x in (q, k)])


@case("liger.llama4_rope")
def llama4_rope() -> float:
    q, k = torch.randn(2, 9, 3, 16), torch.randn(2, 9, 2, 16)
    turns = torch.polar(torch.ones(9, 8), torch.randn(9, 8))

    def reference(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 8, 2))
        return torch.view_as_real(pairs * turns[None, :, None]).flatten(3)

    ours = apply("llama4_rope", "LigerLlama4RopeFunction", turns)(q.clone(), k.clone())
    return difference(ours, [reference(q), reference(k)])


@case("liger.cross_entropy")
def cross_entropy() -> float:
    targets = torch.randint(0, 333, (9,))
    targets[3] = -100
    function = apply("cross_entropy", "LigerCrossEntropyFunction", targets, None, -100, 0.0, 0.1, "mean", None, False)

    def ours(x: Tensor) -> Tensor:
        return function(x + 0)[0]  # type: ignore[no-any-return]  # the gradient is written over the argument

    return both(ours, lambda x: F.cross_entropy(x, targets, label_smoothing=0.1), torch.randn(9, 333))


@case("liger.fused_linear_cross_entropy")
def fused_linear_cross_entropy() -> float:
    targets = torch.randint(0, 50, (9,))
    function = apply("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction", targets)
    inputs = torch.randn(9, 32), torch.randn(50, 32)
    return both(lambda x, w: function(x, w)[0], lambda x, w: F.cross_entropy(x @ w.T, targets), *inputs)


@case("liger.kl_div")
def kl_div() -> float:
    other = torch.randn(5, 300).softmax(-1)
    ours = apply("kl_div", "LigerKLDivLossFunction", other, "batchmean", False, 1e-10)
    return both(ours, lambda x: F.kl_div(x, other, reduction="batchmean"), torch.randn(5, 300).log_softmax(-1))


@case("liger.jsd")
def jensen_shannon_divergence() -> float:
    other = torch.randn(5, 300).log_softmax(-1)

    def reference(x: Tensor) -> Tensor:
        middle = torch.log(0.5 * x.exp() + 0.5 * other.exp())
        terms = [F.kl_div(middle, side, reduction="batchmean", log_target=True) for side in (x, other)]
        return 0.5 * (terms[0] + terms[1])

    ours = apply("jsd", "LigerJSDFunction", other, None, 0.5, -100)
    return both(ours, reference, torch.randn(5, 300).log_softmax(-1))


@case("liger.tvd")
def total_variation_distance() -> float:
    other = torch.randn(5, 300).softmax(-1)
    ours = apply("tvd", "LigerTVDLossFunction", other, None, "batchmean")
    return both(ours, lambda x: 0.5 * (x - other).abs().sum() / 5, torch.randn(5, 300).softmax(-1))


@case("liger.fused_add_rms_norm")
def fused_add_rms_norm() -> float:
    x, residual, w = torch.randn(5, 70), torch.randn(5, 70), torch.randn(70)
    function = apply("fused_add_rms_norm", "LigerFusedAddRMSNormFunction", 1e-6, 0.0, "llama", False)
    total = x + residual
    return difference(function(x.clone(), residual.clone(), w), [F.rms_norm(total, (70,), w, 1e-6), total])


@case("liger.poly_norm")
def poly_norm() -> float:
    def scaled(x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def reference(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return w[0] * scaled(x**3) + w[1] * scaled(x**2) + w[2] * scaled(x) + b

    ours = apply("poly_norm", "LigerPolyNormFunction", 1e-6, False)
    return both(ours, reference, torch.randn(5, 70), torch.randn(3), torch.randn(()))


@case("liger.multi_token_attention")
def multi_token_attention() -> float:
    visible = torch.ones(12, 12).tril().bool()

    def reference(scores: Tensor, w: Tensor) -> Tensor:
        weights = scores.masked_fill(~visible, -1e9).softmax(-1)
        return F.conv2d(weights, w, padding=1).masked_fill(~visible, 0.0)

    ours = apply("multi_token_attention", "LigerMultiTokenAttentionFunction", None, 1, 1, 1, 1, False)
    return both(ours, reference, torch.randn(2, 2, 12, 12), torch.randn(2, 2, 3, 3))


@case("liger.grpo_loss")
def selective_log_softmax() -> float:
    function = importlib.import_module("liger_kernel.ops.grpo_loss").fused_selective_log_softmax
    x, chosen = torch.randn(2, 9, 300), torch.randint(0, 300, (2, 8))
    expected = (x[:, :-1] / 0.9).log_softmax(-1).gather(-1, chosen[..., None])[..., 0]
    return difference(function(x, chosen, 0.9, None), expected)


@case("liger.fused_neighborhood_attention", tolerance=TF32)
def neighborhood_attention() -> float:
    i = torch.arange(20)
    near = (i[:, None] - i[None]).abs() <= 3

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) / 4).masked_fill(~near, -1e30).softmax(-1) @ v

    ours = apply("fused_neighborhood_attention", "LigerFusedNeighborhoodAttentionFunction", 7, 1, None)
    return both(ours, reference, *(torch.randn(1, 2, 20, 16) for _ in range(3)))
