"""gallery::lltm: every kernel against the reference, gradients, and the module with each kernel."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import pytest
import torch
from torch import nn

import opwright as ow
from opwright.errors import ArgumentError
from opwright.gallery import lltm as source
from opwright.gallery.lltm import FLOATS, lltm, lltm_backward, lltm_backward_pointwise, lltm_cuda, lltm_with
from opwright.gallery.lltm.lltm_cuda import LANES, cuda
from opwright.gallery.lltm.module import LLTM, ReferenceLLTM
from tests.sampled import quick

# b, i, s: odd columns, columns that allow wide loads, more columns than a tile, more rows than one block sums, nothing,
# few rows of many weights, steps of middle size (tiles that stand over an edge, no x)
SIZES = (
    (16, 32, 128), (3, 5, 7), (1, 1, 1), (2, 0, 130), (64, 9, 20), (300, 3, 33), (520, 8, 64), (0, 4, 6), (5, 4, 0),
    (6, 200, 360), (130, 36, 100), (65, 0, 68),
)  # fmt: skip
GPU_KERNELS = ("cuda", "cuda_accessors", pytest.param("cuda_host", marks=pytest.mark.nvcc), "triton")


def arguments(b, i, s, dtype=torch.float32, device="cpu", seed=0):
    """x, weight, bias, h and c."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (b, i), (3 * s, s + i), (3 * s,), (b, s), (b, s)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    made[1] /= max(s + i, 1) ** 0.5
    return [t.to(device, dtype) for t in made]


def backward_arguments(b, s, dtype=torch.float32, device="cpu"):
    """grad_h, grad_c, gates and c_new."""
    generator = torch.Generator().manual_seed(1)
    shapes = (b, s), (b, s), (b, 3 * s), (b, s)
    return [torch.randn(n, generator=generator, dtype=torch.float64).to(device, dtype) for n in shapes]


def wanted_columns(b, i, s, dtype=torch.float32, device="cpu"):
    """weight and inputs, of which a backward may want all columns, some or none."""
    _, weight, _, _, _ = arguments(b, i, s, dtype, device)
    inputs = torch.randn(b, s + i, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(device, dtype)
    yield weight, inputs
    yield weight[:, :s], inputs[:, :0]
    yield weight[:, s:], inputs
    yield weight[:, :0], inputs[:, :0]


def assert_all_close(got, expected, **tolerance):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def assert_kernel_is_right(kernel, dtype, device="cpu", sizes=SIZES):
    for b, i, s in sizes:
        compare(lltm, kernel, arguments(b, i, s, dtype, device))
        given = backward_arguments(b, s, dtype, device)
        for absent in ((), (0,), (1,), (0, 1)):
            grad_h, grad_c, *rest = (None if n in absent else t for n, t in enumerate(given))
            compare(lltm_backward_pointwise, kernel, (grad_h, grad_c, *rest))
            for weight, inputs in itertools.islice(wanted_columns(b, i, s, dtype, device), 1 if absent else None):
                compare(lltm_backward, kernel, (grad_h, grad_c, weight, inputs, *rest))


def run(operator, kernel, given):
    """All outputs, with those that are saved for the backward."""
    return operator.kernels[kernel].launch(given, 0 if given[-1].is_cuda else None)


def compare(operator, kernel, given):
    """Compare a kernel's outputs with the reference's in double; errors are shares of the output's scale."""
    dtype = given[-1].dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4}.get(dtype, 3e-2)
    expected = operator.contract.reference([None if t is None else t.double() for t in given])
    for got, exact in zip(run(operator, kernel, given), expected, strict=True):
        scale = float(exact.square().mean().sqrt()) if exact.numel() else 0.0
        torch.testing.assert_close(got, exact.to(dtype), rtol=tolerance, atol=tolerance * scale)
        assert got.is_contiguous()


# -- values -----------------------------------------------------------------------------------------------------


@pytest.mark.slow  # g++ compiles both directions
@pytest.mark.compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_cpp_kernel_gives_what_the_reference_gives(dtype):
    assert_kernel_is_right("cpp", dtype)


