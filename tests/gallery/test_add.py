"""gallery::add: every kernel against its reference, and the operator in torch.compile."""

from __future__ import annotations

import pytest
import torch

from opwright.gallery.add import FLOATS, add, cuda

TRITON_KERNELS = ("triton", "triton_autotuned")
CUDA_KERNELS = {name: kernel.spec.dtypes[0] for name, kernel in add.kernels.items() if kernel.backend == "cuda"}


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_cpp_kernel_gives_what_the_reference_gives_in_every_layout(dtype, layouts):
    for x, y in zip(layouts(dtype), layouts(dtype), strict=True):
        out = add.kernels["cpp"](x, y)
        assert torch.equal(out, x + y), x.shape
        assert out.is_contiguous()


@pytest.mark.compiler
def test_on_a_cpu_the_cpp_kernel_is_what_runs():
    x = torch.randn(8)
    assert add.explain(x, x).chosen.kernel == "cpp"
    assert torch.equal(torch.ops.gallery.add(x, x), 2 * x)


@pytest.mark.triton
@pytest.mark.slow  # Triton's interpreter
def test_triton_kernels_agree_with_the_reference_in_the_interpreter(run_python):
    # Within a tolerance: the interpreter cuts float32 off to bfloat16, where a GPU rounds.
    run_python(
        """
        import torch
        from opwright.gallery.add import FLOATS, add, cuda
        for kernel in ("triton", "triton_autotuned"):
            for dtype in FLOATS:
                for shape in ((), (0,), (1,), (1025,), (3, 0), (33, 70)):
                    x, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
                    torch.testing.assert_close(add.kernels[kernel](x, y), x + y)
                    if x.dim() == 2:
                        out = add.kernels[kernel](x.T, y.T)
                        torch.testing.assert_close(out, (x + y).T)
                        assert out.is_contiguous()
        """,
        env={"TRITON_INTERPRET": "1"},
    )


@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", TRITON_KERNELS)
def test_triton_kernels_agree_with_the_reference_on_a_gpu(kernel, dtype, layouts):
    for x, y in zip(layouts(dtype, "cuda"), layouts(dtype, "cuda"), strict=True):
        out = add.kernels[kernel](x, y)
        assert torch.equal(out, x + y), x.shape
        assert out.is_contiguous()


@pytest.mark.slow  # imports all of it anew
def test_importing_the_gallery_needs_neither_triton_nor_a_compiler(run_python):
    run_python(
        """
        import sys
        sys.modules["triton"] = None  # importing it raises ImportError
        import importlib
        from opwright.gallery import OPERATORS
        assert "torch" not in sys.modules, "naming the operators imports torch"
        for name in OPERATORS:
            importlib.import_module(name)
        import torch
        from opwright.gallery.add import add
        assert add.explain(torch.ones(3), torch.ones(3)).chosen.kernel == "reference"
        assert add(torch.ones(3), torch.ones(3)).tolist() == [2, 2, 2]
        """,
        env={"PATH": "/nowhere", "CXX": "/nowhere/g++"},
        fresh=True,  # this is a test of imports
    )


