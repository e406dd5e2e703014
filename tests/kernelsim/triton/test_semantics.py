"""What public kernels rely on: truth values as numbers, rounding modes, annotations, tuples, wrapping, pointers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelsim.errors import FindingError
from tests.kernelsim.loading import simulated

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = [pytest.mark.triton, pytest.mark.compiler]


@triton.jit
def truth_values(x, y, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i) > 0, tl.load(y + i) > 0
    tl.store(out + i, (a * b).to(tl.int32))


@triton.jit
def towards_zero(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16, fp_downcast_rounding="rtz"))


@triton.jit
def clamped(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.clamp(tl.load(x + i), 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def annotated(out, n: tl.int64, x: tl.float64):
    tl.store(out, n * 100000 + x)


@triton.jit
def of_a_tuple(both, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(both[0] + i) * both[1])


@triton.jit
def _apply(a, b, OP: tl.constexpr):
    return a + b if OP == "+" else a - b


@triton.jit
def two_helpers(x, out):
    v = tl.load(x)
    tl.store(out, _apply(v, 2.0, "+") * _apply(v, 2.0, "-"))


@triton.jit
def wraps(x, out):
    state = tl.load(x).to(tl.uint32, bitcast=True)
    tl.store(out, (state * 1664525 + 1013904223).to(tl.int32, bitcast=True))


@triton.jit
def by_address(addresses, out, B: tl.constexpr):
    i = tl.arange(0, B)
    source = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.program_id(0) * B + i, tl.load(source + i))


@triton.jit
def gathers(x, index, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.gather(tl.load(x + i), tl.load(index + i), 0))


@triton.jit
def assumes(x, out, n, B: tl.constexpr):
    tl.assume(n > 4)
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0))


@triton.jit
def states_an_alignment(x, out, B: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(tl.multiple_of(x + i, SIZE)))


@triton.jit
def states_an_alignment_in_a_loop(x, out, step, B: tl.constexpr):
    i = tl.arange(0, B)
    at, total = x + i, tl.zeros([B], tl.float32)
    for _ in range(3):
        at = tl.multiple_of(at, 16)
        total += tl.load(at)
        at += step
    tl.store(out + i, total)


@triton.jit
def states_a_multiple(x, out, stride, B: tl.constexpr):
    i = tl.multiple_of(tl.program_id(0) * stride + tl.arange(0, B), B)
    tl.store(out + i, tl.load(x + i))


@triton.jit
def waits_for_all(arrived, out, programs):
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < programs:
        pass
    tl.store(out + tl.program_id(0), 1)


def _prune(configs: Any, named: Any, **_: Any) -> Any:
    return [c for c in configs if c.kwargs["B"] >= named["n"]]


@triton.autotune(
    [triton.Config({"B": 4}), triton.Config({"B": 16})], key=["n"], prune_configs_by={"early_config_prune": _prune}
)
@triton.jit
def pruned(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def product_of(x, y, out, PRECISION: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision=PRECISION))


def run(kernel: Any, *arguments: Any, grid: int = 1, **constants: Any) -> None:
    with simulated():
        kernel[(grid,)](*arguments, **constants)


def test_a_product_of_truth_values() -> None:
    x, y = torch.tensor([1.0, 1, -1, -1]), torch.tensor([1.0, -1, 1, -1])
    out = torch.empty(4, dtype=torch.int32)
    run(truth_values, x, y, out, B=4)
    assert out.tolist() == [1, 0, 0, 0]


def test_rounding_towards_zero() -> None:
    x = torch.tensor([1.0, -1.00390625 - 2**-9, 1.0 + 2**-7 - 2**-12, torch.inf])
    out = torch.empty(4, dtype=torch.bfloat16)
    run(towards_zero, x, out, B=4)
    assert out.tolist() == [1.0, -1.0, 1.0, torch.inf]


def test_a_clamp_that_keeps_nan() -> None:
    out = torch.empty(4)
    run(clamped, torch.tensor([torch.nan, 2.0, -1.0, 0.5]), out, B=4)
    assert out[0].isnan()
    assert out[1:].tolist() == [1.0, 0.0, 0.5]


def test_annotations_say_the_types_of_numbers() -> None:
    out = torch.empty((), dtype=torch.float64)
    run(annotated, out, 100_000, 0.1)
    assert out.item() == 10_000_000_000.1


def test_a_tuple_of_arguments() -> None:
    x, out = torch.randn(4), torch.empty(4)
    run(of_a_tuple, (x, 3), out, B=4)
    assert torch.equal(out, x * 3)


def test_two_forms_of_one_helper() -> None:
    out = torch.empty(1)
    run(two_helpers, torch.tensor([5.0]), out)
    assert out.item() == 21


def test_numbers_without_a_sign_wrap() -> None:
    out = torch.empty(1, dtype=torch.int32)
    run(wraps, torch.tensor([12345], dtype=torch.int32), out)
    assert out.item() % 2**32 == (12345 * 1664525 + 1013904223) % 2**32


def test_addresses_in_memory_may_be_of_any_tensor() -> None:
    parts, out = [torch.randn(4), torch.randn(4)], torch.empty(2, 4)
    run(by_address, torch.tensor([p.data_ptr() for p in parts]), out, grid=2, B=4)
    assert torch.equal(out, torch.stack(parts))


def test_a_gather_outside_of_its_tensor_is_found() -> None:
    x, index, out = torch.randn(4), torch.tensor([3, 0, 1, 2]), torch.empty(4)
    run(gathers, x, index, out, B=4)
    assert torch.equal(out, x[index])
    with pytest.raises(FindingError, match=r"tl\.gather has an index outside"):
        run(gathers, x, index + 1, out, B=4)


def test_what_a_kernel_assumes_is_checked() -> None:
    run(assumes, torch.randn(8), torch.empty(8), 8, B=8)
    with pytest.raises(FindingError, match=r"what tl\.assume states is not so"):
        run(assumes, torch.randn(8), torch.empty(8), 3, B=8)


def test_what_a_kernel_states_of_multiples_is_checked() -> None:
    x, out = torch.randn(64), torch.empty(64)
    for stride in (16, 32):
        run(states_a_multiple, x, out, stride, grid=2, B=16)
    with pytest.raises(FindingError, match=r"what tl\.multiple_of states is not so: no multiple of 16"):
        run(states_a_multiple, x, out, 40, grid=2, B=16)


def test_what_a_kernel_states_of_addresses_is_checked() -> None:
    x, out = torch.randn(128), torch.empty(32)
    for size in (16, 256):  # in bytes; memory begins at multiples of more than it does here on a GPU
        run(states_an_alignment, x, out, B=32, SIZE=size)
        run(states_an_alignment, x[64:], out, B=32, SIZE=size)
    run(states_an_alignment, x[2:], out, B=32, SIZE=8)
    with pytest.raises(FindingError, match=r"what tl\.multiple_of states is not so: no multiple of 16 bytes"):
        run(states_an_alignment, x[2:], out, B=32, SIZE=16)


def test_what_a_kernel_states_of_an_address_in_a_loop_is_checked_in_each_turn() -> None:
    x, out = torch.randn(128), torch.empty(32)
    run(states_an_alignment_in_a_loop, x, out, 8, B=32)
    with pytest.raises(FindingError, match=r"what tl\.multiple_of states is not so: no multiple of 16 bytes"):
        run(states_an_alignment_in_a_loop, x, out, 7, B=32)


def test_configurations_that_a_kernel_prunes_are_not_taken() -> None:
    x, out = torch.randn(10), torch.empty(10)
    run(pruned, x, out, 10)
    assert torch.equal(out, x)
    assert pruned.best_config.kwargs == {"B": 16}
    assert len(pruned.configs) == 2


def test_programs_may_wait_for_all_others() -> None:
    out = torch.zeros(40)
    run(waits_for_all, torch.zeros(1, dtype=torch.int32), out, 40, grid=40)
    assert (out == 1).all()


@pytest.mark.parametrize(("precision", "least", "most"), [("tf32", 1e-4, 0.1), ("tf32x3", 0.0, 1e-5)])
def test_precisions_of_a_product(precision: str, least: float, most: float) -> None:
    x, y, out = torch.randn(16, 16), torch.randn(16, 16), torch.empty(16, 16)
    run(product_of, x, y, out, PRECISION=precision)
    assert least <= (out - x.double() @ y.double()).abs().max().item() < most
