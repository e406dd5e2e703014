"""What a launcher does is recorded, and repeated as one native function."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import math
import struct
import sys
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.gpu import recording
from opwright.backends.gpu.recording import PassedOn, RecordableLauncher, Recorder
from opwright.backends.native import native_call
from opwright.backends.native.native_call import ArgumentSource, GpuKernel, KernelArgument
from opwright.backends.native.tensor_access import address_of
from opwright.fast_path import recorded_launch
from opwright.fast_path.extension import fast_calls_extension

FIVE = KernelArgument(ArgumentSource.CONSTANT, 5)
KERNEL = GpuKernel(1 << 40, (9, 8, 7), (6, 5, 4), 333, parameters=0)


def add(x: Tensor, y: Tensor, out: Tensor) -> None:
    """A launch of the imitated driver's kernel, which adds five elements."""
    recorder = recording.recorder_of_this_thread()
    if recorder is not None:
        recorder.launched(KERNEL, [out, x, y, FIVE])
    with recorder.launching() if recorder is not None else contextlib.nullcontext():
        out[:5] = x.reshape(-1)[:5] + y.reshape(-1)[:5]


# -- the record -----------------------------------------------------------------------------------------------------


def watched(launcher: Any, *arguments: Any) -> tuple[Recorder, Any]:
    recorder = Recorder(arguments)
    with recorder.watching():
        result = launcher(*arguments)
    return recorder, recorder.description(result, launcher)


def told(out: Tensor, *read: Tensor) -> None:
    recorder = recording.recorder_of_this_thread()
    assert recorder is not None
    recorder.launched(KERNEL, [out, *read, FIVE])


def test_allocations_views_and_launches_are_recorded():
    def launcher(x, n):
        scratch = x.new_empty(x.numel(), dtype=torch.float64)
        out = torch.empty_like(x)
        told(scratch, x.view(-1)[2:])
        told(out[1:], scratch.view(torch.float32))
        return out

    _, call = watched(launcher, torch.ones(3, 4), 7)
    assert call.argument_count == 2
    assert (call.returned, call.returns_tuple) == (1, False)
    assert [(o.shape, o.dtype) for o in call.outputs] == [((3, 4), torch.float32), ((12,), torch.float64)]
    assert [k.parameters for k in call.runs] == [3, 3]
    found = [(a.source, a.value, a.offset) for a in call.kernel_arguments]
    output, tensor, constant = ArgumentSource.OUTPUT, ArgumentSource.TENSOR, ArgumentSource.CONSTANT
    assert found == [
        (output, 1, 0), (tensor, 0, 8), (constant, 5, 0), (output, 0, 16), (output, 1, 0), (constant, 5, 0),
    ]  # fmt: skip


def test_a_launcher_that_writes_its_argument_and_returns_nothing():
    _, call = watched(lambda x: told(x), torch.ones(3))
    assert (call.outputs, call.returned) == ((), 0)


def launches_on(make: Any) -> Any:
    def launcher(x):
        out = torch.empty_like(x)
        told(out, make(x))
        return out

    return launcher


@pytest.mark.parametrize(
    ("launcher", "problem"),
    [
        (launches_on(lambda x: x + 1), "it calls add"),
        (launches_on(lambda x: x.mT.contiguous()), "it calls contiguous"),
        (launches_on(lambda x: x.double()), "it calls double"),
        (launches_on(lambda x: torch.zeros(3)), "it calls zeros"),
        (launches_on(lambda x: torch.empty(3)), "empty takes its dtype from a setting"),
        (launches_on(lambda x: x.new_empty(3, device="meta")), "must be a plain contiguous tensor on the device"),
        (launches_on(lambda x: torch.empty_like(x.mT)), "must be a plain contiguous tensor on the device"),
        (launches_on(lambda x: x if x.sum() > 0 else x[1:]), "it calls sum"),
        (launches_on(lambda x: x if x[0, 0] else x[1:]), "it calls __bool__"),
        (launches_on(lambda x: x[x > 0]), "it calls gt"),
        (launches_on(lambda x: x.zero_()), "it calls zero_"),
        (lambda x: x, "it returns what it has not allocated"),
        (lambda x: torch.empty_like(x)[1:], "it returns what it has not allocated"),
        (lambda x: [torch.empty_like(x)] * 2, "it returns what it has not allocated"),
        (lambda x: 3, "it returns what it has not allocated"),
    ],
)
def test_what_else_happens_is_noticed(launcher, problem):
    recorder, call = watched(launcher, torch.ones(3, 4))
    assert call is None
    assert problem in recorder.problem


def test_memory_that_the_call_does_not_know_is_noticed():
    table = torch.ones(3)
    recorder, call = watched(lambda x: told(x, table), torch.ones(3))
    assert call is None
    assert "neither an argument nor an allocation" in recorder.problem


