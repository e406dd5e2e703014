"""What a launcher may depend on besides its arguments is found in its code."""

from __future__ import annotations

import functools
import math
import os
import random
import time
import types
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.backends.gpu.launcher_names import unrecordable, watched_names
from opwright.backends.names_in_code import is_as_it_was

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
    assert unrecordable(launcher) is None


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
    from tests.backends.gpu.test_launcher_names import BLOCK

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
    assert unrecordable(launcher) is not None


def test_names_that_are_rebound_are_noticed(monkeypatch):
    names = watched_names(with_helper)
    assert {w.name for w in names} == {"KERNELS", "BLOCK", "blocks_of"}
    assert all(map(is_as_it_was, names))
    monkeypatch.setitem(globals(), "BLOCK", 64)
    assert [w.name for w in names if not is_as_it_was(w)] == ["BLOCK"] * 2
