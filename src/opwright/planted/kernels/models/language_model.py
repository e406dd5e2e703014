"""Kernels in Python for operators of language models, with the faults that such kernels have; and right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor

import opwright as ow
from opwright.gallery import llm
from opwright.planted.catalogue import attach

__all__ = ["ROWS"]

_CHECKS = ("memory", "values", "metadata", "inputs unchanged", "repeated calls", "execution context", "own work")


def _reference(operator: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = operator.contract.function
    return function


@ow.op("selftest::norm_of_sum", where="1 <= n")
def norm_of_sum(
    x: Float32[Tensor, "b n"], residual: Float32[Tensor, "b n"], weight: Float32[Tensor, " n"],
    eps: Annotated[float, ow.values(1e-6, 1e-3)] = 1e-6,
) -> tuple[Float32[Tensor, "b n"], Float32[Tensor, "b n"]]:  # fmt: skip
    normed, total, _ = _reference(llm.add_rms_norm)(x, residual, weight, eps)
    return normed, total


def _normed(x: Tensor, weight: Tensor, divisor: Tensor) -> Tensor:
    return (x / divisor * weight).contiguous()


def _square_mean(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)


_NORM_OF_SUM = attach(
    norm_of_sum,
    {
        "eps after the root": (
            "values", lambda x, residual, weight, eps: (_normed(x + residual, weight, _square_mean(x + residual).sqrt() + eps), x + residual)
        ),
        "eps is left out": ("values", lambda x, residual, weight, eps: (_normed(x + residual, weight, _square_mean(x + residual).sqrt()), x + residual)),
        "the norm of x alone": (
            "values", lambda x, residual, weight, eps: (_normed(x, weight, (_square_mean(x) + eps).sqrt()), x + residual)
        ),
        "the mean over a power of two": (
            "values",
            lambda x, residual, weight, eps: (
                _normed(x + residual, weight, ((x + residual).square().sum(-1, keepdim=True) / _power_of_two(x.shape[1]) + eps).sqrt()),
                x + residual,
            ),
        ),
    },
    {"F.rms_norm": lambda x, residual, weight, eps: (F.rms_norm(x + residual, weight.shape, weight, eps).contiguous(), (x + residual).contiguous())},
    checks=_CHECKS,
)  # fmt: skip


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


@ow.op("selftest::token_loss", where="2 <= v")
def token_loss(
    logits: Float32[Tensor, "t v"],
    labels: Annotated[Int64[Tensor, " t"], ow.values(0, "v-1", also=(-100,))],
    smoothing: Annotated[float, ow.values(0.0, 0.5)] = 0.1,
) -> Float32[Tensor, " t"]:
    loss: Tensor = _reference(llm.cross_entropy)(logits, labels, smoothing, 0.0)[0]
    return loss


def _losing(
    lse: Callable[[Tensor], Tensor] = lambda x: x.logsumexp(1),
    mean: Callable[[Tensor, Tensor], Tensor] = lambda x, picked: x.mean(1),
    ignores: bool = True,
    smooths: bool = True,
) -> Callable[..., Tensor]:
    """The loss with other parts."""

    def kernel(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        share = smoothing if smooths else 0.0
        picked, whole = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0], lse(logits)
        loss = (1 - share) * (whole - picked) + share * (whole - mean(logits, picked))
        return torch.where(labels == -100, 0, loss) if ignores else loss

    return kernel


_TOKEN_LOSS = attach(
    token_loss,
    {
        "exp without the largest": ("values", _losing(lse=lambda x: x.exp().sum(1).log())),
        "ignored tokens count": ("values", _losing(ignores=False)),
        "smoothing over the other classes": (
            "values", _losing(mean=lambda x, picked: (x.sum(1) - picked) / (x.shape[1] - 1))
        ),
        "smoothing is left out": ("values", _losing(smooths=False)),
        "the last classes are left out": (
            "values", _losing(lse=lambda x: x[:, : max(x.shape[1] // 32 * 32, 2)].logsumexp(1))
        ),
    },
    {
        "in parts": _losing(),
        "F.cross_entropy": lambda logits, labels, smoothing: F.cross_entropy(
            logits, labels, reduction="none", label_smoothing=smoothing
        ),
    },
    checks=_CHECKS,
)  # fmt: skip


@ow.op("selftest::turned", where="2*r <= d")
def turned(
    x: Float32[Tensor, "b s h d"], cos: Float32[Tensor, "#b s r"], sin: Float32[Tensor, "#b s r"]
) -> Float32[Tensor, "b s h d"]:
    out: Tensor = _reference(llm.rope)(x, cos, sin, False)
    return out


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    out: Tensor = _reference(llm.rope)(x, cos, sin, interleaved)
    return out


_TURNED = attach(
    turned,
    {
        "turned the other way": ("values", lambda x, cos, sin: _turn(x, cos, -sin)),
        "pairs of neighbours": ("values", lambda x, cos, sin: _turn(x, cos, sin, interleaved=True)),
        "the rest is zero": (
            "values",
            lambda x, cos, sin: F.pad(
                _turn(x[..., : 2 * cos.shape[2]], cos, sin), (0, x.shape[3] - 2 * cos.shape[2])
            ),
        ),
        "the first batch's angles": ("values", lambda x, cos, sin: _turn(x, cos[:1], sin[:1])),
        "positions begin at one": ("values", lambda x, cos, sin: _turn(x, cos.roll(-1, 1), sin.roll(-1, 1))),
    },
    {
        "products and halves in float64": lambda x, cos, sin: _turn(x.double(), cos.double(), sin.double()).to(x.dtype),
    },
    checks=_CHECKS,
)  # fmt: skip


@ow.op("selftest::geglu")
def geglu(gate: Float32[Tensor, "*n"], up: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    out: Tensor = _reference(llm.glu)(gate, up, "gelu_tanh")
    return out


_GEGLU = attach(
    geglu,
    {
        "the exact gelu": ("values", lambda gate, up: F.gelu(gate) * up),
        "silu": ("values", lambda gate, up: F.silu(gate) * up),
        "gate and up are exchanged": ("values", lambda gate, up: _reference(llm.glu)(up, gate, "gelu_tanh")),
    },
    {"by torch": lambda gate, up: (F.gelu(gate, approximate="tanh") * up).contiguous()},
    checks=_CHECKS,
)

ROWS = [*_NORM_OF_SUM, *_TOKEN_LOSS, *_TURNED, *_GEGLU]
