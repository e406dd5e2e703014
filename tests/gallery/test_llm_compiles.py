"""gallery.llm's Triton kernels compile for a GPU on a machine that has none, and torch.compile finds what they write.
The simulator takes some programs that the compiler for a GPU does not, such as ``other=0`` for floats of a byte."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from opwright.gallery import llm

pytestmark = [pytest.mark.triton, pytest.mark.slow]  # a second or two each

FP8 = "fp8e4nv"
OF_ATTENTION = dict.fromkeys(("q", "k", "v", "out", "grad", "grad_q", "grad_k", "grad_v"), "*bf16") | {
    "lse": "*fp32", "delta": "*fp32", "offsets_q": "*i32", "offsets_k": "*i32",
    "inner": "fp32", "outer": "fp32", "scale": "fp32",
}  # fmt: skip
TILES = {"BM": 64, "BN": 64, "BK": 128, "TOGETHER": 8}
# The file, the kernel, the types of what is no int32, and the constants.
KERNELS = [
    *(
        ("quantized", "product_kernel", {"a": f"*{t}", "b": f"*{t}", "a_scale": "*fp32", "b_scale": "*fp32",
         "out": "*bf16"}, {"IN_BLOCKS": blocks, **TILES})
        for t in ("i8", FP8) for blocks in (False, True)
    ),
    *(
        ("quantized", "quantize_kernel", {"x": "*bf16", "out": f"*{t}", "scales": "*fp32"},
         {"LARGEST": 127.0, "TO_INT": t == "i8", "GROUPS": 8, "BLOCK": 128})
        for t in ("i8", FP8)
    ),
    ("quantized", "largest_kernel", {"x": "*bf16", "partial": "*fp32"}, {"CHUNK": 4096}),
    ("quantized", "scale_kernel", {"x": "*bf16", "out": f"*{FP8}", "scales": "*fp32"},
     {"LARGEST": 448.0, "TO_INT": False, "CHUNK": 4096}),
    ("linear_cross_entropy", "loss_and_gradient_kernel", {"logits": "*bf16", "labels": "*i64", "loss": "*fp32",
     "smoothing": "fp32", "z_loss": "fp32"}, {"BLOCK": 4096}),
    ("linear_cross_entropy", "scaled_kernel", {"x": "*bf16", "scale": "*fp32", "out": "*bf16"}, {"BLOCK": 4096}),
    ("sampling", "sample_kernel", {"logits": "*bf16", "seeds": "*i64", "temperatures": "*fp32", "top_ks": "*i32",
     "top_ps": "*fp32", "min_ps": "*fp32", "tokens": "*i64"}, {"LOWEST": 16, "BLOCK": 8192}),
    *(
        ("experts", "route_kernel", {"logits": "*bf16", "weights": "*fp32", "experts": "*i32"},
         {"RENORMALISED": renormalised, "ROWS": 16, "BLOCK": 64})
        for renormalised in (False, True)
    ),
    ("experts", "count_kernel", {"experts": "*i32", "counts": "*i32"}, {"CHUNK": 128, "BLOCK": 64}),
    ("experts", "place_kernel", {"experts": "*i32", "starts": "*i32", "places": "*i32", "order": "*i32"},
     {"CHUNK": 128}),
    ("experts", "permute_kernel", {"x": "*bf16", "places": "*i32", "out": "*bf16"}, {"BLOCK": 2048}),
    ("experts", "combine_kernel", {"y": "*bf16", "weights": "*fp32", "places": "*i32", "out": "*bf16"},
     {"BLOCK": 1024}),
    ("experts", "combine_backward_kernel", {"grad": "*bf16", "y": "*bf16", "weights": "*fp32", "places": "*i32",
     "grad_y": "*bf16", "grad_weights": "*fp32"}, {"BLOCK": 1024}),
    ("experts", "grouped_kernel", {"x": "*bf16", "weights": "*bf16", "offsets": "*i32", "out": "*bf16"},
     {"BM": 64, "BN": 64, "BD": 64, "E": 8, "TOGETHER": 8}),
    ("experts", "grouped_weights_kernel", {"grad": "*fp32", "x": "*fp32", "offsets": "*i32", "out": "*fp32"},
     {"BN": 64, "BD": 64, "BM": 32}),
    *(
        ("attention", kernel, OF_ATTENTION, {"D": 64, "BQ": 32, "BK": 32, "CAPS": caps, "PACKED": packed})
        for kernel in ("forward_kernel", "query_kernel", "key_kernel")
        for caps, packed in ((0, False), (1, True), (2, True))
    ),
]  # fmt: skip


def target():
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", 90, 32)


class NoGpu:
    """A driver of a GPU that is only compiled for."""

    def get_current_target(self):
        return target()

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0


def kernel_of(file, name):
    path = Path(llm.__file__).parent / "kernels" / f"{file}_triton.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


WRITTEN = {
    "product_kernel": {"out"}, "quantize_kernel": {"out", "scales"}, "largest_kernel": {"partial"},
    "scale_kernel": {"out"}, "scaled_kernel": {"out"}, "loss_and_gradient_kernel": {"logits", "loss"},
    "sample_kernel": {"tokens"},
    "route_kernel": {"weights", "experts"}, "count_kernel": {"counts"}, "place_kernel": {"places", "order"},
    "permute_kernel": {"out"}, "combine_kernel": {"out"}, "combine_backward_kernel": {"grad_y", "grad_weights"},
    "grouped_kernel": {"out"}, "grouped_weights_kernel": {"out"}, "forward_kernel": {"out", "lse"},
    "query_kernel": {"delta", "grad_q"}, "key_kernel": {"grad_k", "grad_v"},
}  # fmt: skip
DTYPES = {
    "*bf16": torch.bfloat16, "*fp32": torch.float32, "*i32": torch.int32, "*i64": torch.int64, "*i8": torch.int8,
    f"*{FP8}": torch.float8_e4m3fn,
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "name", "types", "constants"), KERNELS, ids=[f"{k[1]}-{i}" for i, k in enumerate(KERNELS)]
)
def test_it_compiles_for_sm_90(file, name, types, constants):
    from triton import compile
    from triton.compiler import ASTSource

    kernel = kernel_of(file, name)
    signature = {argument: types.get(argument, "i32") for argument in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    assert compile(source, target=target()).asm["ptx"]


@pytest.mark.parametrize(
    ("file", "name", "types", "constants"), KERNELS, ids=[f"{k[1]}-{i}" for i, k in enumerate(KERNELS)]
)
def test_torch_compile_finds_what_it_writes(monkeypatch, file, name, types, constants):
    """It takes what it does not understand for written, and then refuses a gradient, or copies it."""
    from torch._higher_order_ops.triton_kernel_wrap import identify_accessed_tensors
    from triton.runtime import driver

    monkeypatch.setattr(driver, "_active", NoGpu())
    kernel = kernel_of(file, name)
    given = dict.fromkeys(kernel.arg_names, 4) | constants
    for argument in set(types) & set(kernel.arg_names):
        kind = types[argument]
        given[argument] = torch.zeros(4, dtype=DTYPES[kind]) if kind in DTYPES else 0.5
    found = identify_accessed_tensors(kernel, given, {}).read_writes.writes
    assert {each.name for each in found} == WRITTEN[name]