# -- the repetition, with an imitated driver ------------------------------------------------------------------------


@pytest.fixture
def on_a_driver(kernels, monkeypatch):
    functions = [kernels.cuLaunchKernel, kernels.current_stream, kernels.current_device]
    monkeypatch.setattr(native_call, "gpu_functions", lambda: tuple(map(address_of, functions)))
    for name, value in (("refusal", 0), ("device_now", -1)):
        ctypes.c_int32.in_dll(kernels, name).value = value
    monkeypatch.setattr(recorded_launch, "_are_on_a_gpu", lambda arguments: True)
    monkeypatch.setattr(recorded_launch, "_is_on", True)
    # Launchers of these tests use ``add`` and lists of their own, which no launcher of a user may.
    monkeypatch.setattr(recorded_launch, "_watched", lambda launcher: ())


def repeated(launcher: Any, *arguments: Any, free: Any = frozenset(), **about: Any) -> Any:
    """The launcher for calls like one, not verified unless a test asks for it."""
    fast_calls_extension.loaded.verify(first=0)
    return recorded_launch.repeated(RecordableLauncher(launcher, **about), arguments, free)


@pytest.mark.compiler
def test_two_launches_with_scratch_memory_are_one_call(native, on_a_driver):
    calls = []

    def launcher(x, y):
        calls.append(x)
        scratch = x.new_empty(8)
        out = torch.empty_like(x)
        add(x, y, scratch)
        add(scratch, y, out)
        return out

    run = repeated(launcher, torch.randn(5), torch.randn(5))
    for _ in range(4):
        x, y = torch.randn(5), torch.randn(5)
        assert torch.equal(run(x, y), x + y + y)
    assert len(calls) == 1


class Tile(enum.Enum):
    SMALL = 1


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("value", "is_known"), [(Tile.SMALL, False), ([1], False), (torch.Size([1]), False), ("a", True), ((1, 2.0), True)]
)
def test_a_launcher_with_an_argument_that_may_change_is_not_repeated(value, is_known, native, on_a_driver):
    """Names such as ``size`` are known as those of tensors; an enumeration's member may have them, too."""

    def launcher(x, value):
        out = torch.empty_like(x)
        add(x, x, out)
        return out

    assert (repeated(launcher, torch.ones(5), value) is not launcher) == is_known


@pytest.mark.compiler
def test_a_later_launch_that_is_refused_is_an_error(native, kernels, on_a_driver):
    def launcher(x, y):
        out = torch.empty_like(x)
        add(x, y, out)
        return out

    _, call = watched(launcher, torch.ones(5), torch.ones(5))
    run = native.function_for(call)
    ctypes.c_int32.in_dll(kernels, "refusal").value = 700
    assert torch.equal(run(torch.ones(5), torch.ones(5)), torch.full((5,), 2.0))  # by the launcher


@pytest.mark.compiler
def test_views_are_found_at_their_offsets_in_other_memory(native, on_a_driver):
    def launcher(x):
        out = x.new_empty(5)
        add(x[1], x[2], out)
        return (out,)

    run = repeated(launcher, torch.randn(3, 5))
    for _ in range(3):
        x = torch.randn(3, 5)
        (out,) = run(x)
        assert torch.equal(out, x[1] + x[2])


@pytest.mark.compiler
def test_a_view_belongs_to_the_tensor_that_it_was_taken_of(native, on_a_driver):
    """Not to the first argument that shares its storage."""
    calls = []

    def launcher(x, y):
        calls.append(1)
        out = torch.empty_like(x)
        add(x.view(-1), y.view(-1), out)
        return out

    both = torch.randn(10)
    run = repeated(launcher, both[:5], both[5:])
    for x, y in [(both[:5], both[5:])] * 4:
        assert torch.equal(run(x, y), x + y)
    assert len(calls) == 4, "arguments that share memory are not recorded"
    run = repeated(launcher, torch.randn(5), torch.randn(5))
    cache = torch.randn(4, 5)
    calls.clear()
    for x, y in [(torch.randn(5), torch.randn(5)), (both[:5], both[5:]), (both[5:], both[:5]), (cache[0], cache[3])]:
        assert torch.equal(run(x, y), x + y)
    assert len(calls) == 1


@pytest.mark.compiler
def test_a_launcher_that_does_something_else_first_is_recorded_later(native, on_a_driver):
    calls = []

    def launcher(x, y):
        calls.append(1)
        out = torch.empty_like(x)
        if len(calls) < 2:
            out.zero_()  # such as measuring configurations
        add(x, y, out)
        return out

    run = repeated(launcher, torch.ones(5), torch.ones(5))
    for _ in range(6):
        assert torch.equal(run(torch.ones(5), torch.ones(5)), torch.full((5,), 2.0))
    assert len(calls) == 2


