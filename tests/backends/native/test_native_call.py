"""Calls as one native function: the right values, all other calls left to Python, no leaks."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import shutil
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.backends.mojo.call import CpuCall
from opwright.backends.mojo.source import slots_of
from opwright.backends.native import native_call
from opwright.backends.native.native_call import ArgumentSource as From
from opwright.backends.native.native_call import KernelArgument as Arg
from opwright.backends.native.native_call import Library, NativeCalls, Output
from opwright.backends.native.tensor_access import access_to_tensors, address_of
from opwright.errors import LaunchError
from opwright.machine import this_machine
from tests.backends.native.imitations import OUT, LeftToPython, X, Y, call_like, compiled, function_for

pytestmark = pytest.mark.compiler


# -- what arrives ---------------------------------------------------------------------------------------------


def test_words_come_from_where_the_plan_says(native, kernels):
    words = [
        Arg(From.OUTPUT, 1), Arg(From.TENSOR, 3), Arg(From.CONSTANT, -7), Arg(From.INTEGER, 0),
        Arg(From.FLOATING, 1), Arg(From.INTEGER, 2), Arg(From.OUTPUT, 0),
    ]  # fmt: skip
    call = function_for(native, call_like(kernels.keep_words, words, 4, [(2, 3), (0, 4)]))
    x = torch.randn(8)[3:]
    for integer, floating, expected in ((-(2**63), 0.5, 0.5), (2**63 - 1, 3, 3.0), (-1, -1.0, -1.0)):
        first, second = call(integer, floating, True, x)
        seen = (ctypes.c_int64 * 7).in_dll(kernels, "seen")
        assert list(seen)[:4] == [second.data_ptr(), x.data_ptr(), -7, integer]
        assert ctypes.c_double.from_buffer(seen, 32).value == expected
        assert list(seen)[5:] == [1, first.data_ptr()]
        assert second.shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint16])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 1, 3)])
def test_outputs_are_as_torch_makes_them(native, kernels, dtype, shape):
    call = function_for(native, call_like(kernels.keep_words, [OUT], 0, outputs=(Output(shape, dtype),)))
    made, like = call(), torch.empty(shape, dtype=dtype)
    assert (made.shape, made.stride(), made.dtype, made.device) == (like.shape, like.stride(), like.dtype, like.device)
    assert type(made) is Tensor
    assert not made.requires_grad


def test_a_call_computes_and_its_sizes_are_passed(native, kernels):
    call = function_for(native, call_like(kernels.add))
    x, y = torch.randn(6)[1:], torch.nn.Parameter(torch.randn(5))
    assert torch.equal(call(x, y), x + y.detach())


@pytest.mark.parametrize("offset_is_known", [True, False])
def test_tensors_are_reached_in_each_way_that_this_torch_has(native, kernels, offset_is_known, tmp_path):
    offset, wrap = access_to_tensors() or (0, None)
    if not offset_is_known and wrap is not None:
        pytest.skip("this torch has one way")
    # The library keeps its settings, so other settings need another copy of it.
    another = tmp_path / "another.so"
    shutil.copy(native_call._build(this_machine().cxx, native_call.python_headers(), build_tools()), another)
    call = function_for(NativeCalls(another, (offset if offset_is_known else 0, wrap)), call_like(kernels.add))
    x, y = torch.randn(5), torch.randn(5)
    for _ in range(3):
        assert torch.equal(call(x, y), x + y)


# -- what is left to Python -----------------------------------------------------------------------------------


def test_a_kernel_that_raises_is_a_launch_error_with_what_it_said(native, kernels):
    x = torch.randn(5)
    with pytest.raises(LaunchError, match=r"^too hot$"):
        function_for(native, call_like(kernels.complain))(x, x)
    with pytest.raises(LaunchError, match=rf"^!{{{1000}}}$"):
        function_for(native, call_like(kernels.complain_at_length))(x, x)
    silent = Library(address_of(kernels.complain), (), lambda output: None)
    with pytest.raises(RuntimeError, match="a kernel raised"):
        function_for(native, call_like(kernels.complain, runs=silent))(x, x)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_arguments_is_a_type_error(native, kernels, count):
    with pytest.raises(TypeError, match=f"takes 2 arguments, got {count}"):
        function_for(native, call_like(kernels.add))(*[torch.ones(5)] * count)
    with pytest.raises(TypeError):
        function_for(native, call_like(kernels.add))(torch.ones(5), y=torch.ones(5))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (From.TENSOR, None), (From.TENSOR, 5), (From.TENSOR, [1.0]), (From.TENSOR, Tensor),
        (From.INTEGER, 2**63), (From.INTEGER, -(2**63) - 1), (From.INTEGER, 1.0), (From.INTEGER, None),
        (From.FLOATING, "1"), (From.FLOATING, None), (From.FLOATING, 10**400),
        (From.FLOATING, torch.ones(())),
    ],
)  # fmt: skip
def test_an_argument_that_was_not_foreseen_goes_to_python_as_it_came(native, kernels, source, value):
    call = function_for(native, call_like(kernels.keep_words, [OUT, X, Arg(source, 1)]))
    x = torch.ones(5)
    with pytest.raises(LeftToPython) as caught:
        call(x, value)
    (came,) = caught.value.args
    assert came[0] is x
    assert came[1] is value
    assert caught.value.__context__ is None, "what was tried before shows nowhere"


def test_an_address_that_is_not_a_multiple_goes_to_python(native, kernels):
    call = function_for(native, call_like(kernels.add, [OUT, Arg(From.TENSOR, 0, alignment=16), Y]))
    x = torch.randn(9)
    assert torch.equal(call(x[4:], x[1:6]), x[4:] + x[1:6])
    with pytest.raises(LeftToPython):
        call(x[1:6], x[4:])


def test_an_output_that_finds_no_room_is_left_to_python(native, kernels):
    with pytest.raises(LeftToPython):
        function_for(native, call_like(kernels.add, shapes=[(5,), (1 << 58,)]))(torch.ones(5), torch.ones(5))


def test_more_arguments_than_it_has_room_for_are_refused_when_it_is_made(native, kernels):
    at_most = native_call._MOST_ARGUMENTS
    assert native.function_for(call_like(kernels.keep_words, [X] * at_most)) is not None
    assert native.function_for(call_like(kernels.keep_words, [X] * (at_most + 1))) is None


# -- references are neither lost nor leaked ----------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("fails", [None, "raises", "unforeseen"])
def test_ten_thousand_calls_keep_nothing(native, kernels, fails):
    x, large = torch.ones(5), (1 << 16,)
    entry = kernels.complain if fails == "raises" else kernels.keep_words
    call = function_for(native, call_like(entry, shapes=[large, large]))
    y = None if fails == "unforeseen" else x

    def counts() -> list[int]:
        return [sys.getrefcount(x), sys.getrefcount(None), torch._C._storage_Use_Count(x.untyped_storage()._cdata)]

    def many() -> None:
        for _ in range(10_000):
            try:
                call(x, y)
            except (LaunchError, LeftToPython):
                assert fails

    many()
    before, resident = counts(), resident_bytes()
    many()
    assert all(abs(now - then) < 100 for now, then in zip(counts(), before, strict=True))
    assert resident_bytes() - resident < 50 << 20, "the outputs of all calls together are five gigabytes"


def test_a_plan_goes_with_its_function_even_where_they_hold_each_other(native, kernels):
    class Python:
        def __call__(self, *arguments: Any) -> Any: ...

    def make() -> weakref.ref[Python]:
        python = Python()
        python.native = native.function_for(call_like(kernels.add, fallback=python))
        return weakref.ref(python)

    held = make()
    gc.collect()
    assert held() is None


def test_other_threads_run_while_a_kernel_does(native, kernels):
    call, x = function_for(native, call_like(kernels.wait)), torch.ones(5)
    thread = threading.Thread(target=call, args=(x, x))
    start = time.perf_counter()
    thread.start()
    call(x, x)
    thread.join()
    assert time.perf_counter() - start < 0.35


def test_threads_get_their_own_results(native, kernels):
    call, wrong = function_for(native, call_like(kernels.add)), []

    def many(value: float) -> None:
        x = torch.full((5,), value)
        for _ in range(2000):
            if not torch.equal(call(x, x), x + x):
                wrong.append(value)

    threads = [threading.Thread(target=many, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- as a kernel of an operator ---------------------------------------------------------------------------------


def call_of(scale: ow.Op, file: Path, native: NativeCalls | None, alignment: int = 1) -> CpuCall:
    """The launch of a kernel that another compiler than Mojo's built."""
    slots = slots_of(scale.contract, "k")
    return CpuCall("k", scale.contract, slots, lambda *arguments: file, alignment, lambda: native, raises=True)