@pytest.mark.slow  # it simulates many sizes
@pytest.mark.compiler
def test_cuda_kernels_are_right_in_the_simulator(run_python):
    # A process of its own: whether the simulator may be chosen is read once.
    run_python(
        """
        import torch
        from tests.gallery.test_lltm import assert_kernel_is_right, assert_views_are_right
        # More rows than a group, more columns than a tile, more rows than a small step has or one block sums.
        sizes = ((3, 5, 7), (20, 3, 7), (2, 3, 130), (70, 2, 7), (300, 2, 8))
        # Tiles of each kind, more columns of x than of the state: float32 has tiles.
        assert_kernel_is_right("cuda", torch.float32, sizes=((70, 36, 28), (65, 36, 100), (70, 100, 12)))
        for dtype in (torch.float32, torch.bfloat16):
            assert_kernel_is_right("cuda", dtype, sizes=sizes)
            assert_kernel_is_right("cuda_accessors", dtype, sizes=(sizes[0], sizes[2], sizes[4]))
        for kernel in ("cuda", "cuda_accessors"):
            assert_views_are_right(kernel)
        """,
        env={"OPWRIGHT_CUDA_SIMULATOR": "1"},
    )


@pytest.mark.slow  # it interprets many sizes
@pytest.mark.triton
def test_triton_kernels_are_right_in_the_interpreter(run_python):
    run_python(
        """
        import torch
        from tests.gallery.test_lltm import assert_kernel_is_right
        sizes = ((3, 5, 7), (2, 3, 40), (0, 4, 6), (5, 4, 0))
        for dtype in (torch.float64, torch.float32, torch.float16):
            assert_kernel_is_right("triton", dtype, sizes=sizes)
        # More rows than one program sums, which takes the interpreter seconds.
        assert_kernel_is_right("triton", torch.float32, sizes=[(300, 2, 8)])
        """,
        env={"TRITON_INTERPRET": "1"},
    )


