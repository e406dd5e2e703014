"""gallery::conv1d: every kernel against its reference, its gradient, and the PTX that is shipped."""

from __future__ import annotations

import dataclasses
import re
import shutil

import numpy as np
import pytest
import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.mojo import prebuilt
from opwright.backends.mojo.backend import MojoBackend
from opwright.backends.mojo.call import BuildTarget
from opwright.gallery.conv1d import FLOATS, conv1d, conv1d_15_4, conv1d_taps, demo
from opwright.machine import Gpu, this_machine
from opwright.results import Accepted, Refused
from opwright.runtime.kernel import hooks_of
from opwright.target import Target
from tests.sampled import quick, sampled

# Mojo compiles a kernel for a dtype in four seconds: a narrow one by default, the others with slow tests.
MOJO_DTYPES = [
    pytest.param(dtype, marks=[pytest.mark.mojo] + [pytest.mark.slow] * (dtype != torch.bfloat16)) for dtype in FLOATS
]
TILED = pytest.param("mojo_gpu_tiled", marks=pytest.mark.mojo)
GPU = ["mojo_gpu", TILED, "cuda", pytest.param("triton", marks=pytest.mark.triton)]
SIZES = (0, 1, 3, 15, 300, 2053)
WIDTHS = (1, 2, 4, 7, 31, 257)
BOOK = [14, 20, 26, 32, 38, 44, 50, 56, 62, 68, 74, 80, 41, 14, 0]


