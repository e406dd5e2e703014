"""A cache of keys and values in pages: written in place, and read by attention of one new token each, in Triton."""

from typing import Annotated

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

import opwright as ow
from opwright.gallery.llm.attention import FINITE, NEAR, SIZES, Scale, SoftCap, Window, has_positive_scale, weights_of
from opwright.gallery.llm.floats import Floats

__all__ = ["paged_attention", "reshape_and_cache_"]


def drawn_slots(shape, generator, pages, page):
    """No slot twice. -1 is a token that is not kept."""
    found = torch.randperm(pages * page, generator=generator)[: shape[0]]
    found = torch.nn.functional.pad(found, (0, shape[0] - len(found)), value=-1)
    return found.masked_fill(torch.rand(shape, generator=generator) < 0.2, -1)


@ow.op("llm::reshape_and_cache_", where="1 <= page")
@torch.no_grad()
def reshape_and_cache_(
    k: Floats[Tensor, "t h d"],
    v: Floats[Tensor, "t h d"],
    k_cache: Annotated[Floats[Tensor, "pages page h d"], ow.mutated],
    v_cache: Annotated[Floats[Tensor, "pages page h d"], ow.mutated],
    slots: Annotated[Int64[Tensor, " t"], ow.inputs.drawn_by(drawn_slots)],
) -> None:
    """Write the keys and values of new tokens to place ``slot % page`` of page ``slot // page``, or nowhere for -1."""
    kept = slots >= 0
    at = slots[kept] // k_cache.shape[1], slots[kept] % k_cache.shape[1]
    k_cache[at] = k[kept]
    v_cache[at] = v[kept]


def drawn_table(shape, generator, pages, page, lengths):
    """Past the end of a sequence there is no page."""
    begins = torch.arange(shape[1]) * page
    return torch.randint(pages, shape, generator=generator).where(begins < lengths[:, None], -1)


@ow.op("llm::paged_attention", where=["1 <= page", *SIZES])
def paged_attention(
    q: Annotated[Floats[Tensor, "b hq d"], NEAR, ow.no_gradient],
    k_cache: Annotated[Floats[Tensor, "pages page hkv d"], NEAR, ow.no_gradient],
    v_cache: Annotated[Floats[Tensor, "pages page hkv d"], FINITE, ow.no_gradient],
    table: Annotated[Int32[Tensor, "b m"], ow.inputs.drawn_by(drawn_table)],
    lengths: Annotated[Int32[Tensor, " b"], ow.values(0, "m*page")],
    window: Window = 0,
    softcap: SoftCap = 0.0,
    scale: Scale | None = None,
) -> Floats[Tensor, "b hq d"]:
    """Attention of the last token of each sequence to all of its tokens, or to the last ``window`` ones.

    ``table`` has the pages of each sequence. Neither pages past its length nor what they contain matter.
    """
    (pages, page, hkv, _), b = k_cache.shape, len(q)
    at = torch.arange(table.shape[1] * page, device=q.device)
    seen = at < lengths[:, None]
    seen = seen & (at >= lengths[:, None] - window) if window else seen
    slots = table.long().clamp(0, max(pages - 1, 0)).repeat_interleave(page, 1) * page + at % page
    # Products with the whole cache take less memory than a copy of each sequence's pages.
    heads = q.float().unflatten(1, (hkv, -1))
    products = torch.einsum("bngd,snd->bngs", heads, k_cache.flatten(0, 1).float())
    index = slots[:, None, None].expand(b, *products.shape[1:3], -1)
    scores = products.gather(-1, index) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    weights = torch.zeros_like(products).scatter_add(-1, index, weights_of(scores, torch.logsumexp(scores, -1)))
    used = q.new_zeros(pages * page).index_add(0, slots.flatten(), seen.flatten().to(q.dtype)) > 0
    values = torch.where(used[:, None, None], v_cache.flatten(0, 1), 0).float()
    return torch.einsum("bngs,snd->bngd", weights, values).flatten(1, 2).to(q.dtype)


reshape_and_cache_.triton("kernels/paged_triton.py", entry="reshape_and_cache_")
paged_attention.triton("kernels/paged_triton.py", entry="paged_attention", when=has_positive_scale)
reshape_and_cache_.sizes(t=(32, 4096), h=(8,), d=(128,), pages=(4096,), page=(16,))
paged_attention.sizes(b=(1, 32), hq=(32,), hkv=(8,), d=(128,), pages=(8192,), page=(16,), m=(256,))


@paged_attention.samples
def reused_pages():
    """Pages in any order, in which other sequences have left what must not matter."""
    for page, lengths in ((16, (37, 1, 0, 64)), (5, (12, 20, 3, 1))):
        q, caches = torch.randn(4, 8, 16), torch.randn(2, 17, page, 2, 16)
        table = torch.arange(17).flip(0)[:16].reshape(4, 4).int()
        for row, length in zip(table, lengths, strict=True):
            for i, number in enumerate(row):
                caches[:, number, max(length - i * page, 0) :] = torch.nan
        yield q, caches[0], caches[1], table, torch.tensor(lengths).int(), 0, 0.0, None