def test_a_mojo_kernel_uses_it_from_the_second_call_on(native, scale, tmp_path):
    call, x = call_of(scale, compiled(tmp_path), native), torch.rand(5)
    assert call.for_calls_like((x,)) is call, "it has not run"
    assert torch.equal(call(x), 2 * x)
    like_this = call.for_calls_like((x,))
    assert type(like_this) is type(len)
    assert torch.equal(like_this(x), 2 * x)
    assert call.for_calls_like((torch.rand(10)[::2],)) is call
    for way in (call, like_this):
        with pytest.raises(LaunchError, match=r"::scale: the Mojo kernel 'k' raised: too hot"):
            way(-x)


def test_without_the_native_side_it_stays_in_python(scale, tmp_path):
    call, x = call_of(scale, compiled(tmp_path), None), torch.rand(5)
    call(x)
    like_this = call.for_calls_like((x,))
    assert like_this is call
    assert torch.equal(like_this(x), 2 * x)


def test_addresses_are_looked_at_where_an_alignment_is_asked_for(native, scale, tmp_path):
    file = compiled(tmp_path)
    call, x = call_of(scale, file, native, alignment=16), torch.rand(9)
    call(x[4:])
    like_this = call.for_calls_like((x[4:],))
    assert type(like_this) is type(len)
    for view in (x[4:], x[1:6]):
        assert torch.equal(like_this(view), 2 * view)
    in_python = call_of(scale, file, None, alignment=16)
    in_python(x[4:])
    assert in_python.for_calls_like((x[4:],)) is in_python, "nothing else depends on addresses"


