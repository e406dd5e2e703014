"""Programs that run at the same time: races are found in every launch, and what is none is never reported."""

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
def overlapping(x, out, n, STEP: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * STEP + tl.arange(0, B)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def stores_its_number(out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.zeros([B], tl.float32) + tl.program_id(0))


@triton.jit
def one_stores_and_others_load(shared, out, B: tl.constexpr):
    i, program = tl.arange(0, B), tl.program_id(0)
    if program == 0:
        tl.store(shared + i, 1.0 + i)
    else:
        tl.store(out + program * B + i, tl.load(shared + i))


@triton.jit
def counts_and_loads(count, x, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + tl.arange(0, B)))
    tl.atomic_add(count + tl.arange(0, B), 1)


@triton.jit
def through_an_address(addresses, out, B: tl.constexpr):
    i = tl.arange(0, B)
    target = tl.load(addresses).to(tl.pointer_type(tl.float32))
    tl.store(target + i, tl.load(out + i) + 1)


@triton.jit
def rows_that_overlap(x, scale, out, m, n, BM: tl.constexpr, BN: tl.constexpr):
    r, c = tl.arange(0, BM), tl.arange(0, BN)
    at = r[:, None] * n + c[None, :]
    inside = (at < m * n) & (r[:, None] < m)
    factor = tl.load(scale + r, mask=r < m, other=0.0)
    tl.store(out + at, tl.load(x + at, mask=inside, other=0.0) * factor[:, None], mask=inside)


@triton.jit
def stores_again(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    for turn in range(3):
        tl.store(out, turn)
        tl.store(out + 1 + i, tl.load(x + i) + turn)
    tl.store(out + 1 + i, tl.load(x + i))
    tl.store(out + 1 + i % 2, i % 2)


@triton.jit
def stores_parts(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out.to(tl.pointer_type(tl.int8)) + i, tl.load(x + i))


@triton.jit
def suppresses(over, keep, n, HOW: tl.constexpr, B: tl.constexpr):
    """Each number that is kept removes those after it that are too near, whatever block they are in."""
    for one in range(n):
        if tl.load(keep + one) != 0:
            later = one + 1 + tl.arange(0, B)
            near = tl.load(over + one * n + later, mask=later < n, other=0) != 0
            tl.store(keep + later, 0, mask=near)
        if HOW == "barrier":
            tl.debug_barrier()
        if HOW == "sum":  # its threads exchange what they have, and wait for each other
            tl.store(keep + n, tl.sum(tl.arange(0, B)))


@triton.jit
def stores_and_loads_again(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i))
    tl.store(out + i, tl.load(out + i) + 1)
    tl.store(out + B, tl.load(x))
    tl.store(out + B, tl.load(out + B) + 1)


