"""Operators of a language model, with kernels in the language that suits each: norms, activations, attention, losses,
AdamW, quantised products, experts and sampling.

``patch`` puts some of them under a model of ``transformers``, ``AdamW`` trains it, and ``generate`` continues prompts.
"""

from opwright.gallery.llm.activations import glu, glu_backward, softmax, softmax_backward
from opwright.gallery.llm.adamw import adamw_
from opwright.gallery.llm.attention import attention, attention_backward
from opwright.gallery.llm.cross_entropy import cross_entropy, cross_entropy_backward
from opwright.gallery.llm.experts import (
    combine,
    combine_backward,
    grouped_mm,
    grouped_mm_weights,
    permute,
    route,
    sort_by_expert,
)
from opwright.gallery.llm.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_backward
from opwright.gallery.llm.models import AdamW, generate, patch, unpatch
from opwright.gallery.llm.norms import (
    add_rms_norm,
    add_rms_norm_,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from opwright.gallery.llm.packed_attention import packed_attention, packed_attention_backward
from opwright.gallery.llm.paged import paged_attention, reshape_and_cache_
from opwright.gallery.llm.quantized import block_scaled_mm, quantize_fp8, quantize_int8, scaled_mm
from opwright.gallery.llm.rope import rope, rope_, rope_at, rope_at_
from opwright.gallery.llm.sampling import sample

__all__ = [
    "AdamW", "adamw_", "add_rms_norm", "add_rms_norm_", "attention", "attention_backward", "block_scaled_mm", "combine",
    "combine_backward", "cross_entropy", "cross_entropy_backward", "generate", "glu", "glu_backward", "grouped_mm",
    "grouped_mm_weights", "layer_norm", "layer_norm_backward", "linear_cross_entropy", "linear_cross_entropy_backward",
    "packed_attention", "packed_attention_backward", "paged_attention", "patch", "permute", "quantize_fp8",
    "quantize_int8", "reshape_and_cache_", "rms_norm", "rms_norm_backward", "rope", "rope_", "rope_at", "rope_at_",
    "route", "sample", "scaled_mm", "softmax", "softmax_backward", "sort_by_expert", "unpatch",
]  # fmt: skip
