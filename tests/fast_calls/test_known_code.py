"""What a launcher may depend on besides its arguments is found in its code."""

from __future__ import annotations

import functools
import math
import os
import random
import sys
import time
import types
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.backends.cuda.module import kernels
from opwright.backends.gpu.recording import RecordableLauncher
from opwright.fast_path import recorded_launch
from opwright.fast_path.extension import FastCalls

KERNELS = ow.cuda_module("""
__global__ void twice(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}
""")
BLOCK = 128
COUNTS = [0]
SETTINGS = types.SimpleNamespace(block=128)
TABLE = torch.ones(3)


assert ow.cdiv(1, 1) == 1  # the package has this name once it was used


def unknown(launcher: Any) -> str | None:
    return recorded_launch.unknown_in(RecordableLauncher(launcher, kernels=kernels))


def blocks_of(n: int) -> int:
    return ow.cdiv(n, BLOCK)


def blocks_counted(n: int) -> int:
    COUNTS[0] += 1
    return ow.cdiv(n, BLOCK)


@functools.cache
def blocks_cached(n: int) -> int:
    return ow.cdiv(n, BLOCK)


def plain(x):
    out = torch.empty_like(x)
    KERNELS["twice"][ow.cdiv(x.numel(), 128), 128](x, out, x.numel())
    return out


def with_helper(x):
    out = x.new_empty(x.shape, dtype=torch.float32)
    KERNELS["twice"][blocks_of(x.numel()), BLOCK](x.contiguous(), out, x.numel())
    return out


def with_several(x):
    if x.dim() != 1:
        raise ValueError(f"one dim, not {x.dim()}")
    n = max(1, math.ceil(math.log2(len(x))))
    parts = [torch.empty(n, device=x.device, dtype=x.dtype) for _ in range(2)]
    for part in parts:
        KERNELS["twice"][n, 32](x[1:], part, n)
    return tuple(parts)


def enclosed(block: int) -> Any:
    def launch(x):
        def grid(n):
            return ow.cdiv(n, block)

        out = torch.empty_like(x)
        KERNELS["twice"][grid(x.numel()), block](x, out, x.numel())
        return out

    return launch


def on_the_gpu_at_hand(x):
    out = torch.empty_like(x)
    KERNELS["twice"][torch.cuda.get_device_properties(x.device).multi_processor_count, BLOCK](x, out, x.numel())
    return out


@pytest.mark.parametrize("launcher", [plain, with_helper, with_several, enclosed(64), on_the_gpu_at_hand])
def test_a_launcher_of_its_arguments_alone(launcher):
    assert unknown(launcher) is None


def counted(x):
    KERNELS["twice"][blocks_counted(x.numel()), BLOCK](x, x, 1)


def timed(x):
    KERNELS["twice"][int(time.time()), BLOCK](x, x, 1)


def drawn(x):
    KERNELS["twice"][random.randint(1, 2), BLOCK](x, x, 1)


def drawn_by_torch(x):
    KERNELS["twice"][1, BLOCK](torch.rand(3), x, 1)


def of_the_environment(x):
    KERNELS["twice"][int(os.environ.get("BLOCKS", 1)), BLOCK](x, x, 1)


def of_settings(x):
    KERNELS["twice"][1, SETTINGS.block](x, x, 1)


def of_a_table(x):
    KERNELS["twice"][1, BLOCK](x, TABLE, 1)


def of_a_cache(x):
    KERNELS["twice"][blocks_cached(x.numel()), BLOCK](x, x, 1)


def of_an_address(x):
    KERNELS["twice"][1, 32 if x.data_ptr() % 16 else 128](x, x, 1)


def of_a_value(x):
    KERNELS["twice"][1, BLOCK](x, x, int(x[0].item()))


def of_a_stream(x):
    with torch.cuda.stream(torch.cuda.Stream()):
        KERNELS["twice"][1, BLOCK](x, x, 1)


def waits(x):
    KERNELS["twice"][1, BLOCK](x, x, 1)
    torch.cuda.synchronize()


def of_grad_mode(x):
    KERNELS["twice"][1, 32 if torch.is_grad_enabled() else 64](x, x, 1)


def writes_a_global(x):
    global BLOCK
    BLOCK = 256
    KERNELS["twice"][1, BLOCK](x, x, 1)


def keeps(x, seen=[]):  # noqa: B006
    KERNELS["twice"][1, BLOCK](x, x, 1)


def marks(x):
    x.seen = True
    KERNELS["twice"][1, BLOCK](x, x, 1)


def imports(x):
    from tests.fast_calls.test_known_code import BLOCK

    KERNELS["twice"][1, BLOCK](x, x, 1)


def closing_over_a_list() -> Any:
    calls = [0]

    def launch(x):
        calls[0] += 1
        KERNELS["twice"][1, BLOCK](x, x, 1)

    return launch


def closing_over_a_number_that_it_writes() -> Any:
    calls = 0

    def launch(x):
        nonlocal calls
        calls += 1
        KERNELS["twice"][1, BLOCK](x, x, 1)

    return launch


