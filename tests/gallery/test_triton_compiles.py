"""Every Triton kernel of the gallery compiles for a GPU, on a machine that has none: the interpreter, which
other tests use there, accepts programs that the compiler does not."""

import pytest

pytestmark = pytest.mark.triton


def kernels():
    names = ("add_kernel", "add_kernel_autotuned"), ("sin_kernel", "cos_kernel", "sin_kernel_heuristics")
    files = ("opwright.gallery.add.add_triton", "opwright.gallery.trig.trig_triton")
    return [(file, name) for file, listed in zip(files, names, strict=True) for name in listed]


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize(("module", "name"), kernels())
def test_it_compiles_for_sm_90(module, name, dtype):
    import importlib

    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(module), name)
    while hasattr(kernel, "fn") and type(kernel).__name__ != "JITFunction":
        kernel = kernel.fn
    signature = {a: "i64" if a == "n" else f"*{dtype}" for a in kernel.arg_names}
    constants = {"BLOCK": 256} | ({"EVEN": False} if "EVEN" in kernel.arg_names else {})
    for constant in constants:
        signature[constant] = "constexpr"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
