"""Launches as one native function: the arguments of the driver, and the calls that are left to Python."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.backends.gpu.arguments import Packer
from opwright.backends.gpu.device_code import Parameter
from opwright.backends.native import native_call
from opwright.backends.native.native_call import ArgumentSource, GpuKernel, KernelArgument, NativeCall, NativeCalls
from opwright.backends.native.tensor_access import address_of
from opwright.errors import LaunchError
from tests.backends.native.imitations import OUT, LeftToPython, X, Y, call_like, function_for

pytestmark = pytest.mark.compiler


# -- with an imitated driver that records launches ---------------------------------------------------------------


FINE = {"refusal": 0, "device_now": -1}  # the index of the CPU


@pytest.fixture
def on_a_driver(native, kernels, monkeypatch):
    """A call that an imitated driver launches; it computes on the CPU."""
    functions = [kernels.cuLaunchKernel, kernels.current_stream, kernels.current_device]
    monkeypatch.setattr(native_call, "gpu_functions", lambda: tuple(map(address_of, functions)))
    for name, value in FINE.items():
        ctypes.c_int32.in_dll(kernels, name).value = value
    words = (OUT, X, Y, KernelArgument(ArgumentSource.CONSTANT, 5))
    return call_like(kernels.add, words, runs=(GpuKernel(1 << 40, (9, 8, 7), (6, 5, 4), 333, 4),))


def test_the_driver_gets_kernel_grid_block_shared_memory_stream_and_words(native, kernels, on_a_driver):
    x, y = torch.randn(5), torch.randn(5)
    assert torch.equal(function_for(native, on_a_driver)(x, y), x + y)
    assert list((ctypes.c_int64 * 9).in_dll(kernels, "launched")) == [1 << 40, 9, 8, 7, 6, 5, 4, 333, 77]


def test_what_the_driver_refuses_is_left_to_python(native, kernels, on_a_driver):
    call, x = function_for(native, on_a_driver), torch.ones(5)
    invalid_context, another_gpu = 201, 1
    for name, value in (("refusal", invalid_context), ("device_now", another_gpu)):
        ctypes.c_int32.in_dll(kernels, name).value = value
        with pytest.raises(LeftToPython):
            call(x, x)
        ctypes.c_int32.in_dll(kernels, name).value = FINE[name]
        assert torch.equal(call(x, x), x + x)


FLOATS = Parameter("pointer", 8, "const float*", (torch.float32,), 16)
BYTES = Parameter("pointer", 8, "void*")
SIZES = [
    Parameter("integer", 4, "int"), Parameter("integer", 8, "long long"), Parameter("unsigned", 8, "size_t"),
    Parameter("floating", 4, "float"), Parameter("floating", 8, "double"),
]  # fmt: skip


@pytest.fixture
def launch_of_anything(native, kernels, on_a_driver, monkeypatch):
    """A kernel called from Python: its arguments have no known types, and it has no outputs."""
    functions = [kernels.keep_parameters, kernels.current_stream, kernels.current_device]
    monkeypatch.setattr(native_call, "gpu_functions", lambda: tuple(map(address_of, functions)))
    packer = Packer("kernel", [FLOATS, BYTES, *SIZES])
    words = packer.native_arguments
    assert words is not None
    return packer, function_for(
        native, dataclasses.replace(on_a_driver, argument_count=7, outputs=(), kernel_arguments=words)
    )


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e300, -1e300, float("inf"), 0.1, -1.0, 3])
def test_a_launch_passes_what_python_would_pack(launch_of_anything, kernels, value):
    packer, launch = launch_of_anything
    for arguments in (
        (torch.ones(8)[4:], torch.ones(3, dtype=torch.bool)[1:], -5, -(2**40), 2**63 - 1, value, value),
        (torch.nn.Parameter(torch.ones(8)), torch.ones(()), 2**31 - 1, 2**63 - 1, 0, value, value),
        (torch.ones(8), torch.ones(0), -(2**31), -1, True, value, value),
    ):
        assert launch(*arguments) is None
        seen = (ctypes.c_int64 * 7).in_dll(kernels, "seen")
        for position, (parameter, word) in enumerate(zip(packer.parameters, packer.pack(arguments, -1), strict=True)):
            passed = ctypes.string_at(ctypes.addressof(seen) + 8 * position, parameter.size)
            assert passed == (word % (1 << 64)).to_bytes(8, "little")[: parameter.size], parameter


class Subclass(Tensor):
    """A tensor subclass, which may intercept operations."""


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, torch.ones(8).double()), (0, torch.ones(9)[1:]), (0, torch.ones(8, device="meta")), (0, None), (0, 16),
        (0, torch.ones(8).as_subclass(Subclass)), (0, torch.eye(2).to_sparse()), (1, torch.eye(2).to_sparse()),
        (2, 2**31), (2, -(2**31) - 1), (2, 1.0), (3, 2**63), (4, -1), (4, 2**63), (5, "x"), (6, None),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind_than_described_goes_to_python(launch_of_anything, position, value):
    _, launch = launch_of_anything
    arguments = [torch.ones(8), torch.ones(3), 1, 1, 1, 1.0, 1.0]
    launch(*arguments)
    arguments[position] = value
    with pytest.raises(LeftToPython):
        launch(*arguments)


def test_too_few_and_too_many_arguments_of_a_launch_go_to_python(launch_of_anything):
    _, launch = launch_of_anything
    for count in (0, 6, 8):
        with pytest.raises(LeftToPython):
            launch(*[1] * count)


def test_tensors_of_a_transform_go_to_python(launch_of_anything):
    _, launch = launch_of_anything

    def mapped(x: Tensor) -> Tensor:
        with pytest.raises(LeftToPython):
            launch(x, x, 1, 1, 1, 1.0, 1.0)
        return x

    torch.vmap(mapped)(torch.ones(4, 4))


def test_kernels_of_other_parameters_stay_in_python():
    assert Packer("kernel", []).native_arguments is None
    assert Packer("kernel", [Parameter("struct", 16, "Pair")]).native_arguments is None
    assert Packer("kernel", [Parameter("floating", 2, "__half")]).native_arguments is None


def test_without_a_driver_there_is_no_such_function(native, on_a_driver, monkeypatch):
    monkeypatch.setattr(native_call, "gpu_functions", lambda: None)
    assert native.function_for(on_a_driver) is None


# -- on a GPU -----------------------------------------------------------------------------------------------------


@pytest.fixture
def conv1d_from_ptx(monkeypatch):
    """The gallery's operator with its Mojo kernel from the PTX beside it, and the calls of it that went to Python."""
    from opwright.gallery.conv1d import conv1d

    in_python: list[Any] = []
    function_for = NativeCalls.function_for

    def listening(self: NativeCalls, description: NativeCall) -> Any:
        assert isinstance(description.runs, tuple)

        def count(*arguments: Any) -> Any:
            in_python.append(arguments)
            return description.fallback(*arguments)

        return function_for(self, dataclasses.replace(description, fallback=count))

    monkeypatch.setattr(NativeCalls, "function_for", listening)
    with conv1d.only("mojo_gpu"):
        yield conv1d, in_python