def test_gradients_are_right(device):
    x, y = (torch.randn(5, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(add, (x, y))
    assert torch.autograd.gradgradcheck(add, (x, y))


def test_it_compiles_without_a_graph_break(device, compiled):
    x, y = torch.randn(1025, device=device), torch.randn(1025, device=device)
    assert torch.allclose(compiled(lambda x, y: add(x, y).sin())(x, y), (x + y).sin(), atol=1e-6)


@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.parametrize("kernel", TRITON_KERNELS)
def test_torch_compile_traces_into_the_triton_kernel(kernel, run_and_get_code):
    x, y = torch.randn(1025, device="cuda"), torch.randn(1025, device="cuda")
    with add.only(kernel):
        out, code = run_and_get_code(torch.compile(lambda x, y: add(x, y) * 2, fullgraph=True), x, y)
    assert torch.allclose(out, (x + y) * 2)
    assert "add_kernel" in code
    assert "torch.ops.gallery.add" not in code


@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.parametrize("launcher", ["add", "add_autotuned"])
def test_the_launchers_are_plain_functions_that_torch_compile_takes_as_they_are(launcher, run_and_get_code):
    from opwright.gallery.add import add_triton

    function = getattr(add_triton, launcher)
    x, y = torch.randn(1025, device="cuda"), torch.randn(1025, device="cuda")
    assert torch.equal(function(x, y), x + y)
    out, code = run_and_get_code(torch.compile(lambda x, y: function(x, y) * 2, fullgraph=True), x, y)
    assert torch.allclose(out, (x + y) * 2)
    assert "add_kernel" in code


def test_all_cuda_kernels_are_attached():
    assert set(CUDA_KERNELS) == {
        "f32", "f32x4", "f16", "f16x2", "f16x8", "f16x8_pack", "bf16", "bf16x2", "bf16x8_pack",
    }  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("instance", "load"),
    [
        ("add<float, 1, 1>", "ld.global.nc.u32|ld.global.nc.f32"),
        ("add<float, 4, 4>", "ld.global.nc.v4"),
        ("add<__half, 2, 2>", "ld.global.nc.u32|ld.global.nc.v2.u16"),
        ("add<__half, 8, 8>", "ld.global.nc.v4.u32"),
        ("add<__nv_bfloat16, 8, 8>", "ld.global.nc.v4.u32"),
    ],
)
def test_a_cuda_kernel_loads_as_many_bits_at_once_as_its_name_says(instance, load):
    code, _ = cuda.entry("sm_90", instance)
    assert any(one in code.ptx.read_text() for one in load.split("|"))


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.parametrize("kernel", CUDA_KERNELS)
def test_cuda_kernels_are_exact_in_every_layout_and_size(kernel, layouts):
    dtype, ran = CUDA_KERNELS[kernel], 0
    sizes = (1, 2, 3, 7, 8, 9, 255, 2047, 2048, 2049, 100_003)
    pairs = [*zip(layouts(dtype, "cuda"), layouts(dtype, "cuda"), strict=True)]
    pairs += [(torch.randn(n, device="cuda").to(dtype), torch.randn(n, device="cuda").to(dtype)) for n in sizes]
    for x, y in pairs:
        if not add.kernels[kernel].when or add.kernels[kernel].when(x, y):
            assert torch.equal(add.kernels[kernel](x, y), x + y), x.shape
            ran += 1
    assert ran >= len(sizes)


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.parametrize("dtype", set(CUDA_KERNELS.values()))
def test_a_misaligned_view_goes_to_a_kernel_that_takes_it(dtype):
    x, y = (torch.randn(1001, device="cuda").to(dtype)[1:] for _ in range(2))
    chosen = add.explain(x, y).chosen.kernel
    assert chosen in ("f32", "f16", "bf16")
    assert torch.equal(add(x, y), x + y)
    assert add.explain(x.clone(), y.clone()).chosen.kernel in ("f32x4", "f16x8_pack", "bf16x8_pack")


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_cuda_offsets_past_two_to_the_31_are_right():
    n = 2**31 + 1027
    if torch.cuda.mem_get_info()[0] < 3 * 4 * n + 2**30:
        pytest.skip("needs about 27 GB of free GPU memory")
    for dtype in set(CUDA_KERNELS.values()):
        x = torch.ones(n, dtype=dtype, device="cuda")
        for kernel in (k for k, d in CUDA_KERNELS.items() if d == dtype):
            out = add.kernels[kernel](x, x)
            assert out[-1] == 2, kernel
            assert out[2**31 - 8 :].eq(2).all(), kernel
            del out
        del x


@pytest.mark.gpu
@pytest.mark.triton
def test_offsets_past_two_to_the_31_are_right():
    n = 2**31 + 1025
    if torch.cuda.mem_get_info()[0] < 3 * 2 * n + 2**30:
        pytest.skip("needs about 14 GB of free GPU memory")
    x = torch.ones(n, dtype=torch.float16, device="cuda")
    for kernel in TRITON_KERNELS:
        out = add.kernels[kernel](x, x)
        assert out[-1] == 2
        assert out[2**31 :].eq(2).all()
        del out