@pytest.mark.triton
@pytest.mark.parametrize("dtype", quick(["fp16", "bf16", "fp32", "fp64"], 2))
@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("forward_kernel", {"ROWS": 8, "COLUMNS": 128}),
        ("backward_kernel", {"ROWS": 8, "COLUMNS": 128}),
        ("backward_kernel", {"ROWS": 32, "COLUMNS": 32, "grad_c": None}),
    ],
)
def test_triton_kernels_compile_for_sm_90(name, constants, dtype):
    import importlib

    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module("opwright.gallery.lltm.lltm_triton"), name)
    signature = {a: "i64" if a in ("b", "s", "per_program") else f"*{dtype}" for a in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    assert compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.triton
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", GPU_KERNELS)
def test_kernels_are_right_on_a_gpu(kernel, dtype):
    assert_kernel_is_right(kernel, dtype, "cuda", [*SIZES, (70_000, 3, 9), (512, 300, 512)])


def shifted(tensor):
    """A view that begins one element into its memory."""
    return tensor.new_full((tensor.numel() + 1,), torch.nan)[1:].view_as(tensor).copy_(tensor)


def strided(tensor):
    """Every second element of twice as many columns."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def transposed(tensor):
    """Column after column in memory."""
    return tensor.t().contiguous().t()


def columns_of_wider(tensor):
    """Rows that are further apart than they are long, and begin at multiples of 16 bytes."""
    wider = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 8), torch.nan)
    return wider[..., 4:-4].copy_(tensor)


def misaligned_columns(tensor):
    """The same, and begin one element later."""
    return tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 8), torch.nan)[..., 5:-3].copy_(tensor)


def assert_views_are_right(kernel, device="cpu"):
    """Every argument in another layout, and each alone."""
    for b in (4, 70):
        weight, inputs = next(wanted_columns(b, 8, 16, device=device))
        grad_h, grad_c, *rest = backward_arguments(b, 16, device=device)
        for operator, given in (
            (lltm, arguments(b, 8, 16, device=device)),
            (lltm_backward_pointwise, (grad_h, grad_c, *rest)),
            (lltm_backward, (grad_h, grad_c, weight, inputs, *rest)),
        ):
            expected = run(operator, kernel, given)
            for layout in (shifted, strided, transposed, columns_of_wider, misaligned_columns):
                for which in (range(len(given)), *([n] for n in range(len(given)))):
                    views = [layout(t) if n in which else t for n, t in enumerate(given)]
                    assert_all_close(run(operator, kernel, views), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.triton
@pytest.mark.parametrize("kernel", GPU_KERNELS)
def test_views_that_are_not_aligned_are_right(kernel):
    assert_views_are_right(kernel, "cuda")


@pytest.mark.slow  # every layout of every argument
@pytest.mark.compiler
def test_views_of_any_layout_are_right():
    assert_views_are_right("cpp")


def test_a_step_is_small_up_to_some_rows_and_some_weights():
    is_small = lltm_cuda.is_small
    assert is_small(64, 128, 160)
    assert is_small(1, 1, 0)
    assert not is_small(65, 128, 160)
    assert not is_small(0, 128, 160)
    assert not is_small(4, 0, 32)
    most = lltm_cuda.MOST_WEIGHTS // 3
    assert is_small(4, 1, most)
    assert not is_small(4, 1, most + 1)
    assert not is_small(4, most + 1, 0)


def test_a_step_is_middle_up_to_some_rows_and_some_weights_in_float32():
    is_middle, most = lltm_cuda.is_middle, lltm_cuda.MOST_TILED_WEIGHTS // 3
    assert is_middle(512, 1, most, torch.float32)
    assert not is_middle(513, 1, most, torch.float32)
    assert not is_middle(512, 1, most + 1, torch.float32)
    assert not is_middle(0, 4, 4, torch.float32)
    assert not is_middle(4, 0, 4, torch.float32)
    assert not any(is_middle(4, 4, 4, dtype) for dtype in FLOATS if dtype != torch.float32)


def test_rows_are_loaded_in_fours_where_sizes_and_addresses_allow():
    matrix = torch.zeros(6, 24)
    assert lltm_cuda.in_fours(matrix, matrix[:, 4:12], matrix[:, :0], torch.zeros(6, 0))
    for other in (torch.zeros(6, 22), matrix[:, :10], matrix[:, 2:10], shifted(matrix)):
        assert not lltm_cuda.in_fours(matrix, other)


def test_columns_of_a_weight_are_copied_only_where_rows_do_not_begin_in_fours():
    weight, most = torch.zeros(6, 24), lltm_cuda.MOST_STRIDE
    far = torch.zeros(most + 4).as_strided((2, 4), (most, 1))
    for columns in (weight, weight[:, 4:12], weight[:, 2:10], weight[:, :0], far.as_strided((2, 4), (most - 4, 1))):
        assert lltm_cuda.rows_in_fours(columns) is columns
    for columns in (transposed(weight), strided(weight), torch.zeros(6, 22)[:, :8], far):
        assert lltm_cuda.rows_in_fours(columns) is not columns


class Launches:
    """In place of kernels, by dtype and then by grid and block: notes each launch, and runs nothing."""

    def __init__(self, name, launched):
        self.name, self.launched = name, launched

    def __getitem__(self, key):
        return self

    def __call__(self, *arguments):
        self.launched.append(self.name)


@pytest.mark.parametrize(
    ("size", "kernels"),
    [
        ((40, 5, 7), ["FORWARD_SMALL", "BACKWARD_SMALL"]),
        ((70, 4, 8), ["FORWARD_TILES", "BACKWARD", "PRODUCTS_TILES"]),
        ((70, 5, 7), ["FORWARD", "BACKWARD"]),  # and torch's products
    ],
)
def test_small_and_middle_steps_take_few_launches(size, kernels, monkeypatch):
    launched = []
    for name in ("FORWARD", "BACKWARD", "FORWARD_SMALL", "BACKWARD_SMALL", "FORWARD_TILES", "PRODUCTS_TILES"):
        monkeypatch.setattr(lltm_cuda, name, Launches(name, launched))
    rows, _, columns = size
    lltm_cuda.forward(*arguments(*size))
    grad_h, grad_c, *rest = backward_arguments(rows, columns)
    lltm_cuda.backward(grad_h, grad_c, *next(wanted_columns(*size)), *rest)
    assert launched == kernels


def test_tiles_serve_any_layout_and_any_columns_of_a_middle_step(monkeypatch):
    launched = []
    for name in ("FORWARD", "FORWARD_TILES", "PRODUCTS_TILES"):
        monkeypatch.setattr(lltm_cuda, name, Launches(name, launched))
    for size in ((70, 4, 8), (70, 0, 8)):
        x, weight, bias, h, c = arguments(*size)
        for layout in (torch.clone, strided, transposed, columns_of_wider, misaligned_columns):
            lltm_cuda.forward(layout(x), weight, bias, layout(h), layout(c))
    assert launched == ["FORWARD_TILES"] * 10
    launched.clear()
    lltm_cuda.forward(x, transposed(weight), bias, h, c)  # torch's product takes it as it is
    assert launched == ["FORWARD"]
    launched.clear()
    grad_gates = torch.zeros(70, 24)
    for weight, inputs in itertools.islice(wanted_columns(70, 4, 8), 3):
        lltm_cuda.products(grad_gates, weight, inputs)
    assert launched == ["PRODUCTS_TILES"] * 3
    found = lltm_cuda.products(grad_gates, torch.zeros(24, 0), torch.zeros(70, 0))  # nothing to launch
    assert [tuple(t.shape) for t in found] == [(70, 0), (24, 0)]
    assert len(launched) == 3


def launched_by(call):
    """The names of the kernels, as the GPU's own profiler has them."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.parametrize("kernel", ["cuda", "cuda_host"])
@pytest.mark.parametrize(
    ("size", "forward", "backward"),
    [
        ((40, 5, 7), ["lltm_small_forward"], ["lltm_small_backward"]),
        ((70, 4, 8), ["lltm_tiles_forward"], ["lltm_backward", "lltm_tiles_products"]),
        ((300, 4, 8), ["lltm_tiles_forward"], ["lltm_backward", "", "lltm_tiles_products"]),  # parts of a sum are added
    ],
)
def test_a_gpu_sees_few_launches_of_small_and_middle_steps(kernel, size, forward, backward):
    rows, _, columns = size
    grad_h, grad_c, *rest = backward_arguments(rows, columns, device="cuda")
    given = (grad_h, grad_c, *next(wanted_columns(*size, device="cuda")), *rest)
    step = arguments(*size, device="cuda")
    for call, expected in (
        (lambda: lltm.kernels[kernel](*step), forward),
        (lambda: lltm_backward.kernels[kernel](*given), backward),
    ):
        found = launched_by(call)
        assert len(found) == len(expected)
        assert all(name in launch for name, launch in zip(expected, found, strict=True))


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.parametrize("kernel", GPU_KERNELS)
def test_the_gradient_of_the_bias_repeats_bit_by_bit(kernel):
    for b in (50, 1000):
        grad_h, grad_c, *rest = backward_arguments(b, 77, device="cuda")
        given = (grad_h, grad_c, *next(wanted_columns(b, 3, 77, device="cuda")), *rest)
        first = lltm_backward.kernels[kernel](*given)[2]
        assert all(torch.equal(first, lltm_backward.kernels[kernel](*given)[2]) for _ in range(5))


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.parametrize("kernel", ["cuda", pytest.param("cuda_host", marks=pytest.mark.nvcc)])
@pytest.mark.parametrize("size", [(40, 36, 60), (256, 36, 100), (400, 36, 100)])
def test_all_of_small_and_middle_steps_repeats_bit_by_bit(kernel, size):
    rows, _, columns = size
    grad_h, grad_c, *rest = backward_arguments(rows, columns, device="cuda")
    given = (grad_h, grad_c, *next(wanted_columns(*size, device="cuda")), *rest)
    step = arguments(*size, device="cuda")
    first = (*lltm.kernels[kernel](*step), *lltm_backward.kernels[kernel](*given))
    for _ in range(5):
        again = (*lltm.kernels[kernel](*step), *lltm_backward.kernels[kernel](*given))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elus_and_tanhs_of_small_and_large_values_are_right(dtype):
    values = torch.tensor([0.0, 1e-30, 1e-6, 0.1, 0.2499, 0.25, 0.2501, 1.0, 9.0, 50.0, 1e4], dtype=dtype)
    values = torch.cat((values, -values))
    s = len(values)
    x, h, c = torch.zeros(1, 0, dtype=dtype), torch.zeros(1, s, dtype=dtype), torch.zeros(1, s, dtype=dtype)
    weight = torch.zeros(3 * s, s, dtype=dtype)
    bias = torch.cat((torch.full((2 * s,), 100.0, dtype=dtype), values))  # both gates are open
    h_new, c_new = lltm.kernels["cpp"](x, weight, bias, h, c)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(c_new[0], torch.nn.functional.elu(values), rtol=8 * eps, atol=0)
    torch.testing.assert_close(h_new[0], torch.nn.functional.elu(values).tanh(), rtol=8 * eps, atol=0)


# -- the contract's checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"c": torch.zeros(3, 6)}, r"dim 's' of argument 'c' must be 7 \(as in argument 'h'\), got 6"),
        (
            {"weight": torch.zeros(12, 21)},
            r"dim '3\*s' of argument 'weight' must be 21 \(3\*s with s=7\), got 12",
        ),
        ({"bias": torch.zeros(20)}, r"dim '3\*s' of argument 'bias' must be 21"),
        ({"x": torch.zeros(4, 5)}, r"dim 'b' of argument 'h' must be 4 \(as in argument 'x'\), got 3"),
        ({"h": torch.zeros(3, 7, dtype=torch.float64)}, "float64"),
        ({"c": torch.zeros(3, 7, device="meta")}, "argument 'c' must be on cpu, as 'x' is, got meta"),
        ({"x": torch.zeros(5)}, "argument 'x'"),
        ({"h": torch.zeros(3, 7, dtype=torch.int64)}, "int64"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_what_is_wrong(changed, message):
    names = ("x", "weight", "bias", "h", "c")
    given = dict(zip(names, arguments(3, 5, 7), strict=True)) | changed
    with pytest.raises(ArgumentError, match=message):
        lltm(**given)


@pytest.mark.slow
@pytest.mark.compiler
def test_what_is_not_contiguous_gives_the_same():
    given = arguments(6, 5, 7)
    views = [strided(t) for t in given]
    assert not any(t.is_contiguous() for t in views)
    for out, expected in zip(lltm(*views), lltm(*given), strict=True):
        torch.testing.assert_close(out, expected)
        assert out.is_contiguous()


@pytest.mark.nvrtc
@pytest.mark.parametrize("instance", ["lltm_forward<float, 4>", "lltm_backward<float, 4, float>"])
def test_the_pointer_kernels_load_16_bytes_at_once(instance):
    code, _ = cuda.entry("sm_90", instance)
    text = code.ptx.read_text()
    assert "ld.global.nc.v4" in text
    assert "st.global.wb.v4" in text


@pytest.mark.compiler
def test_an_accessor_sees_an_index_out_of_bounds_in_a_debug_build():
    from opwright.errors import SimulatorError

    checked = ow.cuda_module(cuda.source.path, options=["-DCHECK_BOUNDS"])
    gates, c = torch.randn(3, 12), torch.randn(3, 4)
    h_new, c_new = torch.empty_like(c), torch.empty_like(c)
    run = checked["lltm_forward_accessors<float>"][(1, 1), (LANES, 8)]
    run(gates, c, h_new, c_new, 3, 4, 4, 1)
    assert_all_close((h_new, c_new), step_of(gates, c))
    # As if the buffers were flat: all of the accesses are inside of them, but not inside of a row.
    text = cuda.source.text.replace(
        "gates.at(row, column + 2 * columns), c.at(row, column))",
        "gates.at(row, column + 2 * columns), c.at(row, column + 1))",
    )
    wrong = ow.cuda_module(text, options=["-DCHECK_BOUNDS", f"-I{cuda.source.path.parent}"])
    with pytest.raises(SimulatorError, match="assert"):
        wrong["lltm_forward_accessors<float>"][(1, 1), (LANES, 8)](gates, c, h_new, c_new, 3, 4, 4, 1)


def step_of(gates, c):
    """The reference of the pointwise part."""
    input_gate, output_gate, candidate = gates.chunk(3, 1)
    c_new = c + torch.nn.functional.elu(candidate) * input_gate.sigmoid()
    return c_new.tanh() * output_gate.sigmoid(), c_new


def test_the_launchers_know_the_kernels_blocks():
    small, tiles = lltm_cuda.small.source, lltm_cuda.tiles.source
    text = "".join((cuda.source.text, small.text, tiles.text, *[header.text for header in small.headers().values()]))
    for name in (
        *("LANES", "ROWS", "WARPS", "GROUP", "OWN", "MOST_ROWS", "ACROSS", "DOWN", "PARTS", "MOST_TILED_ROWS"),
        *("FORWARD_ROWS", "FORWARD_COLUMNS", "INPUTS_ROWS", "WEIGHT_ROWS", "TILE_COLUMNS"),
    ):
        assert f"constexpr int {name} = {getattr(lltm_cuda, name)};" in text
    for name in ("MOST_WEIGHTS", "MOST_TILED_WEIGHTS", "MOST_STRIDE"):
        assert f"constexpr int {name} = 1 << {getattr(lltm_cuda, name).bit_length() - 1};" in text


# -- gradients --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["in one call", "in parts"])
def in_one_call(request, monkeypatch):
    """A backward as that of few gates, and as that of many."""
    if not request.param:
        monkeypatch.setattr(source, "MOST_IN_ONE_CALL", 0)
    return request.param


def with_grad(tensors, *, only=None):
    return [t.detach().requires_grad_(only is None or n in only) for n, t in enumerate(tensors)]


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_call")
def test_first_and_second_derivatives_of_all_inputs_are_right(device):
    given = with_grad(arguments(3, 2, 5, torch.float64, device))
    assert torch.autograd.gradcheck(lltm, given)
    assert torch.autograd.gradgradcheck(lltm, given)
    assert torch.autograd.gradcheck(lambda *a: lltm(*a)[0], given)
    assert torch.autograd.gradcheck(lambda *a: lltm(*a)[1], given)


@pytest.mark.usefixtures("in_one_call")
def test_a_graph_that_is_retained_goes_back_again_and_another_says_that_it_cannot(device):
    given = with_grad(arguments(3, 2, 5, torch.float64, device))
    loss = sum(o.square().sum() for o in lltm(*given))
    first, again = (torch.autograd.grad(loss, given, retain_graph=True) for _ in range(2))
    assert_all_close(again, first)
    torch.autograd.grad(loss, given)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, given)


def test_derivatives_of_the_backward_are_right(device):
    grad_h, grad_c, *rest = backward_arguments(3, 5, torch.float64, device)
    pointwise = with_grad((grad_h, grad_c, *rest))
    whole = with_grad((grad_h, grad_c, *next(wanted_columns(3, 2, 5, torch.float64, device)), *rest))
    for operator, given in ((lltm_backward_pointwise, pointwise), (lltm_backward, whole)):
        assert torch.autograd.gradcheck(operator, given)
        assert torch.autograd.gradcheck(lambda *a, operator=operator: operator(None, *a), given[1:])


def gradients(function, given, grads):
    outputs = function(*given)
    return torch.autograd.grad(outputs, [t for t in given if t.requires_grad], grads)


def incoming(b, s, device):
    """Gradients of (h, c) in several layouts."""
    of = torch.randn(b, s, dtype=torch.float64, device=device)
    yield of, of + 1
    yield of.t().contiguous().t(), of.repeat(1, 2)[:, ::2]
    yield of[:1].expand(b, s), torch.ones((), dtype=torch.float64, device=device).expand(b, s)


def test_gradients_of_any_layout_are_taken(device):
    given = with_grad(arguments(4, 3, 6, torch.float64, device))
    for grads in incoming(4, 6, device):
        expected = gradients(lambda *a: lltm.__wrapped__(*a)[:2], given, grads)
        assert_all_close(gradients(lltm, given, grads), expected)


@pytest.mark.usefixtures("in_one_call")
def test_an_output_that_nothing_depends_on_is_left_out(device):
    given = with_grad(arguments(4, 3, 6, torch.float64, device))
    for n in (0, 1):
        got = torch.autograd.grad(lltm(*given)[n].sum(), given)
        assert_all_close(got, torch.autograd.grad(lltm.__wrapped__(*given)[n].sum(), given))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (0, 3), (1, 2), (0, 1, 2, 3, 4)])
