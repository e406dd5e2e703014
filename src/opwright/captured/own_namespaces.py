"""The namespaces of operators that are not a user's."""

__all__ = ["OWN_NAMESPACES"]

# Torch's own operators, and those that opwright makes of native kernels, which have no fake.
OWN_NAMESPACES = frozenset({
    "aten", "prim", "prims", "rngprims", "debugprims", "quantized", "mkldnn", "onednn", "mkl", "xnnpack", "fbgemm",
    "c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor", "inductor",
    "profiler", "opwright_kernels",
})  # fmt: skip
