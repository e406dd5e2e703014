"""The attention of a patched model: over the tokens of a call, or over a cache in pages."""

import functools

import torch
from torch import Tensor

from opwright.gallery.llm.attention import attention
from opwright.gallery.llm.paged import paged_attention, reshape_and_cache_

__all__ = ["HEAD_DIMS", "Attention", "Pages"]

HEAD_DIMS = (16, 64, 128, 256)
# What torch's attention ignores, too. With any other keyword, it is called.
IGNORED = {
    "position_ids",
    "sliding_window",
    "use_cache",
    "output_attentions",
    "output_router_logits",
    "num_items_in_batch",
}


class Pages:
    """The keys and values of some sequences, in pages that belong to one of them each.

    Args:
        lengths: the most tokens of each sequence.
        page: the tokens of a page.
    """

    def __init__(self, config, lengths: list[int], dtype: torch.dtype, device: torch.device, page: int = 16) -> None:
        needed = [-(-length // page) for length in lengths]
        table, first = torch.zeros(len(lengths), max(needed), dtype=torch.int32), 0
        for row, count in zip(table, needed, strict=True):
            row[:count] = torch.arange(first, first + count)
            first += count
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, first, page, config.num_key_value_heads, head_dim)
        self.k, self.v = (torch.empty(shape, dtype=dtype, device=device) for _ in "kv")
        self.page, self.table = page, table.to(device)
        self.now: tuple[Tensor, Tensor, Tensor]  # of the call: slots of its tokens, tables and lengths of its sequences

    def begin(self, rows: Tensor, positions: Tensor) -> None:
        """The next call has the tokens at some positions (sequences × tokens) of some sequences."""
        table, lengths = self.table[rows], (positions[:, -1] + 1).int()
        slots = table.gather(1, positions // self.page).long() * self.page + positions % self.page
        self.now = slots.flatten(), table, lengths


class Attention:
    """Takes the place of ``ALL_ATTENTION_FUNCTIONS``, and asks that for what it does not compute itself."""

    def __init__(self, theirs) -> None:
        self.theirs = theirs

    def get_interface(self, name, default):
        theirs = self.theirs.get_interface(name, default)
        return functools.partial(attend, theirs, name == "sdpa")


def attend(
    theirs, replaces, module, query, key, value, attention_mask=None, dropout=0.0, scaling=None, pages=None,
    all_tokens=False, **others,
):  # fmt: skip
    """As the attention functions of ``transformers``: (b, h, s, d) → (b, s, h, d).

    Args:
        pages: the cache, if it is in pages.
        all_tokens: the model was called for all tokens of its sequences: each attends to all before it, up to the
            window. ``transformers`` makes a mask for a window, and, with torch before 2.14, under torch.compile. With a
            mask, torch's attention computes all scores. Here that mask is not needed.
    """
    window = others.get("sliding_window") or 0
    if pages is not None:
        return attend_to_pages(module, query, key, value, scaling, pages, window), None
    makes_masks = window > 0 or torch.compiler.is_compiling()  # otherwise a mask is somebody else's
    is_causal = attention_mask is None or (all_tokens and makes_masks)
    is_plain = is_causal and dropout == 0 and not others.get("output_attentions")
    if replaces and is_plain and others.keys() <= IGNORED and fits(module, query, key, value):
        return of_tokens(query, key, value, window if all_tokens else 0, scaling), None
    return theirs(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)


def of_tokens(query, key, value, window, scaling) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return torch.as_tensor(attention(q, k, v, True, window, 0.0, scaling))


def fits(module, query, key, value) -> bool:
    """Half precision, for which the kernels are made, and queries of all keys: decoding is torch's."""
    is_causal = getattr(module, "is_causal", False) and query.shape[2] == key.shape[2]
    is_half = query.dtype in (torch.float16, torch.bfloat16) and query.dtype == key.dtype == value.dtype
    return is_causal and is_half and query.shape[-1] in HEAD_DIMS


def attend_to_pages(module, query, key, value, scaling, pages, window):
    k_cache, v_cache = pages.k[module.layer_idx], pages.v[module.layer_idx]
    new_k, new_v = (x.transpose(1, 2).flatten(0, 1) for x in (key, value))
    slots, table, lengths = pages.now
    reshape_and_cache_(new_k, new_v, k_cache, v_cache, slots)
    if query.shape[2] > 1:  # a prompt, which is all that its sequence has
        return of_tokens(query, key, value, window, scaling)
    return paged_attention(query[:, :, 0], k_cache, v_cache, table, lengths, window, 0.0, scaling)[:, None]