def test_only_the_gradients_that_are_wanted_are_computed(wanted, in_one_call, device):
    from torch.utils.flop_counter import FlopCounterMode

    b, i, s = 4, 3, 6
    given = with_grad(arguments(b, i, s, torch.float64, device), only=wanted)
    expected = torch.autograd.grad(sum(o.sum() for o in lltm.__wrapped__(*given)[:2]), [given[n] for n in wanted])
    total = sum(o.sum() for o in lltm(*given))
    with FlopCounterMode(display=False) as pointwise:
        lltm_backward_pointwise(*backward_arguments(b, s, torch.float64, device))
    with FlopCounterMode(display=False) as counter:
        got = torch.autograd.grad(total, [given[n] for n in wanted])
    assert_all_close(got, expected)
    multiplied = i * (0 in wanted) + s * (3 in wanted) + (s + i) * (1 in wanted)
    counted = [str(name) for name in counter.get_flop_counts()["Global"]]
    assert counter.get_total_flops() - pointwise.get_total_flops() == 2 * b * 3 * s * multiplied
    assert ("gallery.lltm_backward" in counted) == in_one_call


def test_with_weights_that_need_no_gradient_the_inputs_are_not_kept(device):
    x, weight, *rest = arguments(4, 3, 6, device=device)
    for frozen in (True, False, True):
        h, _ = lltm(x.requires_grad_(), weight.requires_grad_(not frozen), *rest)
        assert (h.grad_fn.saved_tensors[1] is None) == frozen