@pytest.mark.parametrize(
    "launcher",
    [
        counted, timed, drawn, drawn_by_torch, of_the_environment, of_settings, of_a_table, of_a_cache, of_an_address,
        of_a_value, of_a_stream, waits, of_grad_mode, writes_a_global, keeps, marks, imports, closing_over_a_list(),
        closing_over_a_number_that_it_writes(), functools.partial(plain), len,
    ],
)  # fmt: skip
def test_a_launcher_that_may_depend_on_more(launcher):
    assert unknown(launcher) is not None


class Setting(float):
    """A float with an attribute that may change."""


OF_A_SUBCLASS = Setting(2.0)
LAUNCHER_OF = {"block": 32}
synchronize = False


def of_a_subclass(x):
    KERNELS["twice"][1, BLOCK](x, x, OF_A_SUBCLASS.scale)


def of_a_dictionary(x):
    KERNELS["twice"][1, LAUNCHER_OF["block"]](x, x, 1)


def of_a_flag_of_that_name(x):
    if synchronize:
        torch.cuda.synchronize()
    KERNELS["twice"][1, BLOCK](x, x, 1)


def of_an_offset(x):
    KERNELS["twice"][1, x.storage_offset() + 1](x, x, 1)


def by_place_in_a_storage(x):
    KERNELS["twice"][1, BLOCK](x.as_strided((1,), (1,), 0), x, 1)


@functools.wraps(torch.empty_like)
def wrapped(x):
    COUNTS[0] += 1
    return torch.empty_like(x)


def by_a_wrapped_function(x):
    KERNELS["twice"][1, BLOCK](x, wrapped(x), 1)


def by_a_function_under_another_name(x):
    alias = blocks_of
    KERNELS["twice"][alias.size, BLOCK](x, x, 1)


def catches(x):
    try:
        n = x.numel()
    except ValueError:
        n = 1
    KERNELS["twice"][n, BLOCK](x, x, 1)


def a_generator(x):
    KERNELS["twice"][1, BLOCK](x, x, sum(n for n in x.shape))


@pytest.mark.parametrize(
    "launcher",
    [
        of_a_subclass, of_a_dictionary, of_a_flag_of_that_name, of_an_offset, by_place_in_a_storage,
        by_a_wrapped_function, by_a_function_under_another_name, catches, a_generator,
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(launcher):
    assert unknown(launcher) is not None


def with_all(x):
    out = torch.empty_like(x.contiguous())
    KERNELS["twice"][blocks_of(x.numel()), max(BLOCK, 32)](x, out, x.numel())
    return out


def other_blocks(n: int) -> int:
    return 1


CHANGES = {
    "nothing": lambda patch: None,
    "a global": lambda patch: patch.setitem(globals(), "BLOCK", 64),
    "a global by an equal value of another type": lambda patch: patch.setitem(globals(), "BLOCK", 128.0),
    "a function": lambda patch: patch.setitem(globals(), "blocks_of", other_blocks),
    "the code of a function": lambda patch: patch.setattr(blocks_of, "__code__", other_blocks.__code__),
    "defaults": lambda patch: patch.setattr(blocks_of, "__defaults__", (3,)),
    "a builtin, by a global": lambda patch: patch.setitem(globals(), "max", min),
    "a builtin": lambda patch: patch.setattr("builtins.max", min),
    "a function of torch": lambda patch: patch.setattr(torch, "empty_like", torch.zeros_like),
    "a function of opwright": lambda patch: patch.setattr(ow, "cdiv", lambda a, b: 1),
    "a method of tensors": lambda patch: patch.setattr(torch.Tensor, "contiguous", torch.Tensor.clone),
    "the kernels": lambda patch: patch.setitem(globals(), "KERNELS", object()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_launcher_names_is_watched(change: str, extension: FastCalls, monkeypatch: pytest.MonkeyPatch):
    watched = recorded_launch._watched(RecordableLauncher(with_all, kernels=kernels))
    call = extension.recorded_call(watched, (), lambda: "repeated", lambda: "run", lambda: "verified")
    extension.verify(first=0)
    assert call() == "repeated"
    with monkeypatch.context() as patch:
        CHANGES[change](patch)
        assert call() == ("repeated" if change == "nothing" else "run")
    assert call() == "repeated"


def test_repetitions_are_verified_at_first_and_now_and_then(extension: FastCalls):
    call = extension.recorded_call((), ((0, 2.0),), lambda a: "repeated", lambda a: "run", lambda a: "verified")
    extension.verify(first=2, of=5)
    assert [call(2.0) for _ in range(6)] == ["verified"] * 2 + ["repeated"] * 2 + ["verified", "repeated"]
    assert [call(other) for other in (3.0, 2, True, -2.0)] == ["run"] * 4


def test_an_unknown_python_knows_no_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
    assert unknown(plain) == "the instructions of Python 3.99 are not known"