def test_a_kernel_that_was_replaced_is_another_function(native, scale, tmp_path):
    x = torch.rand(5)
    for factor in (2, 3):
        call = call_of(scale, compiled(tmp_path, factor), native)
        call(x)
        assert torch.equal(call.for_calls_like((x,))(x), factor * x)


# -- where it cannot be built -------------------------------------------------------------------------------------


def test_without_a_compiler_or_pythons_headers_there_is_no_native_side(monkeypatch):
    tools = build_tools()
    without = dataclasses.replace(tools, machine=dataclasses.replace(tools.machine, cxx=None))
    assert native_call.native_calls(without) is None
    monkeypatch.setattr(native_call, "python_headers", lambda: None)
    assert native_call.native_calls.__wrapped__(tools) is None


def test_a_native_side_that_does_not_compile_is_said_and_done_without(monkeypatch):
    output: list[str] = []
    refused = dataclasses.replace(native_call._EXTENSION, flags=("--no-such-flag",))
    monkeypatch.setattr(native_call, "_EXTENSION", refused)
    tools = dataclasses.replace(build_tools(), notify=output.append)
    assert native_call.native_calls(tools) is None
    assert "are called from Python" in output[-1]
    assert "does not compile" in output[-1]


def test_it_is_built_once(native):
    assert native_call.native_calls(build_tools()) is native