def test_the_gradients_of_h_and_x_are_views_of_one_product(device):
    given = with_grad(arguments(4, 3, 6, device=device))
    x, h = torch.autograd.grad(lltm(*given)[0].sum(), (given[0], given[3]))
    assert x.untyped_storage().data_ptr() == h.untyped_storage().data_ptr()


# -- the module -------------------------------------------------------------------------------------------------


def pair_of_modules(device, dtype=torch.float64, **options):
    torch.manual_seed(0)
    plain, ours = ReferenceLLTM(3, 6), LLTM(3, 6, **options)
    ours.load_state_dict(plain.state_dict())
    return plain.to(device, dtype), ours.to(device, dtype)


def step_gradients(module, given):
    x, h, c = given
    outputs = module(x, (h, c))
    return *outputs, *torch.autograd.grad(sum(o.sin().sum() for o in outputs), (*given, *module.parameters()))


def module_inputs(device, dtype=torch.float64, b=4):
    x, _, _, h, c = arguments(b, 3, 6, dtype, device)
    return with_grad((x, h, c))


def test_the_module_is_the_plain_module(device):
    plain, ours = pair_of_modules(device)
    given = module_inputs(device)
    assert_all_close(step_gradients(ours, given), step_gradients(plain, given))
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in plain.named_parameters()] == ["weights", "bias"]
    plain.load_state_dict(ours.state_dict())
    ReferenceLLTM(3, 6).load_state_dict(ours.state_dict())
    assert isinstance(ours, nn.Module)


