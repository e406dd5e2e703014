"""Kernels in Python of operators with lists, optional, written and several outputs."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

import opwright as ow
from opwright.planted.catalogue import attach

__all__ = ["ROWS", "add_", "biased", "bounds", "shrink", "total_of"]

_CHECKS = ("memory", "values", "metadata", "inputs unchanged", "repeated calls")


@ow.op("selftest::total_of")
def total_of(xs: list[Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
    return torch.stack(xs).sum(0)


_LISTS = attach(
    total_of,
    {
        "the last tensor is left out": ("values", lambda xs: torch.stack(list(xs[:-1] or xs)).double().sum(0).to(xs[0].dtype)),
        "three tensors are expected": ("values", lambda xs: (xs[0].double() + xs[1].double() + xs[2].double()).to(xs[0].dtype)),
        "only 32 tensors": ("values", lambda xs: torch.stack(list(xs[:32])).double().sum(0).to(xs[0].dtype)),
        "the first tensor is written": ("inputs unchanged", lambda xs: ([xs[0].add_(x) for x in xs[1:]], xs[0].clone())[1]),
    },
    {
        "one after another": lambda xs: sum((x.double() for x in xs[1:]), xs[0].double()).to(xs[0].dtype),
        "as one tensor": lambda xs: torch.cat([x.double()[None] for x in xs]).sum(0).to(xs[0].dtype),
    },
    checks=_CHECKS,
)  # fmt: skip


@ow.op("selftest::biased")
def biased(x: Float[Tensor, "b n"], bias: Float[Tensor, " n"] | None = None) -> Float[Tensor, "b n"]:
    return x.clone(memory_format=torch.contiguous_format) if bias is None else (x + bias).contiguous()


_OPTIONAL = attach(
    biased,
    {
        "the bias is ignored": ("values", lambda x, bias: x.clone(memory_format=torch.contiguous_format)),
        "a bias is expected": ("values", lambda x, bias: (x + bias).contiguous()),
        "the bias of columns is taken for rows": ("values", lambda x, bias: x.contiguous() + (0 if bias is None else bias[:, None] if x.shape[0] == x.shape[1] else bias)),
        "the bias is added twice": ("values", lambda x, bias: (x + 2 * (0 if bias is None else bias)).contiguous()),
        "it returns its argument without a bias": ("metadata", lambda x, bias: x if bias is None else (x + bias).contiguous()),
    },
    {
        "zero for an absent bias": lambda x, bias: (x + (0 if bias is None else bias)).contiguous(),
        "in place on a copy": lambda x, bias: x.clone(memory_format=torch.contiguous_format).add_(0 if bias is None else bias),
    },
    checks=_CHECKS,
)  # fmt: skip


@ow.op("selftest::add_")
def add_(x: Annotated[Float[Tensor, "*n"], ow.mutated], y: Float[Tensor, "*n"]) -> None:
    x += y


_WRITTEN = attach(
    add_,
    {
        "nothing is written": ("values", lambda x, y: None),
        "a copy is written": ("values", lambda x, y: (x.clone().add_(y), None)[1]),
        "the other argument is written": ("inputs unchanged", lambda x, y: (x.add_(y), y.zero_(), None)[2]),
        "the last element is not written": ("values", lambda x, y: (x.add_(y), x.view(-1)[-1:].sub_(y.reshape(-1)[-1:]) if x.is_contiguous() else 0, None)[2]),
        "it is added twice": ("values", lambda x, y: (x.add_(y).add_(y), None)[1]),
    },
    {
        "through a new tensor": lambda x, y: (x.copy_(x + y), None)[1],
        "y first": lambda x, y: (x.copy_(y + x), None)[1],
    },
    checks=_CHECKS,
)  # fmt: skip


@ow.op("selftest::bounds")
def bounds(x: Float[Tensor, "b n"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    if not x.shape[1]:
        return x.new_zeros(len(x)), x.new_zeros(len(x))
    return x.amin(1), x.amax(1)


def _bounds(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x.new_zeros(len(x)), x.new_zeros(len(x))) if not x.shape[1] else (x.amin(1), x.amax(1))


_SEVERAL = attach(
    bounds,
    {
        "the outputs are exchanged": ("values", lambda x: _bounds(x)[::-1]),
        "one output is missing": ("values", lambda x: _bounds(x)[:1]),
        "the second is the first": ("metadata", lambda x: (lambda low: (low, low))(_bounds(x)[0])),
        "they share memory": ("metadata", lambda x: tuple(torch.stack(_bounds(x)))),
        "one is of another dtype": ("metadata", lambda x: (_bounds(x)[0], _bounds(x)[1].double())),
    },
    {
        "by sorting": lambda x: (x.sort(1).values[:, 0].contiguous(), x.sort(1).values[:, -1].contiguous()) if x.shape[1] else _bounds(x),
        "a list of outputs": lambda x: list(_bounds(x)),
    },
    checks=_CHECKS,
)  # fmt: skip


@ow.op("selftest::shrink")
def shrink(x: Float[Tensor, " n"], least: Annotated[float, ow.values(0, 2)]) -> Float[Tensor, " n"]:
    return functional.hardshrink(x, least)


_THRESHOLD = attach(
    shrink,
    {
        "what equals the threshold stays": ("values", lambda x, least: torch.where(x.abs() < least, 0, x)),
        "negative ones are left out": ("values", lambda x, least: torch.where(x > least, x, 0)),
    },
    {
        "by two comparisons": lambda x, least: torch.where((x > least) | (x < -least), x, 0),
        "as torch has it": lambda x, least: functional.hardshrink(x, least).contiguous(),
    },
    checks=_CHECKS,
)

ROWS = [*_THRESHOLD, *_LISTS, *_OPTIONAL, *_WRITTEN, *_SEVERAL]
