"""torch's fused attention in steps, so that rounding inside of it is seen.

FlashAttention (Dao et al., 2022) and its successors multiply the weights in the dtype of the inputs, as tensor cores
take them, and add in float32. torch's operation may do so or not, and is one step to whoever looks on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["FusedAttentionInSteps"]


class FusedAttentionInSteps(TorchFunctionMode):
    """A mode in which ``torch.nn.functional.scaled_dot_product_attention`` is done in steps.

    Attributes:
        was_called: whether there was any such operation.
    """

    was_called = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.was_called = True
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if dropout_p or query.is_nested or not query.numel() or not key.numel():
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, **options)
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    # Rows without a key give zeros.
    is_empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.to(query.dtype).softmax(-1).masked_fill(is_empty, 0.0)
    return (weights.to(wide) @ value.to(wide)).to(query.dtype)
