"""Functions that are not made into operators, each with the reason. Others are left out by what making them raises."""

from __future__ import annotations

__all__ = ["UNCHECKED_SIZES", "reason"]

# Functions that take sizes which do not match, and read or write past the end of memory (in torch 2.13), and one whose
# result's size follows from its argument in a way that no annotation says. Their contracts have the sizes of a sample.
UNCHECKED_SIZES = frozenset({
    "istft", "nn.functional.batch_norm", "nn.functional.batch_norm.without_cudnn", "nn.functional.embedding_bag",
    "nn.functional.scaled_dot_product_attention",
})  # fmt: skip

_UNINITIALISED = "its result is not initialised"
_NOT_UNIQUE = "several results are right (signs, phases or bases)"
_RANDOM = "its result is random"
_WRITES = "it writes its arguments"
_PRIVATE = "compiles a kernel of its own"

_BY_NAME = {
    **dict.fromkeys(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"), _UNINITIALISED),
    **dict.fromkeys(("new_empty_strided", "resize_", "resize_as_"), _UNINITIALISED),
    **dict.fromkeys(("svd", "svd_lowrank", "pca_lowrank", "linalg.svd", "linalg.eig", "linalg.eigh"), _NOT_UNIQUE),
    **dict.fromkeys(("geqrf", "linalg.ldl_factor", "linalg.ldl_factor_ex"), _NOT_UNIQUE),
    **dict.fromkeys(("rand_like", "randn_like", "randint_like", "multinomial", "bernoulli", "normal"), _RANDOM),
    **dict.fromkeys(("cauchy", "exponential", "geometric", "log_normal", "uniform"), _RANDOM),
    **dict.fromkeys(("as_strided", "as_strided_copy", "as_strided_scatter"), "it reads memory, not the elements"),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"), _WRITES),
    "nn.functional.rrelu": _RANDOM,
    "linalg.eigvals": "the order of its results is not defined",
    "linalg.lstsq": "the sizes of its residuals depend on the matrix' rank, which fake tensors do not have",
    "nn.functional.gaussian_nll_loss": "it refuses some values in Python, which fake tensors do not have",
    "nn.functional.one_hot": "its fake computes with the largest index, which fake tensors do not have",
    "corrcoef": "of one variable, which is what most samples have, its result is always 1",
    "to_sparse": "its result is sparse",
    "torch._scaled_mm": "of a GPU only in sizes of which some are no multiples of 16",
    "linalg.ldl_solve": "it trusts its pivots, and writes past the end for others than those of a factorisation",
    "histogram": "torch has no fake of it",
    "torch.ops.aten._flash_attention_forward": "of a GPU only, with a random state among its results",
    "torch.ops.aten._efficient_attention_forward": "of a GPU only, with a random state among its results",
}


_ON_A_GPU = {
    "mode": "which of several equal values it gives is not defined, and not the CPU's",
}


def reason(name: str, device: str) -> str:
    """Why a function is left out on a device; empty if it is not."""
    if device == "cuda" and name in _ON_A_GPU:
        return _ON_A_GPU[name]
    if name.startswith("jiterator") or name == "bmm.triton_optimized":
        return _PRIVATE
    if name.startswith("nn.functional.max_unpool"):
        return "which value is kept where indices repeat is not defined"
    if "dropout" in name or "fractional_max_pool" in name:
        return _RANDOM
    return _BY_NAME.get(name, "")
