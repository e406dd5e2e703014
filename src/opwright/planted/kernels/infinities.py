"""Kernels in Python that meet infinities: scores of which some are -inf, as what a mask leaves out, and products that
leave the range of their dtype on the way."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import attach

__all__ = ["ROWS"]

_INF = float("inf")
# Without special values, among which is inf: a warning for a kernel that is meant for -inf alone is right.
_OF_RIGHT = ("memory", "values", "metadata", "inputs unchanged", "repeated calls", "execution context", "own work")


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float64 else x.float()


@ow.op("selftest::merged")
def merged(
    a: Float[Tensor, "m n"], top_a: Float[Tensor, " m"], b: Float[Tensor, "m n"], top_b: Float[Tensor, " m"]
) -> tuple[Float[Tensor, "m n"], Float[Tensor, " m"]]:
    """Two parts of an attention by the logarithms of their sums: -inf of a part without keys."""
    return _merging(lambda top: top.masked_fill(top == -_INF, 0))(a, top_a, b, top_b)


def _merging(guard: Callable[[Tensor], Tensor], least: float = 1.0) -> Callable[..., tuple[Tensor, Tensor]]:
    """The computation with such a largest logarithm, and what it divides by where a sum is zero."""

    def merge(a: Tensor, top_a: Tensor, b: Tensor, top_b: Tensor) -> tuple[Tensor, Tensor]:
        top = guard(torch.maximum(_wide(top_a), _wide(top_b)))
        of_a, of_b = (_wide(top_a) - top).exp(), (_wide(top_b) - top).exp()
        total = of_a + of_b
        out = (_wide(a) * of_a[:, None] + _wide(b) * of_b[:, None]) / total.masked_fill(total == 0, least)[:, None]
        return out.to(a.dtype).contiguous(), (total.log() + top).to(a.dtype)

    return merge


_MERGED = attach(
    merged,
    {
        "NaN where both parts are empty": ("values", _merging(lambda top: top)),
        "a lowest number for -inf": ("values", _merging(lambda top: top.clamp(min=-1e4))),
        "divides by nothing": ("values", _merging(lambda top: top.masked_fill(top == -_INF, 0), least=0.0)),
    },
    {
        "by logaddexp": lambda a, top_a, b, top_b: _by_logaddexp(a, top_a, b, top_b),
        "-inf becomes a finite maximum": _merging(lambda top: top.nan_to_num(neginf=-1.0)),
    },
    checks=_OF_RIGHT,
)


def _by_logaddexp(a: Tensor, top_a: Tensor, b: Tensor, top_b: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.logaddexp(top_a.double(), top_b.double())
    of_a, of_b = ((top.double() - wide).exp().nan_to_num(0) for top in (top_a, top_b))
    return (a * of_a[:, None] + b * of_b[:, None]).to(a.dtype).contiguous(), wide.to(a.dtype)


@ow.op("selftest::log_of_sum")
def log_of_sum(x: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    return _wide(x).logsumexp(1).to(x.dtype)


def _online(x: Tensor, guard: Callable[[Tensor], Tensor]) -> Tensor:
    """In tiles, with the largest so far."""
    wide = _wide(x)
    top, total = wide.new_full((len(x),), -_INF), wide.new_zeros(len(x))
    for tile in wide.split(32, 1) if x.shape[1] else ():
        largest = torch.maximum(top, tile.amax(1))
        shift = guard(largest)
        total = total * (top - shift).exp() + (tile - shift[:, None]).exp().sum(1)
        top = largest
    return (total.log() + guard(top)).to(x.dtype)


_LOG_OF_SUM = attach(
    log_of_sum,
    {
        "NaN after a tile of -inf": ("values", lambda x: _online(x, lambda top: top)),
        "a lowest number for rows of -inf": (
            "values", lambda x: x.logsumexp(1).clamp(min=torch.finfo(torch.float16).min)
        ),
    },
    {
        "in tiles": lambda x: _online(x, lambda top: top.masked_fill(top == -_INF, 0)),
        "in float64": lambda x: x.double().logsumexp(1).to(x.dtype),
    },
    checks=_OF_RIGHT,
)  # fmt: skip


@ow.op("selftest::shares")
def shares(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    """Does not say what a row of -inf gives: NaN, as in torch."""
    return _wide(x).softmax(1).to(x.dtype)


def _without_infinities(x: Tensor) -> Tensor:
    return _wide(x).clamp(min=-1e30)


_SHARES = attach(
    shares,
    {
        "NaN after a tile of -inf": (
            "values",
            lambda x: (x.double() - _online(x.double(), lambda top: top)[:, None]).exp().to(x.dtype).contiguous(),
        )
    },
    {
        "equal shares of a row of -inf": lambda x: _without_infinities(x).softmax(1).to(x.dtype).contiguous(),
        "zeros for a row of -inf": lambda x: torch.where(
            (x == -_INF).all(1, keepdim=True), 0, x.double().softmax(1)
        ).to(x.dtype).contiguous(),
    },
    checks=_OF_RIGHT,
)  # fmt: skip


@ow.op("selftest::running_product")
def running_product(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
    return x.cumprod(1)


def _in_blocks(x: Tensor, size: int) -> Tensor:
    """Of each block, then times what is before it: a block alone may overflow."""
    wide = _wide(x)
    parts, before = [], torch.ones_like(wide[:, :1])
    for block in wide.split(size, 1) if x.shape[1] else ():
        parts.append(before * block.cumprod(1))
        before = parts[-1][:, -1:]
    return (torch.cat(parts, 1) if parts else wide.clone()).to(x.dtype)


def _infinite_from(x: Tensor, limit: float) -> Tensor:
    found = x.cumprod(1)
    return torch.where(found.abs() > limit, found * _INF, found)


_RUNNING_PRODUCT = attach(
    running_product,
    {
        "infinite past 10000": ("values", lambda x: _infinite_from(x, 1e4)),
        "zero below a thousandth": ("values", lambda x: (y := x.cumprod(1)).where(y.abs() > 1e-3, 0)),
        "starts again after 32": (
            "values", lambda x: torch.cat([b.cumprod(1) for b in x.split(32, 1)], 1) if x.shape[1] else x.clone()
        ),
    },
    {"in blocks of 32": lambda x: _in_blocks(x, 32), "in blocks of 7": lambda x: _in_blocks(x, 7)},
    checks=_OF_RIGHT,
)  # fmt: skip

ROWS = [*_MERGED, *_LOG_OF_SUM, *_SHARES, *_RUNNING_PRODUCT]