@pytest.mark.slow  # it compiles
def test_any_kernel_can_stand_behind_the_module(device):
    names = ("cuda", "cuda_accessors", "triton") if device == "cuda" else ("cpp",)
    given = module_inputs(device)
    for name in names:
        plain, ours = pair_of_modules(device, kernel=name)
        assert_all_close(step_gradients(ours, given), step_gradients(plain, given))
        assert f"kernel={name!r}" in repr(ours)
        assert [*lltm_with(name).kernels] == [name]
        operator = getattr(torch.ops.gallery, f"lltm_{name}")
        state = given[1:]
        assert torch.equal(operator(given[0], ours.weights, ours.bias, *state)[0], ours(given[0], state)[0])


def test_a_kernel_that_is_not_there_is_named():
    with pytest.raises(
        ow.errors.KernelError, match=r"must be one of .'cpp', 'cuda', 'cuda_accessors'.*, got 'fortran'"
    ):
        LLTM(3, 6, kernel="fortran")


def test_modules_are_copied_and_pickled():
    for options in ({}, {"kernel": "cpp"}, {"cuda_graph": True}):
        ours = LLTM(3, 6, **options)
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert repr(other) == repr(ours)
            assert torch.equal(other.weights, ours.weights)


@pytest.mark.slow  # Inductor compiles four times
@pytest.mark.usefixtures("in_one_call")
@pytest.mark.parametrize("kernel", [None, "cpp"])
def test_it_compiles_whole_forward_and_backward(kernel, device, compiled):
    plain, ours = pair_of_modules(device, kernel=kernel)
    given = module_inputs(device)
    assert_all_close(step_gradients(compiled(ours), given), step_gradients(plain, given))