@pytest.mark.compiler
@pytest.mark.parametrize("writes", [False, True])
def test_a_repetition_that_differs_ends_recording_with_one_warning(native, on_a_driver, writes):
    depends_on = [0]

    def launcher(x, y):
        out = torch.empty_like(x)
        add(x, (x, y)[depends_on[0]], out)
        if writes:
            add(x, y, x)
        return out

    x, y = torch.randn(5), torch.randn(5)
    run = repeated(launcher, x, y, writes=writes)
    assert torch.equal(run(x.clone(), y), x + x)
    depends_on[0] = 1
    assert torch.equal(run(x.clone(), y), x + x), "this launcher was wrongly recorded"
    fast_calls_extension.loaded.verify(first=100)
    with pytest.warns(UserWarning, match=r"recorded call of the launcher .*launcher differs from the launcher"):
        assert torch.equal(run(x.clone(), y), x + y)
    assert torch.equal(run(x.clone(), y), x + y)
    assert recorded_launch.repeated(RecordableLauncher(launcher), (x, y), frozenset()) is launcher


@pytest.mark.compiler
def test_a_launcher_whose_results_differ_each_time_is_not_repeated_and_not_blamed(native, on_a_driver, recwarn):
    calls = [0.0]

    def launcher(x, y):
        out = torch.empty_like(x)
        add(x, y, out)
        with recording.recorder_of_this_thread().launching() if recording.recorder_of_this_thread() else nothing():
            calls[0] += 1
            out += calls[0]
        return out

    run = repeated(launcher, torch.ones(5), torch.ones(5))
    run(torch.ones(5), torch.ones(5))
    fast_calls_extension.loaded.verify(first=100)
    assert run(torch.ones(5), torch.ones(5))[0] == 4
    assert run(torch.ones(5), torch.ones(5))[0] > 5
    assert not recwarn.list
    assert recorded_launch._is_on


nothing = contextlib.nullcontext


def test_a_number_that_is_passed_on_answers_nothing_else():
    number = PassedOn(2.0, 1)
    for use in (
        lambda: number + 1, lambda: number == 2.0, lambda: bool(number), lambda: float(number), lambda: int(number),
        lambda: f"{number}", lambda: hash(number), lambda: max(number, 1.0), lambda: number.is_integer(),
        lambda: isinstance(number, float), lambda: [1, 2][number], lambda: torch.ones(3) * number,
        lambda: struct.pack("f", number), lambda: number < 3, lambda: {number: 1}, lambda: math.sqrt(number),
    ):  # fmt: skip
        with pytest.raises((recording.LookedAtError, TypeError, struct.error)):
            use()
    assert not hasattr(number, "dtype")
    assert recording.plain_number(number) == 2.0


def test_without_a_gpu_a_launcher_stays_as_it_is():
    def launcher(x):
        return torch.empty_like(x)

    made = RecordableLauncher(launcher)
    assert recorded_launch.repeated(made, [torch.ones(3)], frozenset()) is launcher
    assert made(torch.ones(3)).shape == (3,)


def test_a_copy_for_a_comparison_has_the_memory_around_the_tensor():
    x = torch.arange(12.0)[2:6].view(4, 1).expand(4, 3)
    copy = recorded_launch._copied(x)
    assert torch.equal(copy, x)
    assert (copy.stride(), copy.storage_offset()) == (x.stride(), x.storage_offset())
    assert copy.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert copy.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


# -- on a GPU -------------------------------------------------------------------------------------------------------

SOURCE = """
__global__ void scale(const float* x, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i];
}
"""
KERNELS = ow.cuda_module(SOURCE)
BLOCK = 128


def scale_twice(x: Tensor, a: float) -> Tensor:
    between, out = torch.empty_like(x), torch.empty_like(x)
    grid = ow.cdiv(x.numel(), BLOCK)
    KERNELS["scale"][grid, BLOCK](x, between, a, x.numel())
    KERNELS["scale"][grid, BLOCK](between, out, a, x.numel())
    return out


