"""Kernels in Python for attention, also to a cache in pages, with the faults that such kernels have; and right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int32
from torch import Tensor

import opwright as ow
from opwright.gallery import llm
from opwright.gallery.llm import paged
from opwright.planted.catalogue import attach

__all__ = ["ROWS"]

_CHECKS = ("memory", "values", "metadata", "inputs unchanged", "repeated calls", "execution context", "own work")
_INF = float("inf")
_FINITE = ow.values(finite=True)
_TILE = 16


@ow.op("selftest::heads_attended", where=["1 <= hkv", "1 <= hq", "hq % hkv == 0", "1 <= d"])
def heads_attended(
    q: Annotated[Float32[Tensor, "b hq s d"], _FINITE],
    k: Annotated[Float32[Tensor, "b hkv t d"], _FINITE],
    v: Annotated[Float32[Tensor, "b hkv t d"], _FINITE],
    causal: bool = False,
    window: Annotated[int, ow.values(one_of=(0, 2, 7, 40))] = 0,
    softcap: Annotated[float, ow.values(one_of=(0.0, 20.0))] = 0.0,
    scale: Annotated[float, ow.values(0.05, 1.0)] = 0.25,
) -> tuple[Float32[Tensor, "b hq s d"], Float32[Tensor, "b hq s"]]:
    tokens_first = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = llm.attention.contract.function(*tokens_first, causal, window, softcap, scale)
    return out.transpose(1, 2), lse


@heads_attended.samples
def _sure_of_some_keys() -> Iterator[tuple[Any, ...]]:
    q, k, v = (torch.randn(1, heads, 20, 8) for heads in (4, 2, 2))
    yield 20 * q, 20 * k, v, True, 0, 0.0, 0.25


def _band(q: Tensor, k: Tensor, causal: bool, window: int, ahead: Tensor | int = 0) -> Tensor:
    """The keys that are seen; with a causal mask, as many later ones as ``ahead`` says."""
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    distance = rows + (k.shape[2] - q.shape[2]) - torch.arange(k.shape[2], device=q.device)
    seen = distance >= -ahead if causal else torch.ones_like(distance, dtype=torch.bool)
    return seen & (distance.abs() < window) if window else seen


def _in_groups(x: Tensor, q: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _capped(scores: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(scores / softcap) if softcap > 0 else scores


def _lse(scores: Tensor) -> Tensor:
    """As a kernel has it: the largest, and the logarithm of the others' sum."""
    if not scores.shape[-1]:
        return scores.new_full(scores.shape[:-1], -_INF)
    top = scores.amax(-1)
    shift = top.masked_fill(top == -_INF, 0)
    return torch.where(top == -_INF, -_INF, shift + (scores - shift[..., None]).exp().sum(-1).log())