def test_the_compiled_backward_keeps_to_what_was_saved(device):
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def look(graph, _inputs):
        seen.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return torch._functorch.aot_autograd.make_boxed_func(graph.forward)

    ours = pair_of_modules(device)[1]
    step_gradients(torch.compile(ours, backend=aot_autograd(fw_compiler=look), fullgraph=True), module_inputs(device))
    forward, backward = ([name for name in names if "gallery" in name] for names in seen)
    assert forward == ["gallery.lltm.default"]
    assert backward == ["gallery.lltm_backward.default"]
    assert not any("mm" in name or "sigmoid" in name for name in seen[1])


def test_autocast_computes_in_its_dtype(device):
    plain, ours = pair_of_modules(device, torch.float32)
    x, h, c = given = module_inputs(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        outputs = ours(x, (h, c))
        assert [o.dtype for o in outputs] == [torch.bfloat16] * 2
        got = torch.autograd.grad(sum(o.float().sum() for o in outputs), (*given, *ours.parameters()))
    assert {g.dtype for g in got} == {torch.float32}
    expected = torch.autograd.grad(sum(o.sum() for o in plain(x, (h, c))), (*given, *plain.parameters()))
    assert_all_close(got, expected, rtol=0.05, atol=0.05)


def test_an_empty_batch_has_empty_states_and_zero_gradients(device):
    ours = pair_of_modules(device)[1]
    h, c, grad_x, grad_h, grad_c, grad_weights, grad_bias = step_gradients(ours, module_inputs(device, b=0))
    assert h.shape == c.shape == grad_h.shape == grad_c.shape == (0, 6)
    assert grad_x.shape == (0, 3)
    assert not grad_weights.any()
    assert not grad_bias.any()


# -- CUDA graphs --------------------------------------------------------------------------------------------------


def test_without_a_gpu_cuda_graphs_are_refused():
    ours = LLTM(3, 6, cuda_graph=True)
    x, h, c = module_inputs("cpu", torch.float32)
    with pytest.raises(ow.errors.ArgumentError, match="need every tensor on one GPU, but they are on cpu"):
        ours(x, (h, c))


def sequence_gradients(module, xs, h, c):
    states = []
    for x in xs:
        h, c = module(x, (h, c))
        states.append(h)
    return *states, *torch.autograd.grad(sum(s.sin().sum() for s in states), [*module.parameters(), xs])


@pytest.mark.gpu
@pytest.mark.nvrtc
@pytest.mark.parametrize("kernel", [None, *GPU_KERNELS])
def test_graphs_give_what_eager_gives_over_a_sequence(kernel):
    plain, ours = pair_of_modules("cuda", kernel=kernel, cuda_graph=True)
    for seed in range(3):  # captured first, then replayed with other values
        generator = torch.Generator().manual_seed(seed)
        xs = torch.randn(5, 4, 3, dtype=torch.float64, generator=generator).cuda().requires_grad_()
        h = c = torch.zeros(4, 6, dtype=torch.float64, device="cuda")
        assert_all_close(sequence_gradients(ours, xs, h, c), sequence_gradients(plain, xs, h, c))
    assert ours._step.captured == 5


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_graphs_see_an_optimisers_steps_and_gradients_accumulate():
    plain, ours = pair_of_modules("cuda", cuda_graph=True)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, ours)]
    x, h, c = (t.detach() for t in module_inputs("cuda"))
    for step in range(6):
        for module, optimiser in zip((plain, ours), optimisers, strict=True):
            for _ in range(2):
                sum(o.sum() for o in module(x, (h, c))).backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=step % 2 == 0)
    assert_all_close(ours.parameters(), plain.parameters())


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_graphs_take_tensors_from_anywhere_in_any_layout():
    plain, ours = pair_of_modules("cuda", cuda_graph=True)
    layouts = [torch.clone, shifted, strided, transposed, lambda t: torch._neg_view(-t)]
    kept = []  # so that each has an address of its own
    for turn in range(3):
        for layout in layouts:
            given = [layout(t.detach() + turn).requires_grad_() for t in module_inputs("cuda")]
            grads = [layout(torch.randn_like(t)) for t in given[1:]]
            both = [torch.autograd.grad(m(given[0], tuple(given[1:])), given, grads) for m in (ours, plain)]
            assert_all_close(*both)
            kept += [*given, *grads]
    given[0].data += 1  # in place: the address stays
    assert_all_close(*[m(given[0], tuple(given[1:])) for m in (ours, plain)])
    for only in range(2):  # the other state has no gradient
        both = [torch.autograd.grad(m(given[0], tuple(given[1:]))[only].sum(), given) for m in (ours, plain)]
        assert_all_close(*both)


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_a_step_of_graphs_is_one_launch_each_way():
    ours = pair_of_modules("cuda", cuda_graph=True)[1]
    given = [module_inputs("cuda") for _ in range(2)]
    grads = [[torch.randn_like(t) for t in g[1:]] for g in given]
    for n in range(2):
        torch.autograd.grad(ours(given[n][0], tuple(given[n][1:])), given[n], grads[n])
    with torch.profiler.profile() as profile:
        torch.autograd.grad(ours(given[0][0], tuple(given[0][1:])), given[0], grads[0])
        torch.cuda.synchronize()
    calls = [event.name for event in profile.events() if re.match("cu(da)?(Graph)?(Launch|Mem)", event.name)]
    assert calls == ["cudaGraphLaunch"] * 2


@pytest.mark.gpu
@pytest.mark.nvrtc
def test_graphs_of_other_shapes_and_under_autocast():
    plain, ours = pair_of_modules("cuda", torch.float32, cuda_graph=True)
    for b in (1, 4, 7, 4):
        given = module_inputs("cuda", torch.float32, b=b)
        assert_all_close(step_gradients(ours, given), step_gradients(plain, given))
    x, h, c = given
    with torch.autocast("cuda", torch.bfloat16):
        outputs = ours(x, (h, c))
    assert outputs[0].dtype == torch.bfloat16
    got = torch.autograd.grad(outputs[0].float().sum(), ours.weights)[0]
    assert got.dtype == torch.float32
