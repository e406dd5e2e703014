"""Kernels in Python for a training step and for a server, with the faults that such kernels have; and right ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int8, Int32, Int64
from torch import Tensor

import opwright as ow
from opwright.gallery import llm
from opwright.planted.catalogue import attach

__all__ = ["ROWS"]

_CHECKS = ("memory", "values", "metadata", "inputs unchanged", "repeated calls", "execution context", "own work")


def _reference(operator: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = operator.contract.function
    return function


# -- AdamW -------------------------------------------------------------------------------------------------------


@ow.op("selftest::adam_step")
@torch.no_grad()
def adam_step(
    p: Annotated[Float32[Tensor, " n"], ow.mutated],
    g: Float32[Tensor, " n"],
    m: Annotated[Float32[Tensor, " n"], ow.mutated],
    v: Annotated[Float32[Tensor, " n"], ow.mutated, ow.values(0, 1)],
    step: Annotated[int, ow.values(1, 50)],
    eps: Annotated[float, ow.values(1e-8, 1e-2)] = 1e-8,
    decay: Annotated[float, ow.values(0, 0.5)] = 0.01,
) -> None:
    _reference(llm.adamw_)([p], [g], [m], [v], step, 0.01, 0.9, 0.99, eps, decay)


def _stepping(
    coupled: bool = False,
    late: int = 0,
    eps_inside: bool = False,
    corrects_second: bool = True,
    old_first: bool = False,
) -> Callable[..., None]:
    """A step with other parts."""

    def kernel(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: int, eps: float, decay: float) -> None:
        if coupled:
            g = g + decay * p
        else:
            p.mul_(1 - 0.01 * decay)
        before = m.clone()
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        moment = v / (1 - 0.99 ** (step + late)) if corrects_second else v
        root = (moment + eps).sqrt() if eps_inside else moment.sqrt() + eps
        p.sub_(0.01 / (1 - 0.9 ** (step + late)) * (before if old_first else m) / root)

    return kernel


def _by_torch(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: int, eps: float, decay: float) -> None:
    """The scalars are brought together as in torch's own, so that roots and quotients are others."""
    p.mul_(1 - 0.01 * decay)
    m.lerp_(g, 0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    root = 1 - 0.99**step
    p.addcdiv_(m, (v.sqrt() / root**0.5).add_(eps), value=-0.01 / (1 - 0.9**step))


_ADAM = attach(
    adam_step,
    {
        "bias correction off by one step": ("values", _stepping(late=1)),
        "bias correction of the step before": ("values", _stepping(late=-1)),
        "coupled decay": ("values", _stepping(coupled=True)),
        "eps inside the root": ("values", _stepping(eps_inside=True)),
        "the second moment is not corrected": ("values", _stepping(corrects_second=False)),
        "the first moment before its update": ("values", _stepping(old_first=True)),
    },
    {"in parts": _stepping(), "as torch.optim": _by_torch},
    checks=_CHECKS,
)


# -- a mean over tokens ------------------------------------------------------------------------------------------


@ow.op("selftest::mean_loss", where="2 <= v")
def mean_loss(
    x: Float32[Tensor, "t d"], weight: Float32[Tensor, "v d"],
    labels: Annotated[Int64[Tensor, " t"], ow.values(0, "v-1", also=(-100,))],
) -> Float32[Tensor, ""]:  # fmt: skip
    total: Tensor = _reference(llm.linear_cross_entropy)(x, weight, labels, 0.0, 0.0)[0]
    return total / (labels != -100).sum().clamp(min=1)


def _in_chunks(
    size: int = 16,
    count: Callable[[Tensor], Any] = lambda labels: (labels != -100).sum().clamp(min=1),
    last: bool = True,
) -> Callable[..., Tensor]:
    def kernel(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        total = torch.zeros((), dtype=x.dtype)
        for start in range(0, len(x) if last else len(x) // size * size, size):
            end = start + size
            total += F.cross_entropy(x[start:end] @ weight.t(), labels[start:end], reduction="sum")
        return total / count(labels)

    return kernel


def _mean_of_means(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    means = [
        F.cross_entropy(x[i : i + 16] @ weight.t(), labels[i : i + 16]).nan_to_num(0.0) for i in range(0, len(x), 16)
    ]
    return torch.stack(means).mean() if means else x.new_zeros(())


_MEAN_LOSS = attach(
    mean_loss,
    {
        "ignored rows in the mean": ("values", _in_chunks(count=lambda labels: max(len(labels), 1))),
        "the mean of chunks' means": ("values", _mean_of_means),
        "the last chunk is left out": ("values", _in_chunks(last=False)),
    },
    {
        "in chunks of 16": _in_chunks(),
        "ignored rows are taken out before": lambda x, weight, labels: (
            F.cross_entropy(x[labels != -100] @ weight.t(), labels[labels != -100], reduction="sum")
            / (labels != -100).sum().clamp(min=1)
        ),
    },
    checks=_CHECKS,
)  # fmt: skip


# -- products with scales ----------------------------------------------------------------------------------------


@ow.op("selftest::scaled_product")
@torch.no_grad()
def scaled_product(
    a: Annotated[Int8[Tensor, "m k"], ow.values(-127, 127)],
    b: Annotated[Int8[Tensor, "n k"], ow.values(-127, 127)],
    a_scale: Annotated[Float32[Tensor, " m (k+127)//128"], ow.values(0.01, 1)],
    b_scale: Annotated[Float32[Tensor, " (n+127)//128 (k+127)//128"], ow.values(0.01, 1)],
) -> Float32[Tensor, "m n"]:
    k, n = a.shape[1], len(b)
    left = a.float() * a_scale.repeat_interleave(128, 1)[:, :k]
    return left @ (b.float() * b_scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]).t()


def _tiled(
    step: int = 128, block: Callable[[int, int], int] = lambda start, end: start // 128, twice: bool = False,
    columns: Callable[[Tensor], Tensor] = lambda column: column // 128,
) -> Callable[..., Tensor]:  # fmt: skip
    """Sums of integers in tiles of ``step``, each with the scales of a block."""

    def kernel(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
        total = a_scale.new_zeros(len(a), len(b))
        of_columns = b_scale[columns(torch.arange(len(b))).clamp(max=max(len(b_scale) - 1, 0))]
        for start in range(0, a.shape[1], step):
            end = min(start + step, a.shape[1])
            at = min(block(start, end), a_scale.shape[1] - 1)
            scale = a_scale[:, at, None] * of_columns[:, at]
            product = (a[:, start:end].int() @ b[:, start:end].int().t()).float()
            total += product * scale * (a_scale[:, at, None] if twice else 1)
        return total

    return kernel


_SCALED = attach(
    scaled_product,
    {
        "a scale is applied twice": ("values", _tiled(twice=True)),
        "the next block's scale at a tile's edge": ("values", _tiled(block=lambda start, end: end // 128)),
        "the first block's scale for all": ("values", _tiled(block=lambda start, end: 0)),
        "blocks of columns are off by one": ("values", _tiled(columns=lambda column: (column + 1) // 128)),
        "tiles reach over two blocks": ("values", _tiled(step=96)),
    },
    {"sums of integers": _tiled(), "tiles of half a block": _tiled(step=64)},
    checks=_CHECKS,
)


# -- experts -----------------------------------------------------------------------------------------------------


@ow.op("selftest::of_experts", where="1 <= e")
def of_experts(
    x: Float32[Tensor, "t d"], weights: Float32[Tensor, "e n d"],
    experts: Annotated[Int32[Tensor, " t"], ow.values(0, "e-1")],
) -> Float32[Tensor, "t n"]:  # fmt: skip
    of_all = torch.einsum("td,end->ten", x, weights)
    return of_all[torch.arange(len(x), device=x.device), experts.long()]


def _sorted(
    capacity: float = float("inf"), shift: int = 0, back: bool = True, loses_empty: bool = False
) -> Callable[..., Tensor]:
    """Tokens in the order of their experts, in parts, and back."""

    def kernel(x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        order = experts.argsort(stable=True)
        sizes = torch.bincount(experts, minlength=len(weights)).tolist()
        rows, out, start = x[order], x.new_zeros(len(x), weights.shape[1]), 0
        for expert, size in enumerate([s for s in sizes if s] if loses_empty else sizes):
            begin, end = max(start - shift, 0), min(start + int(min(size, capacity)), len(x))
            out[begin:end] = rows[begin:end] @ weights[expert].t()
            start += size
        return torch.zeros_like(out).index_copy(0, order, out) if back else out

    return kernel


def _in_descending_order(x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
    """Another order gives the same sums."""
    order = experts.flip(0).argsort(descending=True, stable=True)
    order = len(x) - 1 - order
    out = x.new_zeros(len(x), weights.shape[1])
    for expert in experts.unique().flip(0).tolist():
        own = order[experts[order] == expert]
        out[own] = x[own] @ weights[expert].t()
    return out


_EXPERTS = attach(
    of_experts,
    {
        "tokens are dropped at a capacity": ("values", _sorted(capacity=4)),
        "offsets of experts are off by one": ("values", _sorted(shift=1)),
        "rows stay in the experts' order": ("values", _sorted(back=False)),
        "experts without tokens are skipped": ("values", _sorted(loses_empty=True)),
    },
    {"sorted by expert": _sorted(), "the last expert first": _in_descending_order},
    checks=_CHECKS,
)


# -- sampling ----------------------------------------------------------------------------------------------------


@ow.op("selftest::likely_token", where="1 <= v")
def likely_token(
    logits: Annotated[Float32[Tensor, "b v"], ow.values(finite=True)],
    seeds: Annotated[Int64[Tensor, " b"], ow.values(0, 2**40)],
    top_p: Annotated[Float32[Tensor, " b"], ow.values(0.1, 0.9)],
) -> Int64[Tensor, " b"]:
    return _sample(logits, seeds, top_p, _kept(logits, top_p))


def _kept(logits: Tensor, top_p: Tensor, crossing: bool = True) -> Tensor:
    """The tokens above which less than top_p is; or those with less than that up to themselves."""
    shares, order = logits.softmax(1).sort(1, descending=True)
    until = shares.cumsum(1)
    inside = (until - shares if crossing else until) < top_p[:, None]
    inside[:, :1] = True
    return torch.zeros_like(inside).scatter(1, order, inside)


def _sample(logits: Tensor, seeds: Tensor, top_p: Tensor, kept: Tensor) -> Tensor:
    b, v = logits.shape
    limited = logits.masked_fill(~kept, -torch.inf)
    ones, most = logits.new_ones(b), torch.full((b,), v, dtype=torch.int32)
    tokens: Tensor = _reference(llm.sample)(limited, seeds, ones, most, 2 * ones, 0 * ones)
    return tokens


_SAMPLING = attach(
    likely_token,
    {
        "the token that crosses p is dropped": (
            "values", lambda logits, seeds, top_p: _sample(logits, seeds, top_p, _kept(logits, top_p, crossing=False))
        ),
        "p of the largest share": (
            "values",
            lambda logits, seeds, top_p: _sample(
                logits, seeds, top_p, logits.softmax(1) >= top_p[:, None] * logits.softmax(1).amax(1, keepdim=True)
            ),
        ),
        "all tokens": ("values", lambda logits, seeds, top_p: _sample(logits, seeds, top_p, logits == logits)),
        "one seed for all rows": (
            "values", lambda logits, seeds, top_p: _sample(logits, seeds[:1].expand_as(seeds), top_p, _kept(logits, top_p))
        ),
    },
    {
        "by the whole reference": lambda logits, seeds, top_p: _reference(llm.sample)(
            logits, seeds, logits.new_ones(len(logits)), torch.full((len(logits),), logits.shape[1], dtype=torch.int32), top_p,
            logits.new_zeros(len(logits)),
        ),
    },
    checks=_CHECKS,
)  # fmt: skip

ROWS = [*_ADAM, *_MEAN_LOSS, *_SCALED, *_EXPERTS, *_SAMPLING]
