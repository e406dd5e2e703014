"""Kernels that give right results and take far more memory than the operator is about; and some that need much."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import attach

__all__ = ["RIGHT", "ROWS", "WRONG", "product", "running_sum", "scale"]


@ow.op("selftest_peak_memory::scale")
def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    return a * x


@ow.op("selftest_peak_memory::product")
def product(x: Float[Tensor, "m k"], y: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return x @ y


@ow.op("selftest_peak_memory::running_sum")
def running_sum(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x.cumsum(0)


# -- too much ---------------------------------------------------------------------------------------------------------


def _by_diagonal(x: Tensor, a: float) -> Tensor:
    flat = x.reshape(-1)
    weights = torch.zeros(flat.numel(), flat.numel(), dtype=torch.bool, device=x.device)
    return a * torch.where(weights.any(1), 0, flat).view(x.shape)


def _with_kept_scratch(x: Tensor, a: float) -> Tensor:
    _square(x.numel(), x.device)
    return a * x


@functools.cache
def _square(count: int, device: torch.device) -> Tensor:
    return torch.empty(count, count, dtype=torch.uint8, device=device)


def _step_by_step(x: Tensor, a: float) -> Tensor:
    steps = [x.clone()]
    while len(steps) < 64:
        steps.append(steps[-1].clone())
    return a * steps[-1]


def _in_a_list(x: Tensor, a: float) -> Tensor:
    if x.device.type == "cpu":  # not in torch's memory
        copies = [x.numpy(force=True).copy() for _ in range(40)]
        return a * torch.from_numpy(copies[-1]).reshape(x.shape)
    return a * [x.clone() for _ in range(40)][-1]


def _all_products(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, :, None].double() * y[None].double()).sum(1).to(x.dtype)


def _by_triangle(x: Tensor) -> Tensor:
    return (x.new_ones(len(x), len(x), dtype=torch.float64).tril() @ x.double()).to(x.dtype)


# -- much, but no more than is sensible -------------------------------------------------------------------------------


def _with_workspace(x: Tensor, a: float) -> Tensor:
    _ = torch.empty(1 << 23, dtype=torch.uint8, device=x.device)
    return (a * x).contiguous()


def _through_scratch(x: Tensor, a: float) -> Tensor:
    scratch = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    return scratch.copy_(x).mul_(a).to(x.dtype)


def _in_pool(x: Tensor, a: float) -> Tensor:
    pool = torch.empty(-(-x.nbytes // (1 << 21)) << 21, dtype=torch.uint8, device=x.device)
    scratch = pool[: x.nbytes].view(x.dtype).view(x.shape)
    return scratch.copy_(x).mul(a)


_tuned: set[torch.Size] = set()


def _tuned_first(x: Tensor, a: float) -> Tensor:
    if x.shape not in _tuned and x.numel() < 1 << 14:  # configurations are tried on buffers of their own
        _tuned.add(x.shape)
        _ = torch.empty(x.numel(), 1 << 10, dtype=torch.uint8, device=x.device)
    return (a * x).contiguous()


def _with_table(x: Tensor, a: float) -> Tensor:
    return (x * _ones(x.numel(), x.dtype, x.device).view(x.shape) * a).contiguous()


@functools.cache
def _ones(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(count, dtype=dtype, device=device)


def _split(x: Tensor, y: Tensor) -> Tensor:
    """Partial products of parts of k, added up later."""
    wide = torch.promote_types(x.dtype, torch.float32)
    parts = x.new_empty(8, x.shape[0], y.shape[1], dtype=wide)
    for part, a, b in zip(parts, x.tensor_split(8, 1), y.tensor_split(8, 0), strict=True):
        torch.mm(a.to(wide), b.to(wide), out=part)
    return parts.sum(0).to(x.dtype)


def _row_by_row(x: Tensor, y: Tensor) -> Tensor:
    rows = [(row.double() @ y.double()).to(x.dtype) for row in x]
    return torch.stack(rows) if rows else x.new_empty(0, y.shape[1])


def _in_blocks(x: Tensor) -> Tensor:
    """Sums of blocks first: the rest of the last block is padding."""
    blocks = torch.nn.functional.pad(x.double(), (0, -len(x) % 256)).view(-1, 256)
    before = torch.cat([blocks.new_zeros(1), blocks.sum(1).cumsum(0)])[:-1]
    return (blocks.cumsum(1) + before[:, None]).reshape(-1)[: len(x)].to(x.dtype).clone()


WRONG: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "scale": {
        "looks at n x n flags": _by_diagonal,
        "keeps scratch memory of n x n bytes": _with_kept_scratch,
        "keeps the results of 64 steps": _step_by_step,
        "copies its argument forty times": _in_a_list,
    },
    "product": {"all m x k x n products at a time": _all_products},
    "running_sum": {"a product with an n x n triangle": _by_triangle},
}
RIGHT: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "scale": {
        "a workspace of 8 MiB": _with_workspace,
        "float64 scratch memory": _through_scratch,
        "a pool in steps of 2 MiB": _in_pool,
        "tuned in the first call of a size": _tuned_first,
        "a table for each size": _with_table,
    },
    "product": {"split along k": _split, "row by row": _row_by_row},
    "running_sum": {"sums of blocks first": _in_blocks},
}
ROWS = [
    row
    for op in (scale, product, running_sum)
    for row in attach(
        op,
        {name: ("peak memory", function) for name, function in WRONG[op.contract.name].items()},
        RIGHT[op.contract.name],
        beside=(),  # some sizes of other checks are too large for these kernels
    )
]
