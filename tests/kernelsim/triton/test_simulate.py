"""Triton kernels compiled for the CPU compute what torch computes, and their errors are found by line."""

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

pytest.importorskip("triton")

from kernelsim.errors import FindingError, LaunchError, RefusedError
from tests.kernelsim.loading import simulated
from tests.kernelsim.triton import kernels

F = torch.float32


def test_a_sum_of_vectors_at_sizes_around_the_block() -> None:
    for n in (1, 127, 128, 129, 1000):
        x, y, out = torch.randn(n), torch.randn(n), torch.full((n,), 7.0)
        with simulated(seed=n):
            kernels.add[(-(-n // 128),)](x, y, out, n, B=128)
        assert torch.equal(out, x + y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_sums_in_other_formats_are_rounded_as_torch_rounds(dtype: torch.dtype) -> None:
    x, y = torch.randn(256).to(dtype), torch.randn(256).to(dtype)
    out = torch.empty_like(x)
    with simulated():
        kernels.add[(1,)](x, y, out, 256, B=256)
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn])
def test_conversions_round_as_torch_rounds(dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(224) * 8, torch.randn(30) * 1e-3, torch.tensor([0.0, -0.0])])
    there, back = torch.empty(256, dtype=dtype), torch.empty(256)
    with simulated():
        kernels.cast[(1,)](x, there, B=256)
        kernels.cast[(1,)](there, back, B=256)
    assert torch.equal(there.view(torch.int8), x.to(dtype).view(torch.int8))
    assert torch.equal(back, x.to(dtype).float())


def test_softmax() -> None:
    x = torch.randn(33, 100)
    out = torch.empty_like(x)
    with simulated(uninitialised=[out]):
        kernels.softmax[(33,)](x, out, 100, B=128)
    torch.testing.assert_close(out, x.softmax(1))


@pytest.mark.parametrize(
    ("dtype", "precision", "most"),
    [
        (F, "tf32", 0.05),
        *(
            pytest.param(dtype, "ieee", most, marks=pytest.mark.slow)  # g++ compiles each for ten seconds
            for dtype, most in [(F, 2e-5), (torch.float16, 0.02), (torch.bfloat16, 0.1)]
        ),
    ],
)
def test_a_product_of_matrices(dtype: torch.dtype, precision: str, most: float) -> None:
    m, n, k = 37, 50, 70
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.empty(m, n, dtype=dtype)
    with simulated():
        kernels.matmul[(2, 4)](a, b, c, m, n, k, BM=32, BN=16, BK=16, PRECISION=precision)
    error = (c.double() - a.double() @ b.double()).abs().max()
    assert error < most
    if precision == "tf32":  # the operands are cut to ten bits, as tensor cores do with what Triton gives them
        cut_a, cut_b = ((t.view(torch.int32) & ~0x1FFF).view(torch.float32).double() for t in (a, b))
        torch.testing.assert_close(c.double(), cut_a @ cut_b, rtol=1e-5, atol=1e-5)


def test_reductions_with_functions_of_the_user() -> None:
    x = torch.randn(8, 16)
    out = torch.empty(4, 16)
    with simulated():
        kernels.reductions[(1,)](x, out, N=8, M=16)
    torch.testing.assert_close(out, torch.stack([x.sum(0), x.prod(0), x.argmax(0), x.max(0)[0] + x.argmax(0)]))


def test_scans_in_both_directions() -> None:
    x = torch.randn(8, 16)
    out = torch.empty(3, 8, 16)
    with simulated():
        kernels.scans[(1,)](x, out, N=8, M=16)
    torch.testing.assert_close(out, torch.stack([x.cumsum(1), x.flip(0).cumsum(0).flip(0), x.cumprod(0)]))


def test_shapes_sort_and_gather() -> None:
    x = torch.randn(8, 8)
    out = torch.empty(4, 8, 8)
    with simulated():
        kernels.shapes[(1,)](x, out, N=8)
    swapped = x.view(8, 4, 2).flip(2).reshape(8, 8)
    assert torch.equal(out, torch.stack([x.T, swapped, x.sort(1)[0], x.flip(1)]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.int8])
def test_integers_round_towards_zero_as_in_c(dtype: torch.dtype) -> None:
    x = torch.randint(-50, 50, (64,)).to(dtype)
    y = torch.randint(1, 9, (64,)).to(dtype)
    out = torch.empty(5, 64, dtype=dtype)
    with simulated():
        kernels.integers[(1,)](x, y, out, 64, B=64)
    quotient = torch.div(x, y, rounding_mode="trunc")
    wanted = [quotient, x - quotient * y, (x ^ y) | (x & 7), (x >> 2) + (y << 3)]
    wanted.append(torch.where(x > y, x.abs(), torch.minimum(x, y)))
    assert torch.equal(out, torch.stack(wanted))


def test_a_histogram() -> None:
    x, out = torch.randint(0, 16, (256,), dtype=torch.int32), torch.empty(16, dtype=torch.int32)
    with simulated():
        kernels.histogram[(1,)](x, out, B=256, BINS=16)
    assert torch.equal(out, torch.bincount(x, minlength=16).int())


def test_while_if_and_early_return() -> None:
    x, out = torch.tensor([6, 7, 27], dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    with simulated():
        kernels.collatz[(3,)](x, out)
    assert out.tolist() == [8, 16, 0]


def test_atomics_and_a_lock_are_no_races() -> None:
    x = torch.randint(0, 100, (1000,), dtype=torch.int32)
    lock, out = torch.zeros(1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    with simulated(seed=1):
        kernels.count[(8,)](x, lock, out, 1000, B=128)
    assert out.tolist() == [int(x.sum()), int(x.max()), 8]


def test_the_unchecked_build_computes_the_same() -> None:
    x = torch.randn(9, 100)
    out = torch.empty_like(x)
    with simulated(checked=False):
        kernels.softmax[(9,)](x, out, 100, B=128)
    torch.testing.assert_close(out, x.softmax(1))


def test_inline_assembly_is_refused_by_name() -> None:
    with simulated(), pytest.raises(RefusedError, match="elementwise_inline_asm"):
        kernels.assembly[(1,)](torch.zeros(16, dtype=torch.int32), B=16)


@pytest.mark.skipif(triton.__version__ < "3.5", reason="Triton 3.4 does not compile its own gdc_wait")
def test_waiting_for_the_launch_before_is_no_assembly_to_be_refused() -> None:
    x, out = torch.randn(16), torch.empty(16)
    with simulated():
        kernels.dependent[(1,)](x, out, B=16)
    torch.testing.assert_close(out, x)


@pytest.mark.parametrize(("grid", "axis"), [((2**31,), 0), ((1, 65536), 1), ((1, 1, 65536), 2)])
def test_a_grid_that_cuda_refuses(grid: tuple[int, ...], axis: int) -> None:
    x = torch.ones(8)
    message = rf"add: the grid .* has {grid[axis]} programs in axis {axis}; CUDA refuses more than"
    with simulated(), pytest.raises(LaunchError, match=message):
        kernels.add[grid](x, x, x, 8, B=8)


def test_the_largest_grid_that_cuda_takes() -> None:
    x, out = torch.ones(8), torch.empty(8)
    with simulated():
        kernels.add[(1, 65535)](x, x, out, 8, B=8)
        kernels.add[(65537,)](x, x, out, 8, B=8)
    assert out.tolist() == [2] * 8


# --- planted faults ---


def _wrong_line(kernel: Any) -> int:
    source, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(source) if "# wrong" in line)


def _finding(kernel: Any, grid: int, *args: Any, uninitialised: Any = (), **constants: Any) -> Any:
    with simulated(uninitialised=uninitialised), pytest.raises(FindingError) as raised:
        kernel[(grid,)](*args, **constants)
    findings = raised.value.findings
    assert {f.line for f in findings} == {_wrong_line(kernel)}, str(raised.value)
    assert findings[0].source_line.endswith("# wrong")
    return findings[0]


def test_a_load_without_a_mask_is_out_of_bounds() -> None:
    found = _finding(kernels.no_mask, 2, torch.randn(100), torch.zeros(100), 100, B=64)
    assert found.kind == "out-of-bounds"
    assert (found.program, found.element) == ((1, 0, 0), 36)
    assert "x (float32 [100])" in found.message


def test_a_mask_that_is_one_too_wide_is_out_of_bounds() -> None:
    found = _finding(kernels.mask_too_wide, 1, torch.randn(100), torch.zeros(100), 100, B=128)
    assert found.message == "writes 4 bytes just past the end of out (float32 [100])"


def test_a_store_over_a_neighbours_row_is_a_race() -> None:
    found = _finding(kernels.over_the_neighbour, 4, torch.randn(4, 100), torch.zeros(4, 100), 100, B=128)
    assert found.kind == "race"


def test_a_load_of_what_another_program_stores_is_a_race() -> None:
    with simulated(), pytest.raises(FindingError) as raised:
        kernels.reads_the_neighbour[(4,)](torch.randn(256), 256, B=64)
    assert {f.kind for f in raised.value.findings} == {"race"}


def test_an_offset_of_more_than_32_bits_is_an_overflow() -> None:
    x, out = torch.zeros(1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    found = _finding(kernels.overflow, 3, x, out, 2**30)
    assert found.kind == "integer-overflow"


def test_an_assertion_that_fails_has_its_message() -> None:
    found = _finding(kernels.asserts, 1, torch.tensor([1.0, 2.0, -1.0, 3.0]), 4, B=4)
    assert (found.kind, found.message, found.element) == ("assertion", "must be positive", 2)


def test_a_load_of_an_element_that_nothing_has_written_is_found() -> None:
    out = torch.empty(64)
    found = _finding(kernels.reads_uninitialised, 1, torch.randn(64), out, uninitialised=[out], B=64)
    assert found.kind == "uninitialised"


def test_an_autotuned_kernel_takes_its_first_configuration_and_keeps_all() -> None:
    x, y, out = torch.randn(200), torch.randn(200), torch.empty(200)
    grids = []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        grids.append(meta["B"])
        return (-(-200 // meta["B"]),)

    with simulated():
        kernels.tuned_add[grid](x, y, out, 200)
    assert torch.equal(out, x + y)
    assert set(grids) == {64}
    assert len(kernels.tuned_add.configs) == 2


def test_threads_are_simulated_each_by_itself() -> None:
    """Blocks of two threads that overlap: the first to begin is the first to end."""
    inside, left = threading.Event(), threading.Event()
    sums: list[torch.Tensor] = []

    def add() -> None:
        x, out = torch.ones(128), torch.empty(128)
        kernels.add[(1,)](x, x, out, 128, B=128)
        sums.append(out)

    def second() -> None:
        inside.wait()
        with simulated():
            left.wait()
            add()

    thread = threading.Thread(target=second)
    thread.start()
    with simulated():
        inside.set()
        add()
    left.set()
    thread.join()
    assert [out.sum().item() for out in sums] == [256, 256]
    with pytest.raises(Exception, match=r"."):  # Triton itself takes no CPU tensors: nothing is left behind
        add()
    assert len(sums) == 2


def test_launches_of_one_kernel_at_the_same_time() -> None:
    x = torch.arange(64 * 128.0)
    outs = [torch.empty(64 * 128) for _ in range(8)]

    def add(i: int) -> None:
        with simulated(seed=i):
            for _ in range(20):
                kernels.add[(64,)](x, torch.full_like(x, i), outs[i], 64 * 128, B=128)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))  # raises what a thread raised
    assert all(torch.equal(out, x + i) for i, out in enumerate(outs))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_launches_give_their_memory_back() -> None:
    x, out = torch.ones(4 * 65536), torch.empty(4 * 65536)
    before = 0
    with simulated(checked=False):
        for launch in range(150):
            if launch == 20:
                before = _resident()
            kernels.add[(4,)](x, x, out, 4 * 65536, B=65536)
    assert _resident() - before < 60 << 20


def test_text_that_cannot_be_read_is_refused() -> None:
    from kernelsim.errors import NotSimulatedError
    from kernelsim.triton_sim.translation import _generated

    with pytest.raises(NotSimulatedError, match="kernel: the Triton simulator cannot read"):
        _generated(
            "kernel", "module {\n  tt.func public @kernel() {\n    %0 = tt.reduce %1 : i32\n    tt.return\n  }\n}"
        )