def called_twice(op: ow.Op, *arguments: Tensor) -> Tensor:
    """The result of the operator's third call, after which it has a native function for such calls."""
    for _ in range(2):
        op(*arguments)
    assert type(op.kernels["mojo_gpu"].load().for_calls_like(arguments)) is type(len)
    return op(*arguments)


@pytest.mark.gpu
def test_a_gpu_kernel_from_ptx_is_launched_natively_from_the_second_call_on(conv1d_from_ptx):
    op, in_python = conv1d_from_ptx
    for n in (1, 1000, 100_000):
        x, k = torch.randn(n, device="cuda"), torch.randn(7, device="cuda")
        torch.testing.assert_close(called_twice(op, x, k), op.contract.function(x, k))
    assert not in_python
    shifted = torch.randn(100_001, device="cuda")[1:]  # the same sizes, 4 bytes past a multiple of 16
    native = op.kernels["mojo_gpu"].load().for_calls_like((shifted, k))
    torch.testing.assert_close(native(shifted, k), op.contract.function(shifted, k))
    assert len(in_python) == 1
    torch.testing.assert_close(op(shifted, k), op.contract.function(shifted, k))


@pytest.mark.gpu
def test_it_is_launched_on_the_current_stream_and_into_a_graph(conv1d_from_ptx):
    op, in_python = conv1d_from_ptx
    x, k = torch.randn(1 << 20, device="cuda"), torch.randn(5, device="cuda")
    called_twice(op, x, k)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # another stream's kernel would not wait for it
        x.mul_(2)
        result = op(x, k)
    side.synchronize()
    torch.testing.assert_close(result, op.contract.function(x, k))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = op(x, k)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(captured, op.contract.function(x, k))
    assert not in_python


@pytest.mark.gpu
def test_a_thread_that_has_not_used_the_gpu_launches_too(conv1d_from_ptx):
    op, in_python = conv1d_from_ptx
    x, k = torch.randn(1000, device="cuda"), torch.randn(5, device="cuda")
    called_twice(op, x, k)
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(op(x, k) for _ in range(5)))
    thread.start()
    thread.join()
    assert len(results) == 5
    for result in results:
        torch.testing.assert_close(result, op.contract.function(x, k))
    assert len(in_python) <= 1, "Python makes the context current once for the thread"


@pytest.mark.gpu
def test_outputs_of_many_launches_are_freed(conv1d_from_ptx):
    op, in_python = conv1d_from_ptx
    x, k = torch.randn(1 << 20, device="cuda"), torch.randn(5, device="cuda")
    called_twice(op, x, k)
    before = torch.cuda.memory_allocated()
    for _ in range(10_000):
        op(x, k)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert not in_python


@pytest.mark.gpu
def test_a_cuda_kernel_called_from_python_is_launched_natively_after_the_first_time():
    kernel = ow.cuda_module("""
    extern "C" __global__ void add(const float* x, const float* y, float* out, int n, float by) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = x[i] + by * y[i];
    }
    """)["add"]
    x, y, out = (torch.randn(1000, device="cuda") for _ in range(3))
    for by in (1.0, 0.5, 2):
        kernel[4, 256](x, y, out, 1000, by)
        torch.testing.assert_close(out, x + by * y)
        assert type(kernel[4, 256]) is type(len)
    for wrong, output in (
        ((x, y, out), "add must be given 5 arguments, got 3"),
        ((x.double(), y, out, 1000, 1.0), "elements, got float64"),
        ((x, y.cpu(), out, 1000, 1.0), "must be on cuda:0, as the kernel is, got a tensor on cpu"),
        ((x, y, out, 2**31, 1.0), "got 2147483648"),
        ((x, y, out, 1000, "1"), "must be a float, got str '1'"),
    ):
        with pytest.raises(LaunchError, match=output):
            kernel[4, 256](*wrong)