def _attending(
    band: Callable[..., Tensor] = _band,
    groups: Callable[[Tensor, Tensor], Tensor] = _in_groups,
    lse: Callable[[Tensor], Tensor] = _lse,
    times: int = 1,
    hidden: float = -_INF,
    caps_last: bool = False,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Attention with other parts."""

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int, softcap: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        seen = band(q, k, causal, window)
        scores = q @ groups(k, q).mT * scale**times
        scores = scores if caps_last else _capped(scores, softcap)
        scores = scores.masked_fill(~seen, hidden)
        scores = _capped(scores, softcap) if caps_last else scores
        total = lse(scores)
        total = torch.where(seen.any(-1), total, -_INF)
        weights = (scores - total.masked_fill(total == -_INF, 0)[..., None]).exp()
        weights = weights if caps_last else weights.masked_fill(~seen, 0)
        return (weights @ groups(v, q)).contiguous(), total.contiguous()

    return kernel


def _past_the_diagonal(q: Tensor, k: Tensor, causal: bool, window: int) -> Tensor:
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    return _band(q, k, causal, window, (rows % _TILE == _TILE - 1).int())


def _from_the_start(q: Tensor, k: Tensor, causal: bool, window: int) -> Tensor:
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    distance = rows - torch.arange(k.shape[2], device=q.device)
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return seen & (distance.abs() < window) if window else seen


def _in_tiles(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int, softcap: float, scale: float
) -> tuple[Tensor, Tensor]:
    seen, keys, values = _band(q, k, causal, window), _in_groups(k, q), _in_groups(v, q)
    top, total = q.new_full(q.shape[:3], -_INF), q.new_zeros(q.shape[:3])
    result = torch.zeros_like(q)
    for start in range(0, k.shape[2], _TILE):
        scores = _capped(q @ keys[:, :, start : start + _TILE].mT * scale, softcap)
        scores = scores.masked_fill(~seen[:, start : start + _TILE], -_INF)
        largest = torch.maximum(top, scores.amax(-1))
        shift = largest.masked_fill(largest == -_INF, 0)
        weights, kept = (scores - shift[..., None]).exp(), (top - shift).exp()
        result = result * kept[..., None] + weights @ values[:, :, start : start + _TILE]
        total, top = total * kept + weights.sum(-1), largest
    return (result / total.masked_fill(total == 0, 1)[..., None]).contiguous(), top + total.log()


def _by_heads(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int, softcap: float, scale: float
) -> tuple[Tensor, Tensor]:
    """The queries of a group as rows of one product, so that no key is copied."""
    group = q.shape[1] // k.shape[1]
    rows = q.unflatten(1, (k.shape[1], group)).flatten(2, 3)
    scores = _capped(rows @ k.mT * scale, softcap).unflatten(2, (group, q.shape[2]))
    scores = scores.masked_fill(~_band(q, k, causal, window), -_INF)
    total = _lse(scores)
    weights = (scores - total.masked_fill(total == -_INF, 0)[..., None]).exp()
    out = (weights.flatten(2, 3) @ v).unflatten(2, (group, q.shape[2]))
    return out.flatten(1, 2).contiguous(), total.flatten(1, 2).contiguous()


_ATTENDED = attach(
    heads_attended,
    {
        "the sum without the largest": ("values", _attending(lse=lambda scores: scores.exp().sum(-1).log())),
        "the next key at the end of a tile": ("values", _attending(band=_past_the_diagonal)),
        "head modulo group": (
            "values", _attending(groups=lambda x, q: x.repeat(1, q.shape[1] // x.shape[1], 1, 1))
        ),
        "a window of one more": (
            "values", _attending(band=lambda q, k, causal, window: _band(q, k, causal, window + 1 if window else 0))
        ),
        "the soft cap after the mask": ("values", _attending(caps_last=True)),
        "the scale twice": ("values", _attending(times=2)),
        "the first query at the first key": (
            "values", _attending(band=_from_the_start)
        ),
    },
    {
        "in tiles, with the largest so far": _in_tiles,
        "a group's heads as rows": _by_heads,
        "a large number for -inf": _attending(hidden=-1e30),
        "by torch's logsumexp": _attending(lse=lambda scores: scores.logsumexp(-1)),
    },
    checks=_CHECKS,
)  # fmt: skip


# -- a cache in pages ----------------------------------------------------------------------------------------------


@ow.op("selftest::read_pages", where=["1 <= hkv", "1 <= hq", "hq % hkv == 0", "1 <= d", "1 <= page"])
def read_pages(
    q: Annotated[Float32[Tensor, "b hq d"], _FINITE, ow.no_gradient],
    k_cache: Annotated[Float32[Tensor, "pages page hkv d"], _FINITE, ow.no_gradient],
    v_cache: Annotated[Float32[Tensor, "pages page hkv d"], _FINITE, ow.no_gradient],
    table: Annotated[Int32[Tensor, "b m"], ow.inputs.drawn_by(paged.drawn_table)],
    lengths: Annotated[Int32[Tensor, " b"], ow.values(0, "m*page")],
) -> Float32[Tensor, "b hq d"]:
    out: Tensor = llm.paged_attention.contract.function(q, k_cache, v_cache, table, lengths, 0, 0.0, None)
    return out


_PART = 8


def _reading(
    ends: Callable[[Tensor, int], Tensor] = lambda lengths, page: lengths,
    combine: Callable[[Tensor, Tensor], Tensor] | None = None,
    table_of: Callable[[Tensor], Tensor] = lambda table: table.clamp(min=0),
) -> Callable[..., Tensor]:
    """In parts of a few tokens, which are combined by the logarithms of their sums."""

    def kernel(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        tokens = table.shape[1] * k_cache.shape[1]
        seen = torch.arange(tokens, device=q.device) < ends(lengths[:, None], k_cache.shape[1])
        numbers = table_of(table).long()
        keys, values = (
            torch.where(seen[..., None, None], cache[numbers].flatten(1, 2), 0).transpose(1, 2)
            for cache in (k_cache, v_cache)
        )
        scores = q.unflatten(1, (k_cache.shape[2], -1)) @ keys.mT * q.shape[-1] ** -0.5
        scores = F.pad(scores.masked_fill(~seen[:, None, None], -_INF), (0, -tokens % _PART), value=-_INF)
        values = F.pad(values, (0, 0, 0, -tokens % _PART))
        parts = scores.unflatten(-1, (-1, _PART))
        sums = _lse(parts)
        weights = (parts - sums.masked_fill(sums == -_INF, 0)[..., None]).exp()
        results = torch.einsum("bhgpn,bhpnd->bhgpd", weights, values.unflatten(2, (-1, _PART)))
        return (combine or _combined)(results, sums).flatten(1, 2).contiguous()

    return kernel


def _combined(results: Tensor, sums: Tensor) -> Tensor:
    total = _lse(sums)
    shares = (sums - total.masked_fill(total == -_INF, 0)[..., None]).exp()
    return (results * shares[..., None]).sum(-2)


def _one_after_another(results: Tensor, sums: Tensor) -> Tensor:
    """The last part first, by logaddexp."""
    out, total = results.new_zeros(results.shape[:3] + results.shape[4:]), sums.new_full(sums.shape[:3], -_INF)
    for i in reversed(range(sums.shape[-1])):
        new = torch.logaddexp(total, sums[..., i])
        shift = new.masked_fill(new == -_INF, 0)
        out = out * (total - shift).exp()[..., None] + results[..., i, :] * (sums[..., i] - shift).exp()[..., None]
        total = new
    return out


def _without_the_last(results: Tensor, sums: Tensor) -> Tensor:
    """Of several parts."""
    kept = max(sums.shape[-1] - 1, 1) if sums.shape[-1] else 0
    return _combined(results[..., :kept, :], sums[..., :kept])


def _all_alike(results: Tensor, sums: Tensor) -> Tensor:
    filled = (sums != -_INF).sum(-1).clamp(min=1)
    return results.sum(-2) / filled[..., None]


def _whole_pages(lengths: Tensor, page: int) -> Tensor:
    return (lengths + page - 1) // page * page


_READ_PAGES = attach(
    read_pages,
    {
        "all of the last page": ("values", _reading(ends=_whole_pages)),
        "the combination leaves out the last part": ("values", _reading(combine=_without_the_last)),
        "each part counts alike": ("values", _reading(combine=_all_alike)),
        "the page of another sequence": ("values", _reading(table_of=lambda table: table.clamp(min=0).roll(1, 0))),
    },
    {
        "in parts": _reading(),
        "parts one after another, the last one first": _reading(combine=_one_after_another),
        "the last page in place of none": _reading(table_of=lambda table: table),
    },
    checks=_CHECKS,
)

ROWS = [*_ATTENDED, *_READ_PAGES]