def exact(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """NumPy's result in float64, from the definition: each tap times the input at its position."""
    x, k = x.double().cpu().numpy(), k.double().cpu().numpy()
    padded = np.concatenate([x, np.zeros(len(k))])
    out = np.zeros(len(x))
    for j, tap in enumerate(k):
        out += padded[j : j + len(x)] * tap
    return torch.from_numpy(out)


def assert_close(got: torch.Tensor, expected: torch.Tensor, terms: int) -> None:
    """Up to one rounding of the result, and what summing so many terms in float32 (or float64) may lose."""
    eps = torch.finfo(got.dtype).eps
    summed = eps if got.dtype == torch.float64 else torch.finfo(torch.float32).eps
    torch.testing.assert_close(got.double().cpu(), expected, rtol=eps, atol=4 * (terms + 4) * summed)


def test_the_reference_is_the_definition_on_the_data_of_the_text():
    x, k = torch.arange(15, dtype=torch.float32), torch.arange(4, dtype=torch.float32)
    with conv1d.only("reference"):
        assert conv1d(x, k).tolist() == BOOK
    assert exact(x, k).tolist() == BOOK


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("m", WIDTHS)
def test_the_reference_is_the_definition_for_every_size(n, m):
    x, k = torch.randn(n, dtype=torch.float64), torch.randn(m, dtype=torch.float64)
    with conv1d.only("reference"):
        assert_close(conv1d(x, k), exact(x, k), m)


def assert_kernel_is_right(kernel, dtype, widths=WIDTHS):
    for n in SIZES:
        for m in widths:
            x, k = torch.randn(n).to(dtype), torch.randn(m).to(dtype)
            assert_close(conv1d.kernels[kernel](x, k), exact(x, k), m)


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_cpp_kernel_agrees_with_the_definition(dtype):
    assert_kernel_is_right("cpp", dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled(MOJO_DTYPES, 4))
def test_the_mojo_kernel_agrees_with_the_definition(dtype):
    assert_kernel_is_right("mojo", dtype)


@pytest.mark.mojo
@pytest.mark.slow  # Mojo compiles a kernel for every width
@pytest.mark.parametrize(("dtype", "widths"), [(torch.float32, (3, 4, 5)), (torch.bfloat16, (4,))])
def test_the_unrolled_mojo_kernel_agrees_with_the_definition(dtype, widths):
    assert_kernel_is_right("mojo_unrolled", dtype, widths)


@pytest.mark.mojo
@pytest.mark.slow  # compiles Mojo
def test_on_a_cpu_with_mojo_the_mojo_kernel_is_what_runs():
    x, k = torch.arange(15.0), torch.arange(4.0)
    assert conv1d(x, k).tolist() == BOOK
    assert conv1d.explain(x, k).chosen.kernel == "mojo"


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.slow  # Inductor compiles
def test_the_numpy_kernel_agrees_with_the_definition(dtype):
    x, k = torch.randn(100, dtype=dtype), torch.randn(4, dtype=dtype)
    assert_close(conv1d.kernels["numpy_compiled"](x, k), exact(x, k), 4)


@pytest.mark.triton
@pytest.mark.slow  # Triton's interpreter
def test_the_triton_kernel_agrees_with_the_reference_in_the_interpreter(run_python):
    run_python(
        """
        import torch
        from opwright.gallery.conv1d import conv1d
        for dtype in (torch.float16, torch.float32, torch.float64):
            for n, m in ((0, 2), (5, 7), (1030, 4), (4100, 11)):
                x, k = torch.randn(n).to(dtype), torch.randn(m).to(dtype)
                expected = conv1d.contract.reference((x.double(), k.double()))[0].to(dtype)
                torch.testing.assert_close(conv1d.kernels["triton"](x, k), expected, rtol=1e-2, atol=1e-2)
        """,
        env={"TRITON_INTERPRET": "1"},
    )


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.parametrize("dtype", quick(["fp16", "bf16", "fp32", "fp64"], 0, 2))
def test_in_triton_a_thread_takes_16_bytes_at_once_and_shares_nothing_with_others(dtype):
    import triton.language as tl
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from opwright.gallery.conv1d.conv1d_triton import conv1d_kernel

    pointers = dict.fromkeys(("x", "k", "out"), f"*{dtype}")
    each = 128 // int(dtype.strip("bfp"))
    constants = {"ROWS": 256, "EACH": each, "SUM": tl.float64 if dtype == "fp64" else tl.float32}
    signature = pointers | {"n": "i32", "m": "i32"} | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    source = ASTSource(fn=conv1d_kernel, signature=signature, constexprs=constants, attrs=aligned)
    ptx = compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    for at_once in ("ld.global", "st.global"):
        assert re.search(rf"{at_once}\.(v4\.b32|v2\.b64)", ptx), at_once
    assert not re.search(r"\.shared|shfl|bar\.sync", ptx)


def ptx_of(kernel, dtype: torch.dtype, arch: str = "sm_90") -> str:
    """Mojo's code of a kernel for a GPU that this machine need not have."""
    made = MojoBackend().compile(kernel.spec, kernel.contract, build_tools()).payload
    arguments = torch.zeros(8, dtype=dtype), torch.zeros(4, dtype=dtype)
    return made(arguments, BuildTarget(arch, (dtype,) * 3)).read_text()


@pytest.mark.parametrize("dtype", sampled(MOJO_DTYPES, 4))
@pytest.mark.slow  # compiles Mojo
def test_the_tiled_mojo_kernel_shares_memory_and_waits_at_a_barrier(dtype):
    ptx = ptx_of(conv1d.kernels["mojo_gpu_tiled"], dtype)
    sums = 8 if dtype == torch.float64 else 4
    tile, taps = 2 * 256 * (16 // dtype.itemsize) + 256, 256
    assert sorted(map(int, re.findall(r"\.shared \.align 16 \.b8 \S+\[(\d+)\]", ptx))) == [taps * sums, tile * sums]
    # Before a tile is read, and before it is written again.
    assert len(re.findall(r"bar\.sync|barrier\.sync", ptx)) == 2
    assert re.search(r"ld\.global\.nc\.(v4\.b32|v2\.b64)", ptx)
    assert re.search(r"st\.global\.(v4\.b32|v2\.b64)", ptx)


@pytest.mark.mojo
@pytest.mark.slow  # compiles Mojo
def test_the_other_mojo_kernel_needs_neither():
    assert not re.search(r"\.shared|bar\.sync|barrier\.sync", ptx_of(conv1d.kernels["mojo_gpu"], torch.float32))


def test_a_gpu_machine_without_mojo_has_the_shipped_kernel_and_is_told_what_the_tiled_one_needs():
    gpu = Gpu("some GPU", (9, 0), 1 << 30)
    without = dataclasses.replace(build_tools().machine, gpus=(gpu,), mojo=None)
    assert isinstance(conv1d.kernels["mojo_gpu"].probe("cuda", without), Accepted)
    assert conv1d.kernels["mojo_gpu_tiled"].probe("cuda", without) == Refused(
        "Mojo is not installed", "pip install 'opwright[mojo]'"
    )


def skip_without_ptx(kernel, dtype):
    """PTX of one dtype is kept beside the source; the rest is built with Mojo, or with a package."""
    unchecked = hooks_of(conv1d.kernels[kernel], Target("cuda")).unchecked_dtypes(this_machine())
    if dtype in unchecked:
        pytest.skip(unchecked[dtype])


@pytest.mark.gpu
def test_on_a_gpu_the_kernel_from_registers_is_what_runs():
    x, k = torch.randn(5000, device="cuda"), torch.randn(4, device="cuda")
    assert conv1d.explain(x, k).chosen.kernel == "mojo_gpu"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", GPU)
def test_kernels_on_a_gpu_agree_with_the_definition(kernel, dtype):
    skip_without_ptx(kernel, dtype)
    for n in (*SIZES, 4096, 8191, 100_003):
        for m in WIDTHS:
            x, k = torch.randn(n).to("cuda", dtype), torch.randn(m).to("cuda", dtype)
            assert_close(conv1d.kernels[kernel](x, k), exact(x, k), m)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", GPU)
def test_views_that_start_anywhere_are_right_on_a_gpu(kernel):
    base, k = torch.randn(20_000, device="cuda"), torch.randn(9, device="cuda")
    for x in (base[1:], base[3:], base[::2], base[1::3], base.view(100, 200)[:, 5]):
        assert_close(conv1d.kernels[kernel](x, k[1:]), exact(x, k[1:]), 8)


@pytest.mark.gpu
def test_the_shipped_ptx_runs_on_a_gpu_without_mojo():
    kernel, tools = conv1d.kernels["mojo_gpu"], build_tools()
    without = dataclasses.replace(tools, machine=dataclasses.replace(tools.machine, mojo=None))
    backend = MojoBackend()
    launch = backend.load(backend.compile(kernel.spec, kernel.contract, without), kernel.spec, kernel.contract)
    x, k = torch.randn(5000, device="cuda"), torch.randn(4, device="cuda")
    assert_close(launch(x, k), exact(x, k), 4)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["mojo_gpu", TILED, "cuda"])
def test_more_elements_than_32_bits_can_count_are_convolved(kernel):
    skip_without_ptx(kernel, torch.float16)
    n = (1 << 31) + 4096
    if torch.cuda.mem_get_info()[0] < 5 * n:
        pytest.skip("the GPU has too little free memory")
    x, k = torch.zeros(n, device="cuda", dtype=torch.float16), torch.ones(2, device="cuda", dtype=torch.float16)
    x[-100] = 1
    assert conv1d.kernels[kernel](x, k)[-102:-98].tolist() == [0, 1, 1, 0]


@pytest.mark.mojo
@pytest.mark.slow  # four compilations; the next test checks quickly that the source was not edited since
def test_the_shipped_ptx_is_what_its_source_compiles_to(tmp_path):
    kernel = conv1d.kernels["mojo_gpu"]
    source = kernel.spec.source
    copied = tmp_path / source.name
    shutil.copy(source, copied)
    spec = dataclasses.replace(kernel.spec, source=copied)
    calls = [(torch.zeros(8), torch.zeros(4))]
    for file in MojoBackend().prebuild(spec, kernel.contract, build_tools(), ["sm_80"], calls):
        assert file.read_bytes() == (source.parent / "prebuilt" / file.name).read_bytes(), file.name


def test_the_shipped_ptx_is_of_this_very_source():
    kernel = conv1d.kernels["mojo_gpu"]
    made = MojoBackend().compile(kernel.spec, kernel.contract, build_tools()).payload
    manifest = prebuilt.manifest_of(kernel.spec.source, kernel.spec.entry, "prebuilt")
    for newer in ("sm_80", "sm_90", "sm_100"):
        dtypes = (torch.float32,) * 3
        unit = made.unit(made.parameters((torch.zeros(8), torch.zeros(4)), dtypes), BuildTarget(newer, dtypes))
        found = prebuilt.find(manifest, unit)
        assert found is not None, "build it anew and commit it: see CONTRIBUTING.md"
        assert found[1] == "sm_80"


@pytest.mark.slow
def test_the_demonstration_prints_passed_for_each_and_match(capsys, monkeypatch):
    for name in ("max_op", "max_graph"):  # which take MAX a minute; the next test runs them
        kernel = (conv1d_15_4 if name == "max_op" else conv1d).kernels[name]
        monkeypatch.setattr(kernel, "probe", lambda device: Refused("MAX is not asked", "run the next test"))
    assert demo()
    output = capsys.readouterr().out
    assert output.count("[14. 20. 26. 32. 38. 44. 50. 56. 62. 68. 74. 80. 41. 14.  0.]\n  PASSED") == 2
    assert "MAX graph: not run: MAX is not asked (run the next test)" in output
    assert output.endswith("\nMATCH\n")


@pytest.mark.max
@pytest.mark.slow
@pytest.mark.exhaustive  # a minute
def test_max_gives_the_same_by_both_of_its_ways(capsys):
    assert demo()
    assert capsys.readouterr().out.count("PASSED") == 4


# -- the gradient ------------------------------------------------------------------------------------------------


def assert_gradient_is_right(kernel, dtype):
    for n in (0, 1, 5, 1000, 70_001):
        for m in (1, 4, 17):
            x, grad = torch.randn(n).to(dtype), torch.randn(n).to(dtype)
            expected = conv1d_taps.contract.reference((x.double(), grad.double(), m))[0]
            got = conv1d_taps.kernels[kernel](x, grad, m)
            assert_close(got, expected, n)


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradient_for_the_taps_in_cpp_agrees_with_its_reference(dtype):
    assert_gradient_is_right("cpp", dtype)


@pytest.mark.parametrize("dtype", sampled(MOJO_DTYPES, 4))
@pytest.mark.slow  # compiles Mojo
def test_the_gradient_for_the_taps_in_mojo_agrees_with_its_reference(dtype):
    assert_gradient_is_right("mojo", dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradient_for_the_taps_agrees_with_its_reference_on_a_gpu(dtype):
    for n in (0, 1, 5, 1000, 70_001):
        for m in (1, 4, 17):
            x, grad = torch.randn(n).to("cuda", dtype), torch.randn(n).to("cuda", dtype)
            expected = conv1d_taps.contract.reference((x.double().cpu(), grad.double().cpu(), m))[0]
            got = conv1d_taps.kernels["cuda"](x, grad, m)
            assert_close(got, expected, n)
            assert torch.equal(got, conv1d_taps.kernels["cuda"](x, grad, m))


@pytest.mark.slow  # gradcheck of gradients
@pytest.mark.compiler
@pytest.mark.parametrize(("n", "m"), [(1, 1), (20, 5), (3, 6)])
def test_gradients_of_both_inputs_are_right_to_second_order(n, m):
    x = torch.randn(n, dtype=torch.float64, requires_grad=True)
    k = torch.randn(m, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(conv1d, (x, k))
    assert torch.autograd.gradgradcheck(conv1d, (x, k))


@pytest.mark.slow
@pytest.mark.compiler
def test_it_compiles_whole_with_its_gradient():
    x, k = torch.randn(50, requires_grad=True), torch.randn(4, requires_grad=True)
    torch.compile(lambda x, k: conv1d(x, k).square().sum(), fullgraph=True, backend="aot_eager")(x, k).backward()
    grads = x.grad, k.grad
    with conv1d.only("reference"):
        expected = torch.autograd.grad(conv1d.contract.traceable((x, k))[0].square().sum(), (x, k))
    torch.testing.assert_close(grads, expected)
