"""Layers of attorch (https://github.com/BobMcDear/attorch, MIT)."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.corpus.triton.comparison import TF32, both, case, difference, same_module

ACTIVATIONS = (
    "Sigmoid", "LogSigmoid", "Tanh", "ReLU", "GELU", "SiLU", "ReLU6", "Hardsigmoid", "Hardtanh", "Hardswish", "SELU",
    "Mish", "Softplus", "Softsign", "Tanhshrink", "LeakyReLU", "ELU", "CELU", "Hardshrink", "Softshrink",
)  # fmt: skip
# Layers that take the arguments of torch's, with the shape of their input.
LAYERS: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "LayerNorm": ((70,), {}, (9, 70)),
    "RMSNorm": ((70,), {}, (9, 70)),
    "BatchNorm1d": ((5,), {}, (9, 5)),
    "BatchNorm2d": ((5,), {}, (3, 5, 7, 9)),
    "Conv1d": ((6, 8, 3), {"padding": 1}, (2, 6, 33)),
    "Conv2d": ((6, 8, 3), {"stride": 2, "padding": 1}, (2, 6, 11, 9)),
}
LOSSES = {"L1Loss": "mean", "MSELoss": "sum", "SmoothL1Loss": "none", "HuberLoss": "mean"}


def attorch(name: str) -> Any:
    return getattr(importlib.import_module("attorch"), name)


def add_activation(name: str) -> None:
    @case(f"attorch.{name}")
    def activation() -> float:
        return same_module(attorch(name)(), getattr(nn, name)(), torch.randn(7, 37) * 3)


def add_layer(name: str) -> None:
    args, options, shape = LAYERS[name]

    @case(f"attorch.{name}", tolerance=TF32 if "Conv" in name else 1e-4)
    def layer() -> float:
        ours = attorch(name)(*args, **options, device="cpu")
        return same_module(ours, getattr(nn, name)(*args, **options), torch.randn(shape))


def add_loss(name: str, reduction: str) -> None:
    @case(f"attorch.{name}, {reduction}")
    def loss() -> float:
        ours, theirs = attorch(name)(reduction=reduction), getattr(nn, name)(reduction=reduction)
        target = torch.randn(5, 77)
        return both(lambda x: ours(x, target), lambda x: theirs(x, target), torch.randn(5, 77))


for activation_name in ACTIVATIONS:
    add_activation(activation_name)
for layer_name in LAYERS:
    add_layer(layer_name)
for loss_name, how in LOSSES.items():
    add_loss(loss_name, how)


@case("attorch.Dropout")
def dropout() -> float:
    layer = attorch("Dropout")(0.3)
    x = torch.randn(1777).requires_grad_()
    y = layer(x)
    y.backward(torch.ones(1777))
    kept = y != 0
    assert 0.62 < kept.float().mean() < 0.78
    return difference([y, x.grad], [x * kept / 0.7, kept / 0.7])


@case("attorch.BatchNorm2d with ReLU and a residual")
def batch_norm_with_activation() -> float:
    layer = attorch("BatchNorm2d")(5, act_func="relu", device="cpu")

    def reference(x: Tensor, residual: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, layer.weight, layer.bias, True) + residual)

    return both(layer, reference, torch.randn(3, 5, 7, 9), torch.randn(3, 5, 7, 9))


@case("attorch.Softmax")
def softmax() -> float:
    return same_module(attorch("Softmax")(-1), nn.Softmax(-1), torch.randn(5, 130))


@case("attorch.LogSoftmax")
def log_softmax() -> float:
    return same_module(attorch("LogSoftmax")(-1), nn.LogSoftmax(-1), torch.randn(5, 130))


@case("attorch.Softmin")
def softmin() -> float:
    return same_module(attorch("Softmin")(-1), nn.Softmin(-1), torch.randn(5, 130))


@case("attorch.Linear with GELU", tolerance=TF32)
def linear() -> float:
    layer = attorch("Linear")(37, 50, act_func="gelu", device="cpu")
    w, b = layer.weight.detach(), layer.bias.detach()
    return both(layer, lambda x: F.gelu(x @ w + b), torch.randn(9, 37))


@case("attorch.GLU with SiLU")
def gated() -> float:
    layer = attorch("GLU")(-1, act_func="silu")
    return both(layer, lambda x: x[:, :37] * F.silu(x[:, 37:]), torch.randn(5, 74))


@case("attorch.AvgPool2d", tolerance=TF32)  # it is a convolution
def average_pool() -> float:
    ours, theirs = (make(3, stride=2, padding=1) for make in (attorch("AvgPool2d"), nn.AvgPool2d))
    return same_module(ours, theirs, torch.randn(2, 4, 11, 9))


@case("attorch.NLLLoss")
def nll_loss() -> float:
    target, ours = torch.randint(0, 13, (9,)), attorch("NLLLoss")()
    return both(lambda x: ours(x, target), lambda x: F.nll_loss(x, target), torch.randn(9, 13).log_softmax(-1))


@case("attorch.CrossEntropyLoss, weighted")
def cross_entropy() -> float:
    target, weight = torch.randint(0, 13, (9,)), torch.rand(13)
    ours = attorch("CrossEntropyLoss")(weight=weight)
    return both(lambda x: ours(x, target), lambda x: F.cross_entropy(x, target, weight=weight), torch.randn(9, 13))
