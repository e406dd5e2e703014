"""Launchers around kernels of numba.cuda."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.base import launch_for_calls_like
from opwright.backends.build_tools import build_tools
from opwright.backends.gpu.recording import RecordableLauncher
from opwright.backends.numba.gpu_kernel import compile_for, is_gpu_function, launches_are_ours
from opwright.errors import CompileError, KernelError, LaunchError
from opwright.fast_path.recorded_launch import unknown_in

pytest.importorskip("numba", reason="Numba is not installed")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
cuda: Any = importlib.import_module("numba.cuda")
pytest.importorskip("numba.cuda.np.arrayobj", reason="this numba-cuda and this NumPy do not fit", exc_type=Exception)


@cuda.jit
def scale_kernel(x, a, out):  # type: ignore[no-untyped-def]
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = a * x[i, j]


@cuda.jit
def past_the_end(x, a, out):  # type: ignore[no-untyped-def]
    i, j = cuda.grid(2)
    if i <= x.shape[0] and j < x.shape[1]:
        out[i, j] = a * x[i, j]


@cuda.jit
def row_sums(x, out):  # type: ignore[no-untyped-def]
    partial = cuda.shared.array(128, x.dtype)
    sum_ = x.dtype.type(0)
    for j in range(cuda.threadIdx.x, x.shape[1], 128):
        sum_ += x[cuda.blockIdx.x, j]
    partial[cuda.threadIdx.x] = sum_
    width = 64
    while width > 0:
        cuda.syncthreads()
        if cuda.threadIdx.x < width:
            partial[cuda.threadIdx.x] += partial[cuda.threadIdx.x + width]
        width //= 2
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = partial[0]


@cuda.jit
def of_every_kind(x, pair, count, flag, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if flag and i < x.size and i < count:
        out[i] = math.exp(x[i]) * pair[0] + pair[1]


def scale(namespace: str, kernel: Any = scale_kernel) -> ow.Op:
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, "m n"], a: float = 0.5) -> Float[Tensor, "m n"]:
        return a * x

    @scale.numba(devices=["cuda"], name="numba")
    def launch(x: Tensor, a: float) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        kernel[(ow.cdiv(x.shape[0], 16), ow.cdiv(x.shape[1], 16)), (16, 16)](x, a, out)
        return out

    return scale


def test_arguments_of_every_kind_are_parameters_that_are_known() -> None:
    array = (torch.float32, 1, "C")
    code = compile_for(of_every_kind, (array, (int, float), int, bool, array), (9, 0), build_tools())
    (entry,) = code.entries
    assert [p.kind for p in entry.parameters[:7]] == ["integer"] * 4 + ["pointer"] + ["integer"] * 2
    assert [p.kind for p in entry.parameters[7:11]] == ["integer", "floating", "integer", "bool"]
    assert "sm_90" in code.file.read_text()


def test_what_numba_cannot_compile_is_told() -> None:
    with pytest.raises(CompileError, match="scale_kernel: Numba cannot compile it: ") as refused:
        compile_for(scale_kernel, (float, float, float), (9, 0), build_tools())
    assert refused.value.log


def test_a_numba_that_cannot_be_imported_is_not_the_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(*_: Any, **options: Any) -> None:
        exec("raise AttributeError('no row_stack')", {})  # as a module of Numba's does beside a later NumPy

    monkeypatch.setattr(cuda, "compile", compile)
    with pytest.raises(KernelError, match=r"numba-cuda \S+ cannot be imported with NumPy \S+: no row_stack") as refused:
        compile_for(scale_kernel, (float, float, float), (8, 0), build_tools())
    assert not isinstance(refused.value, CompileError)


def test_options_that_would_be_lost_are_refused() -> None:
    kinds = ((torch.float32, 2, "C"), float, (torch.float32, 2, "C"))
    for options in ({"debug": True, "opt": False}, {"link": ["x.o"]}, {"max_registers": 32}):
        with pytest.raises(KernelError, match=r"cuda\.jit\(.*\) is not taken"):
            compile_for(cuda.jit(**options)(scale_kernel.py_func), kinds, (9, 0), build_tools())
    compile_for(cuda.jit(fastmath=True, lineinfo=True)(scale_kernel.py_func), kinds, (9, 0), build_tools())


def test_a_tuple_without_items_is_no_parameter() -> None:
    array = (torch.float32, 1, "C")
    (entry,) = compile_for(cuda.jit(lambda x, rest: None), (array, ()), (9, 0), build_tools()).entries
    assert len(entry.parameters) == 7


@pytest.mark.parametrize(
    ("attach", "message"),
    [
        (lambda op: op.numba(scale_kernel, devices=["cuda"]), "must take .x, a., got .x, a, out.|is a kernel itself"),
        (lambda op: op.numba(lambda x, a: x, devices=["cpu", "cuda"]), "for a CPU or a launcher for a GPU"),
        (lambda op: op.numba(lambda x, a: x, devices=["cuda"], parallel=True), "parallel= is for CPU kernels"),
    ],
    ids=["a kernel", "two devices", "an option"],
)
def test_mistakes_are_found_when_a_kernel_is_attached(
    namespace: str, attach: Callable[[ow.Op], Any], message: str
) -> None:
    with pytest.raises(KernelError, match=message) as refused:
        attach(scale(namespace))
    assert refused.value.fix


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (lambda x: scale_kernel[1, 32](x, 1.0, x), "scale_kernel got a tensor on cpu"),
        (lambda x: scale_kernel[1, 32](1.0), "scale_kernel got no tensor"),
        (lambda x: scale_kernel[1](x), "scale_kernel: a launch must be .grid, block. with at most two more, got 1"),
        (lambda x: scale_kernel[1, 32, 7](x), "a stream of its own, 7"),
        (lambda x: scale_kernel.configure(1, 32, 7)(x), "a stream of its own, 7"),
        (lambda x: scale_kernel.forall(-1)(x), "forall"),
        (lambda x: scale_kernel.forall(ntasks=1)(x, ()), "a tensor on cpu"),
        (lambda x: cuda.jit(scale_kernel.py_func)[[2], [32]](x), "a tensor on cpu"),  # nobody else holds the kernel
    ],
    ids=["a CPU tensor", "no tensor", "no block", "a stream", "configured", "negative", "for all", "lists"],
)
def test_mistakes_of_launches_are_told(launch: Callable[[Tensor], Any], message: str) -> None:
    with launches_are_ours(), pytest.raises(LaunchError, match=message) as refused:
        launch(torch.ones(2, 2))
    assert refused.value.fix


def test_outside_of_launchers_numba_launches_itself() -> None:
    with launches_are_ours():
        pass
    assert type(scale_kernel.configure).__module__ != "opwright"
    with pytest.raises(ValueError, match="griddim and blockdim"):
        scale_kernel[1,]


def test_such_a_launcher_can_be_repeated_without_python(namespace: str) -> None:
    def launch(x: Tensor, a: float) -> Tensor:
        out = torch.empty_like(x)
        scale_kernel[1, 32](x, a, out)
        return out

    launcher = RecordableLauncher(launch, kernels=lambda value: () if is_gpu_function(value) else None)
    assert unknown_in(launcher) is None


@pytest.mark.gpu
def test_it_gives_what_the_reference_gives(namespace: str) -> None:
    op = scale(namespace)
    for dtype in (torch.float16, torch.float32, torch.float64):
        x = torch.randn(70, 33, device="cuda", dtype=dtype)
        for each in (x, x.T, x[::2, 1:], x[:0], x[:1]):
            torch.testing.assert_close(op(each, 0.25), each * 0.25)
    x = torch.randn(8, 8, device="cuda", requires_grad=True)
    op(x, 3.0).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 3.0))


@pytest.mark.gpu
def test_later_calls_are_recorded_ones(namespace: str) -> None:
    op = scale(namespace)
    x = torch.randn(64, 64, device="cuda")
    launch: Any = launch_for_calls_like(op.kernels["numba"].load(), [x, 2.0])
    for _ in range(3):
        torch.testing.assert_close(launch(x, 2.0), x * 2.0)
    assert launch._run is not launch._launch, "it was given up"
    assert getattr(launch._run, "__name__", "") == "run", "it is not repeated"
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = op(x, 0.5)
    x.fill_(4.0)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == 2.0).all())


@pytest.mark.gpu
@pytest.mark.slow  # whole checks
def test_a_check_passes_the_right_and_finds_the_wrong_kernel(namespace: str) -> None:
    right = ow.check(scale(namespace), device="cuda").verdicts[0]
    assert right.status in ("pass", "thin"), right.findings
    wrong = ow.check(scale(f"{namespace}_wrong", past_the_end), device="cuda").verdicts[0]
    assert wrong.status == "fail"
    assert any("outside" in f.message or "past" in f.message or "illegal" in f.message for f in wrong.failures)


@pytest.mark.gpu
def test_sums_in_shared_memory_and_arguments_that_are_written(namespace: str) -> None:
    @ow.op(f"{namespace}::add_sums_")
    def add_sums_(x: Float[Tensor, "m n"], out: Annotated[Float[Tensor, " m"], ow.mutated]) -> None:
        out.copy_(x.sum(1))

    @add_sums_.numba(devices=["cuda"])
    def launch(x: Tensor, out: Tensor) -> None:
        row_sums[x.shape[0], 128](x, out)

    x, out = torch.randn(5, 1000, device="cuda"), torch.zeros(10, device="cuda")[::2]
    add_sums_(x, out)
    torch.testing.assert_close(out, x.sum(1))


@pytest.mark.gpu
def test_it_runs_on_the_current_stream_and_on_the_tensors_device(namespace: str) -> None:
    op = scale(namespace)
    x = torch.ones(2000, 2000, device="cuda")
    op(x, 2.0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.fill_(3.0)
        out = op(x, 2.0)
    side.synchronize()
    assert bool((out == 6.0).all())
    if torch.cuda.device_count() > 1:
        assert bool((op(x.to("cuda:1"), 2.0) == 6.0).all())