@triton.jit
def stores_and_loads(x, out, HOW: tl.constexpr, BARRIER: tl.constexpr, B: tl.constexpr):
    """Doubles x through memory that a store has changed just before."""
    i = tl.arange(0, B)
    scratch = out + B
    if HOW == "a number in a block":
        tl.store(scratch + 3, 2.0)
    elif HOW == "a number as a number":
        tl.store(scratch, 2.0)
    else:
        tl.store(scratch + i, 2 * tl.load(x + i))
    if BARRIER:
        tl.debug_barrier()
    if HOW == "a number in a block":
        tl.store(out + i, tl.load(x + i) * tl.sum(tl.load(scratch + i)))
    elif HOW == "a number as a number":
        tl.store(out + i, tl.load(x + i) * (tl.load(scratch) + 0.0))
    elif HOW == "another element":
        tl.store(out + B - 1 - i, tl.load(scratch + B - 1 - i))
    elif HOW == "another tile":
        rows, columns = tl.arange(0, 8)[:, None], tl.arange(0, B // 8)[None, :]
        tl.store(out + columns * 8 + rows, tl.load(scratch + columns * 8 + rows))
    else:  # the same element
        tl.store(out + i, tl.load(scratch + i))


def launches_with_findings(times: int, kernel: Any, grid: int, *args: Any, **constants: Any) -> int:
    kinds = []
    for _ in range(times):
        fresh = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        with simulated():
            try:
                kernel[(grid,)](*fresh, **constants)
            except FindingError as error:
                kinds.append({f.kind for f in error.findings})
    assert all(found == {"race"} for found in kinds)
    return len(kinds)


@pytest.mark.parametrize("times", [300, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", [64, 0])
def test_programs_that_store_the_same_value_do_not_race(times: int, step: int) -> None:
    x, out = torch.randn(2049), torch.full((2049,), torch.nan)
    assert launches_with_findings(times, overlapping, 33, x, out, 2049, STEP=step, B=128) == 0


@pytest.mark.parametrize("times", [50, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("block", [1, 64])
def test_programs_that_store_different_values_always_race(times: int, block: int) -> None:
    assert launches_with_findings(times, stores_its_number, 4, torch.full((64,), torch.nan), B=block) == times


@pytest.mark.parametrize("times", [50, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("block", [1, 64])
def test_a_load_of_what_another_program_stores_always_races(times: int, block: int) -> None:
    shared, out = torch.zeros(block), torch.zeros(4 * block)
    assert launches_with_findings(times, one_stores_and_others_load, 4, shared, out, B=block) == times


def test_shared_loads_and_atomics_do_not_race() -> None:
    count, x, out = torch.zeros(64, dtype=torch.int32), torch.randn(64), torch.empty(40 * 64)
    assert launches_with_findings(100, counts_and_loads, 40, count, x, out, B=64) == 0


def test_a_store_through_an_address_in_memory_is_seen_in_the_argument_that_it_hits() -> None:
    out = torch.zeros(16)
    with simulated():
        through_an_address[(1,)](torch.tensor([out.data_ptr()]), out, B=16)
        assert out.tolist() == [1] * 16
        with pytest.raises(FindingError, match="race"):
            through_an_address[(2,)](torch.tensor([out.data_ptr()]), out, B=16)


def test_elements_of_one_store_with_different_values_at_one_address_are_found() -> None:
    x, scale, out = torch.randn(4, 5), torch.randn(4), torch.empty(4, 5)
    with simulated(), pytest.raises(FindingError, match="race") as raised:
        rows_that_overlap[(1,)](x, scale, out, 4, 5, BM=4, BN=8)
    (found,) = raised.value.findings
    assert "where another element of the same block has another value" in found.message
    assert found.source_line.startswith("tl.store(out + at")


def test_elements_of_one_store_with_the_same_value_at_one_address_are_none() -> None:
    x, out = torch.randn(4, 5), torch.empty(4, 5)
    with simulated():
        rows_that_overlap[(1,)](x, torch.full((4,), 2.0), out, 4, 5, BM=4, BN=8)
    assert torch.equal(out, x * 2)


def test_a_later_store_may_change_what_an_earlier_one_has_written() -> None:
    x, out = torch.randint(0, 9, (8,), dtype=torch.int32), torch.empty(9, dtype=torch.int32)
    with simulated():
        stores_again[(1,)](x, out, B=8)
    assert out.tolist() == [2, 0, 1, *x[2:].tolist()]


def test_parts_of_an_element_are_no_elements_at_one_address() -> None:
    x, out = torch.randint(0, 99, (16,), dtype=torch.int8), torch.empty(4, dtype=torch.int32)
    with simulated():
        stores_parts[(1,)](x, out, B=16)
    assert torch.equal(out.view(torch.int8), x)


def suppressed(how: str, over: torch.Tensor, **options: Any) -> torch.Tensor:
    keep = torch.ones(len(over) + 1, dtype=torch.int32)
    suppresses[(1,)](over, keep, len(over), HOW=how, B=64, **options)
    return keep[:-1]


def test_a_number_that_all_threads_load_after_one_has_stored_it_in_a_block_is_found() -> None:
    over = (torch.rand(40, 40) > 0.9).int()
    with simulated(), pytest.raises(FindingError, match="race") as raised:
        suppressed("nothing between", over)
    (found,) = raised.value.findings
    assert "no tl.debug_barrier() is between" in found.message
    assert found.source_line.startswith("if tl.load(keep + one)")


@pytest.mark.parametrize("how", ["a number in a block", "a number as a number", "another element", "another tile"])
def test_a_load_of_what_another_thread_of_the_program_has_stored_needs_a_barrier(how: str) -> None:
    x, out = torch.randn(64), torch.zeros(128)
    with simulated(), pytest.raises(FindingError, match=r"race: .* another thread of the program has stored"):
        stores_and_loads[(1,)](x, out, HOW=how, BARRIER=False, B=64)
    for options in ({"BARRIER": True}, {"BARRIER": False, "num_warps": 1}):
        out.zero_()
        with simulated():
            stores_and_loads[(1,)](x, out, HOW=how, B=64, **options)
        assert torch.equal(out[:64], 2 * x)


def test_the_same_element_of_another_block_is_that_of_the_same_thread() -> None:
    x, out = torch.randn(64), torch.zeros(128)
    with simulated():
        stores_and_loads[(1,)](x, out, HOW="the same element", BARRIER=False, B=64)
    assert torch.equal(out[:64], 2 * x)


@pytest.mark.parametrize(("how", "warps"), [("barrier", 4), ("sum", 4), ("nothing between", 1)])
def test_where_threads_wait_for_each_other_none_loads_too_early(how: str, warps: int) -> None:
    over = (torch.rand(40, 40) > 0.9).int()
    expected = torch.ones(40, dtype=torch.int32)
    for i in range(40):
        if expected[i]:
            expected[i + 1 :] *= 1 - over[i, i + 1 :]
    with simulated():
        assert torch.equal(suppressed(how, over, num_warps=warps), expected)


def test_what_no_store_changes_may_be_loaded_without_waiting() -> None:
    with simulated():
        assert torch.equal(suppressed("nothing between", torch.zeros(40, 40, dtype=torch.int32)), torch.ones(40).int())


def test_a_thread_sees_what_it_has_stored_itself() -> None:
    x, out = torch.randn(64), torch.empty(65)
    with simulated():
        stores_and_loads_again[(1,)](x, out, B=64)
    assert torch.equal(out, torch.cat((x, x[:1])) + 1)