@pytest.fixture
def scaled(namespace):
    @ow.op(f"{namespace}::scaled")
    def scaled(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        return a * a * x

    return scaled


def in_python(op: ow.Op, *arguments: Any) -> bool:
    """Whether the newest guarded call runs a launcher in Python."""
    frames = []

    def see(frame: Any, event: str, _: Any) -> None:
        frames.append(frame.f_code.co_name) if event == "call" else None

    sys.setprofile(see)
    try:
        op(*arguments)
    finally:
        sys.setprofile(None)
    return bool({"scale_twice", "launch_triton"} & set(frames))


@pytest.mark.gpu
def test_a_cuda_launcher_runs_in_python_no_more(scaled, monkeypatch):
    scaled.cuda(scale_twice, name="twice", dtypes=[torch.float32])
    for n in (1000, 1000, 1000, 1000, 3, 3, 3, 3):
        x = torch.randn(n, device="cuda")
        torch.testing.assert_close(scaled(x, 3.0), 9 * x)
    fast_calls_extension.loaded.verify(first=0)
    assert not in_python(scaled, x, 3.0)
    torch.testing.assert_close(scaled(x, 2.0), 4 * x)
    assert not in_python(scaled, x, 2.0), "the launcher only passes the number on"
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        on_side = scaled(x, 3.0)
    side.synchronize()
    torch.testing.assert_close(on_side, 9 * x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = scaled(x, 3.0)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(captured, 9 * x)
    monkeypatch.setitem(globals(), "BLOCK", 32)
    torch.testing.assert_close(scaled(x, 3.0), 9 * x)
    assert in_python(scaled, x, 3.0), "a constant of the module was rebound"


@pytest.mark.gpu
def test_zeros_of_both_signs_are_other_numbers(namespace):
    @ow.op(f"{namespace}::over")
    def over(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        return x * a

    def once(x: Tensor, a: float) -> Tensor:
        out = torch.empty_like(x)
        KERNELS["scale"][ow.cdiv(x.numel(), BLOCK), BLOCK](x, out, a, x.numel())
        return out

    over.cuda(once, name="once", dtypes=[torch.float32])
    x = torch.ones(5, device="cuda")
    for a in (0.0, 0.0, 0.0, -0.0, 0.0, -0.0, -0.0):
        assert torch.signbit(over(x, a)).all().item() is (str(a) == "-0.0")


@pytest.mark.gpu
def test_memory_is_given_back(scaled):
    scaled.cuda(scale_twice, name="twice", dtypes=[torch.float32])
    x = torch.randn(1 << 20, device="cuda")
    for _ in range(4):
        scaled(x, 3.0)
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        scaled(x, 3.0)
    assert torch.cuda.memory_allocated() == before


triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def _scale_kernel(x, out, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, a * tl.load(x + at, mask=at < n), mask=at < n)


_tuned = triton.autotune([triton.Config({"BLOCK": b}, num_warps=4) for b in (128, 512)], key=["n"])(_scale_kernel)


def launch_triton(x: Tensor, a: float) -> Tensor:
    out = torch.empty_like(x)
    if x.numel():
        _scale_kernel[(triton.cdiv(x.numel(), 256),)](x, out, a, x.numel(), BLOCK=256)
    return out


def launch_tuned(x: Tensor, a: float) -> Tensor:
    out = torch.empty_like(x)
    if x.numel():
        _tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, a * a, x.numel())
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_triton_launcher_runs_in_python_no_more(namespace, dtype):
    @ow.op(f"{namespace}::once")
    def once(x: Float[Tensor, "n"], a: float) -> Float[Tensor, "n"]:
        return a * x

    once.triton(launch_triton, name="launch_triton")
    for n in (1000, 1, 1, 1, 1, 16, 16, 16, 16, 0, 0, 0):
        x = torch.randn(n + 1, device="cuda", dtype=dtype)
        for part in (x[:n], x[1:]):  # the second is not aligned to 16 bytes
            torch.testing.assert_close(once(part, 1.5), 1.5 * part)
    x = torch.randn(4096, device="cuda", dtype=dtype)
    fast_calls_extension.loaded.verify(first=0)
    for _ in range(3):
        once(x, 1.5)
    assert not in_python(once, x, 1.5)
    torch.testing.assert_close(once(x, 2.5), 2.5 * x)
    assert not in_python(once, x, 3.5), "the launcher only passes the number on"
    shifted = torch.randn(4097, device="cuda", dtype=dtype)[1:]
    torch.testing.assert_close(once(shifted, 1.5), 1.5 * shifted)


@pytest.mark.gpu
def test_an_autotuned_launcher_is_recorded_after_it_is_tuned(scaled):
    scaled.triton(launch_tuned, name="launch_tuned")
    for _ in range(6):
        x = torch.randn(5000, device="cuda")
        torch.testing.assert_close(scaled(x, 3.0), 9 * x)


@pytest.mark.gpu
def test_the_switch(scaled):
    scaled.cuda(scale_twice, name="twice", dtypes=[torch.float32])
    x = torch.randn(100, device="cuda")
    for _ in range(5):
        scaled(x, 3.0)
    assert not in_python(scaled, x, 3.0)
    with ow.fast_calls(False):
        assert in_python(scaled, x, 3.0)
    assert not in_python(scaled, x, 3.0)
