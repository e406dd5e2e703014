"""CUDA kernels on the simulator: every planted defect is found at its line, and correct kernels have no findings."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernelsim.cuda_sim import compilation
from kernelsim.cuda_sim.kernel import SimulatedKernel
from kernelsim.cuda_sim.memory import Unwritten
from kernelsim.errors import FindingError, LaunchError
from kernelsim.findings import CudaFinding
from kernelsim.own_host import own_host
from kernelsim.text.source import CudaSource
from tests.kernelsim.loading import loaded
from tests.sampled import quick

pytestmark = pytest.mark.compiler

KERNELS = Path(__file__).parent / "kernels"
SEEDS = (None, 0, 1)


@cache
def kernel(file: str, expression: str, checked: bool = True) -> SimulatedKernel:
    path = KERNELS / file
    source = CudaSource(path.read_text(), path)
    return loaded(compilation.compile_kernel(source, expression, own_host(), checked=checked))


def defect(
    name: str, arguments: list[Any], *, block: int = 64, grid: int = 1, **options: Any
) -> tuple[CudaFinding, ...]:
    smem = options.pop("smem_bytes", 0)
    with pytest.raises(FindingError) as caught:
        kernel("defects.cu", name).launch((grid, 1, 1), (block, 1, 1), smem, arguments, **options)
    return tuple(caught.value.findings)  # type: ignore[arg-type]


def expected(name: str) -> tuple[int, set[str]]:
    """The marked line of a kernel of defects.cu, and the kinds that must be found there."""
    lines = (KERNELS / "defects.cu").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if re.search(rf"__global__ void {name}\(", line))
    marked = next(i for i in range(start, len(lines)) if "// !" in lines[i])
    return marked + 1, set(lines[marked].rpartition("// !")[2].split())


def lines_of(finding: CudaFinding) -> set[int]:
    """A race is at the lines of both threads."""
    return {finding.line, finding.other.line} if finding.kind == "race" and finding.other else {finding.line}


def f(*shape: int) -> torch.Tensor:
    return torch.arange(float(np.prod(shape))).reshape(shape)


# name → the arguments of its launch
DEFECTS: dict[str, Callable[[], dict[str, Any]]] = {
    "writes_past_the_end": lambda: {"arguments": [f(100), 100], "grid": 2},
    "reads_before_the_start": lambda: {"arguments": [f(64), f(64)]},
    "reads_a_null_pointer": lambda: {"arguments": [None, f(64)]},
    "loads_a_vector_across_the_end": lambda: {"arguments": [f(63), f(64)], "block": 16},
    "loads_past_the_end_through_the_cache_hint": lambda: {"arguments": [f(64), f(64)]},
    "ignores_the_stride": lambda: {"arguments": [f(8, 16)[:, :8]]},
    "adds_atomically_past_the_end": lambda: {"arguments": [f(64)]},
    "copies_too_much": lambda: {"arguments": [f(100), f(65), 100], "block": 1},
    "reads_past_a_constant": lambda: {"arguments": [f(1), 4], "block": 1},
    "writes_past_static_shared": lambda: {"arguments": [f(64)]},
    "writes_past_dynamic_shared": lambda: {"arguments": [f(64)], "smem_bytes": 63 * 4},
    "indexes_past_a_local_array": lambda: {"arguments": [f(64), 4]},
    "reads_shared_that_was_never_written": lambda: {"arguments": [f(64)]},
    "adds_to_what_was_never_set": lambda: (lambda x: {"arguments": [x], "uninitialised": [x]})(torch.empty(1)),
    "reads_its_empty_output": lambda: (lambda x: {"arguments": [x], "uninitialised": [x]})(torch.empty(64)),
    "loads_a_misaligned_float4": lambda: {"arguments": [f(64), f(64)], "block": 8},
    "stores_a_misaligned_half2": lambda: {"arguments": [f(64).half()], "block": 1},
    "lacks_a_barrier": lambda: {"arguments": [f(64)]},
    "lacks_the_second_barrier": lambda: {"arguments": [f(64)]},
    "lacks_a_warp_barrier": lambda: {"arguments": [f(64)]},
    "counts_without_atomics": lambda: {"arguments": [torch.zeros(1, dtype=torch.int32)], "block": 1, "grid": 2},
    "all_write_the_same": lambda: {"arguments": [torch.zeros(1, dtype=torch.int32)], "block": 32},
    "shifts_in_place_across_blocks": lambda: {"arguments": [f(128), 128], "grid": 2},
    "mixes_atomics_and_stores": lambda: {"arguments": [torch.zeros(1, dtype=torch.int32)]},
    "forgets_the_fence": lambda: {"arguments": [f(4), torch.zeros(1, dtype=torch.int32), f(1)], "grid": 4},
    "halves_race": lambda: {"arguments": [f(64).half()], "grid": 2},
    "barrier_for_some": lambda: {"arguments": [f(64)]},
    "barriers_in_two_branches": lambda: {"arguments": [f(64)]},
    "barrier_in_a_loop_of_different_length": lambda: {"arguments": [f(64)]},
    "shuffles_with_absent_lanes": lambda: {"arguments": [f(64)]},
    "shuffles_while_others_wait": lambda: {"arguments": [f(64)]},
    "mask_without_the_caller": lambda: {"arguments": [torch.zeros(64, dtype=torch.int32)]},
    "reads_a_returned_lane": lambda: {"arguments": [f(64), 20]},
    "loops_forever": lambda: {"arguments": [torch.zeros(1, dtype=torch.int32)], "time_limit_s": 0.2},
    "waits_forever": lambda: {"arguments": [torch.zeros(1, dtype=torch.int32)], "time_limit_s": 0.2},
    "asserts": lambda: {"arguments": [f(64)]},
    "traps": lambda: {"arguments": [64], "block": 1},
    "divides_by_zero": lambda: {"arguments": [torch.zeros(64, dtype=torch.int32), 64]},
    "tile_leaves_lanes_out": lambda: {"arguments": [f(64)]},
    "unlocks_before_a_fence": lambda: {"arguments": [torch.zeros(1, dtype=torch.int32), f(1)], "grid": 4},
}


def test_every_kernel_of_the_file_is_launched() -> None:
    text = (KERNELS / "defects.cu").read_text()
    assert set(re.findall(r"__global__ void (\w+)\(", text)) == set(DEFECTS)


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("name", quick(DEFECTS, every=3))
def test_a_planted_defect_is_found_at_its_line(name: str, seed: int | None) -> None:
    line, kinds = expected(name)
    findings = defect(name, **DEFECTS[name](), seed=seed)
    messages = "\n".join(map(str, findings))
    assert all(line in lines_of(finding) for finding in findings), messages
    found = {finding.kind for finding in findings}
    # Whether a value was missing or only unordered depends on which thread ran first.
    assert found == kinds or (len(kinds) > 1 and "race" in found and found <= kinds), messages
    assert all(finding.file == "defects.cu" and finding.source_line for finding in findings)
    assert all(finding.kernel == name and finding.message for finding in findings)


def test_findings_say_which_memory_and_which_threads() -> None:
    (found,) = defect("writes_past_the_end", [f(100), 100], grid=2)
    assert (found.block, found.thread) == ((1, 0, 0), (36, 0, 0))
    assert found.message == "writes 4 bytes just past the end of argument 'x' (float32 [100])"
    (found,) = defect("writes_past_static_shared", [f(64)])
    assert found.message == "writes 4 bytes just past the end of shared variable 'first' (256 bytes)"
    (found,) = defect("lacks_the_second_barrier", [f(64)])
    assert found.other is not None
    assert abs(found.other.line - found.line) == 1
    assert found.other.thread[0] == 63 - found.thread[0]
    assert "races with a " in found.message
    (found,) = defect("shuffles_with_absent_lanes", [f(64)])
    assert found.message == "the mask 0xffffffff includes lanes that do not take part: lanes 16-31"


def test_nothing_is_written_out_of_bounds() -> None:
    whole = torch.zeros(200)
    defect("writes_past_the_end", [whole[:100], 100], grid=2)
    assert whole[100:].eq(0).all()


def test_unwritten_memory_is_remembered_between_launches() -> None:
    fresh = Unwritten(torch.empty(128))
    half, whole = kernel("correct.cu", "axpy"), kernel("correct.cu", "axpy")
    half.launch((1, 1, 1), (64, 1, 1), 0, [f(64), f(64), 1.0, fresh.tensor, 64], uninitialised=[fresh])
    half.launch((1, 1, 1), (64, 1, 1), 0, [fresh.tensor, f(64), 1.0, f(64), 64], uninitialised=[fresh])
    with pytest.raises(FindingError, match="uninitialised"):
        whole.launch((2, 1, 1), (64, 1, 1), 0, [fresh.tensor, f(128), 1.0, f(128), 128], uninitialised=[fresh])


# --- correct kernels ---


def run(
    name: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: list[Any], smem: int = 0, **options: Any
) -> None:
    def three(dims: tuple[int, ...]) -> tuple[int, int, int]:
        x, y, z = (*dims, 1, 1)[:3]
        return x, y, z

    kernel("correct.cu", name, options.pop("checked", True)).launch(
        three(grid), three(block), smem, arguments, **options
    )


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
class TestCorrectKernels:
    def test_block_reduction_with_shuffles(self, seed: int | None, checked: bool) -> None:
        x, out = torch.randint(-99, 99, (1000,), dtype=torch.int32), torch.empty(4, dtype=torch.int32)
        run("block_sum", (4,), (256,), [x, out, 1000], seed=seed, checked=checked, uninitialised=[out])
        assert out.tolist() == [int(part.sum()) for part in x.split(256)]

    def test_tiled_transpose(self, seed: int | None, checked: bool) -> None:
        x, out = torch.randn(50, 70), torch.empty(70, 50)
        run("transpose<16>", (5, 4), (16, 16), [x, out, 50, 70], seed=seed, checked=checked, uninitialised=[out])
        assert torch.equal(out, x.T)

    def test_shared_memory_matmul(self, seed: int | None, checked: bool) -> None:
        a, b = torch.randint(-9, 9, (32, 32)).float(), torch.randint(-9, 9, (32, 32)).float()
        out = torch.empty(32, 32)
        run("matmul", (2, 2), (16, 16), [a, b, out, 32], seed=seed, checked=checked, uninitialised=[out])
        assert torch.equal(out, a @ b)

    def test_histogram_with_atomics(self, seed: int | None, checked: bool) -> None:
        x, bins = torch.randint(0, 32, (2000,), dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
        run("histogram", (3,), (128,), [x, bins, 2000], seed=seed, checked=checked)
        assert torch.equal(bins.long(), torch.bincount(x, minlength=32))

    @pytest.mark.parametrize(("cpp", "dtype"), [("float", torch.float32), ("int", torch.int32)])
    def test_scan_in_dynamic_shared_memory(self, seed: int | None, checked: bool, cpp: str, dtype: torch.dtype) -> None:
        x = torch.randint(-9, 9, (128,)).to(dtype)
        out = torch.empty_like(x)
        run(f"scan<{cpp}>", (1,), (128,), [x, out], 128 * 4, seed=seed, checked=checked, uninitialised=[out])
        assert torch.equal(out, x.cumsum(0).to(dtype))

    def test_warp_barrier_and_shared_memory_of_the_file(self, seed: int | None, checked: bool) -> None:
        x = torch.arange(64, dtype=torch.int32)
        run("warp_reverse_in_shared", (1,), (64,), [x], 256, seed=seed, checked=checked)
        assert x.tolist() == [*range(31, -1, -1), *range(63, 31, -1)]

    def test_cooperative_groups(self, seed: int | None, checked: bool) -> None:
        x, out = torch.arange(64, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
        run("tile_sums", (1,), (64,), [x, out], seed=seed, checked=checked)
        assert torch.equal(out, x.view(8, 8).sum(1).int())

    def test_the_last_block_sums_after_a_fence(self, seed: int | None, checked: bool) -> None:
        x, partial = torch.arange(256, dtype=torch.int32), torch.empty(8, dtype=torch.int32)
        ticket, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        run(
            "last_block_sums",
            (8,),
            (32,),
            [x, partial, ticket, out],
            seed=seed,
            checked=checked,
            uninitialised=[partial],
        )
        assert out.item() == 255 * 128

    def test_a_lock(self, seed: int | None, checked: bool) -> None:
        lock, value = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        run("locked", (4,), (64,), [lock, value], seed=seed, checked=checked, time_limit_s=20)
        assert (lock.item(), value.item()) == (0, 256)

    def test_threads_that_return_before_a_barrier(self, seed: int | None, checked: bool) -> None:
        x, out = torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
        run("some_return", (1,), (64,), [x, out, 40], seed=seed, checked=checked)
        assert out.tolist() == [*range(39, -1, -1), *[0] * 24]

    def test_votes_and_reductions(self, seed: int | None, checked: bool) -> None:
        x = torch.randint(0, 100, (64,), dtype=torch.int32)
        out = torch.zeros(320, dtype=torch.int32)
        run("votes", (1,), (64,), [x, out], seed=seed, checked=checked)
        parts, warps = out.view(5, 64), x.view(2, 32)
        assert parts[0].eq(int((x > 0).sum())).all()
        assert parts[1].eq(1).all()
        assert torch.equal(parts[2].view(2, 32)[:, 0], 100 + (warps > 0).sum(1).int())
        assert parts[3, 1::2].eq(16).all()
        assert torch.equal(parts[3].view(2, 32)[:, 0], warps[:, ::2].amax(1))
        same = (warps[:, :, None] % 3 == warps[:, None, :] % 3).sum(2)
        assert torch.equal(parts[4], same.flatten().int())

    def test_float4_copies(self, seed: int | None, checked: bool) -> None:
        x, out = torch.randn(4 * 77), torch.empty(4 * 77)
        run("copy_float4", (3,), (32,), [x, out, 77], seed=seed, checked=checked, uninitialised=[out])
        assert torch.equal(out, x)

    def test_structures_and_booleans_by_value(self, seed: int | None, checked: bool) -> None:
        class Affine(ctypes.Structure):
            _fields_ = (("scale", ctypes.c_double), ("offset", ctypes.c_int))

        out = torch.zeros(8, dtype=torch.int32)
        run("takes_a_structure", (1,), (8,), [Affine(2.5, 3), out, True], seed=seed, checked=checked)
        assert out.tolist() == [-(int(2.5 * i) + 3) for i in range(8)]


@pytest.mark.parametrize(("cpp", "dtype"), [("half", torch.float16), ("__nv_bfloat16", torch.bfloat16)])
def test_sixteen_bit_arithmetic_is_exact(cpp: str, dtype: torch.dtype) -> None:
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 65504.0, 6e-8, 6.1e-5, 1e-7, float("inf"), -float("inf")])
    a, b = (part.flatten() for part in torch.meshgrid(special, special, indexing="ij"))
    bits = torch.randint(-(2**15), 2**15, (3, 4000), dtype=torch.int16).view(dtype)
    a, b = torch.cat([a.to(dtype), bits[0]]), torch.cat([b.to(dtype), bits[1]])
    c = torch.cat([torch.ones(100, dtype=dtype), bits[2]])
    n = a.numel()
    out = torch.empty(6, n, dtype=dtype)
    run(f"arithmetic<{cpp}>", (n // 256 + 1,), (256,), [a, b, c, out, n], checked=False)
    wanted = [a + b, a - b, a * b, a / b, exact_fma(a, b, c), torch.where(a < b, a, b)]
    for got, want in zip(out, wanted, strict=True):
        differs = ~((got.view(torch.int16) == want.view(torch.int16)) | (got.isnan() & want.isnan()))
        assert not differs.any(), (a[differs][:5], b[differs][:5], c[differs][:5], got[differs][:5], want[differs][:5])


def exact_fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Rounded once, to even: the nearest of the float result's neighbours, compared by exact fractions."""
    near = torch.addcmul(c.float(), a.float(), b.float()).to(a.dtype)
    result = near.clone()
    finite = near.isfinite() & a.isfinite() & b.isfinite() & c.isfinite() & (near.abs() < torch.finfo(a.dtype).max)
    for i in finite.nonzero().flatten().tolist():
        exact = Fraction(a[i].item()) * Fraction(b[i].item()) + Fraction(c[i].item())
        at = int(near[i].view(torch.int16))
        around = torch.tensor([at - 1, at, at + 1], dtype=torch.int16)
        values = around.view(a.dtype)
        if values.isfinite().all() and near[i] != 0:
            best = min(range(3), key=lambda j: (abs(Fraction(values[j].item()) - exact), int(around[j]) & 1))
            result[i] = values[best]
    return result


def test_half2_conversions_and_atomics() -> None:
    x, y = torch.randn(500).half(), torch.randn(500).half()
    want = x * torch.tensor(0.3).half() + y
    run("half2_axpy", (1,), (256,), [x, y, 0.3, 250])
    assert torch.equal(y, want)
    sums = torch.zeros(4, dtype=torch.float16)
    run("half2_atomics", (2,), (64,), [sums])
    assert sums.tolist() == [64, 128, 64, 128]
    x = torch.cat(
        [
            torch.randn(1000) * 10.0 ** torch.randint(-9, 6, (1000,)),
            torch.tensor([float("inf"), -1e30, 65519.9, 65520.0, 2.5, 3.5]),
        ]
    )
    h, b, i = (
        torch.empty_like(x, dtype=torch.float16),
        torch.empty_like(x, dtype=torch.bfloat16),
        torch.zeros(len(x), dtype=torch.int32),
    )
    run("convert", (4,), (256,), [x, h, b, i, len(x)], uninitialised=[h, b])
    assert torch.equal(h, x.half())
    assert torch.equal(b, x.bfloat16())
    assert torch.equal(i.double(), x.double().round().clamp(-(2.0**31), 2.0**31 - 1))


@pytest.mark.parametrize("checked", [True, False])
def test_a_product_and_a_sum_are_one_fused_operation(checked: bool) -> None:
    x, y = torch.randn(1000), torch.randn(1000)
    out = torch.empty(1000)
    run("axpy", (4,), (256,), [x, y, 0.1, out, 1000], checked=checked)
    a = torch.tensor(0.1).double()
    assert torch.equal(out, (a * x.double() + y.double()).float())


def test_bit_intrinsics() -> None:
    x = torch.tensor([0, 1, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF, 0x7FC00001]).to(torch.uint32)
    out = torch.zeros(48, dtype=torch.uint32)
    run("bits", (1,), (6,), [x, out])

    def want(v: int) -> list[int]:
        text = f"{v:032b}"
        first = (v & -v).bit_length()
        by = v.to_bytes(4, "little") + bytes([4, 3, 2, 1])
        permuted = int.from_bytes(bytes(by[(0x5140 >> 4 * k) & 7] for k in range(4)), "little")
        rotated = ((v << 8) | (v >> 24)) & 0xFFFFFFFF
        return [text.count("1"), 32 - v.bit_length(), first, int(text[::-1], 2), permuted, rotated, v * v >> 32, v]

    assert out.tolist() == [value for v in x.tolist() for value in want(v)]


def test_printf_and_assert(capfd: pytest.CaptureFixture[str]) -> None:
    run("says_hello", (1,), (8,), [8])
    assert capfd.readouterr().out == "thread 3 of 8\n"
    for checked in (True, False):
        with pytest.raises(FindingError, match=r"correct.cu:\d+: assertion: assertion failed: n > 0"):
            run("says_hello", (1,), (8,), [-1], checked=checked)


def test_module_variables_can_be_read_and_written() -> None:
    loaded = kernel("correct.cu", "uses_module_variables")
    out = torch.zeros(3, dtype=torch.int32)
    memory = {variable.name: variable.memory for variable in loaded.variables}
    memory["counter"].raw = (0).to_bytes(4, "little")
    loaded.launch((1, 1, 1), (3, 1, 1), 0, [out])
    assert out.tolist() == [1, 10, 100]
    assert int.from_bytes(memory["counter"].raw, "little") == 111
    memory["table"].raw = torch.tensor([5, 6, 7], dtype=torch.int32).numpy().tobytes()
    loaded.launch((1, 1, 1), (3, 1, 1), 0, [out])
    assert out.tolist() == [5, 6, 7]


# --- deadlocks and the like are found without checking, too ---


@pytest.mark.parametrize(
    "name",
    [
        "barriers_in_two_branches",
        "shuffles_while_others_wait",
        "mask_without_the_caller",
        "waits_forever",
        "loops_forever",
    ],
)
def test_the_fast_build_never_hangs_on_these(name: str) -> None:
    options = DEFECTS[name]()
    with pytest.raises(FindingError) as caught:
        kernel("defects.cu", name, False).launch(
            (1, 1, 1), (64, 1, 1), 0, options["arguments"], time_limit_s=options.get("time_limit_s")
        )
    (found,) = caught.value.findings
    assert isinstance(found, CudaFinding)
    assert (found.line, {found.kind}) == expected(name)


# --- arguments ---


@pytest.mark.parametrize(
    ("arguments", "expected_message"),
    [
        ([f(4)], "must be given 5 arguments, got 1"),
        ([1.5, f(4), 1.0, f(4), 4], "must be a tensor, got float 1.5"),
        ([f(4), f(4), f(4), f(4), 4], "in another order"),
        ([f(4), f(4), 1.0, f(4), 2**31], "got 2147483648"),
        ([f(4), f(4), 1.0, f(4), 4.0], "must be an int, got float 4.0"),
        ([f(4), f(4), "1", f(4), 4], "must be a float, got str '1'"),
        ([f(4).double(), f(4), 1.0, f(4), 4], "must have float32 elements, got float64"),
    ],
)
def test_arguments_of_a_wrong_type_or_size(arguments: list[Any], expected_message: str) -> None:
    with pytest.raises(LaunchError, match=expected_message):
        run("axpy", (1,), (4,), arguments)


def test_arguments_of_numpy_and_bool() -> None:
    out = torch.empty(4)
    run("axpy", (1,), (4,), [f(4), f(4), np.float32(2), out, np.int64(4)])
    assert torch.equal(out, 3 * f(4))


@pytest.mark.parametrize(
    ("grid", "block", "smem", "expected_message"),
    [
        ((1, 65536, 1), (1, 1, 1), 0, "the grid must be at most"),
        ((1, 1, 1), (32, 64, 1), 0, "2048 threads"),
        ((1, 1, 1), (1, 1, 65), 0, "in each direction"),
        ((1, 1, 1), (1, 1, 1), 228 * 1024, "bytes of shared memory"),
    ],
)
def test_launches_beyond_the_limits(grid: Any, block: Any, smem: int, expected_message: str) -> None:
    with pytest.raises(LaunchError, match=expected_message):
        kernel("correct.cu", "axpy").launch(grid, block, smem, [f(4), f(4), 1.0, f(4), 4])


def test_parameters_are_exported() -> None:
    assert [(p.size, p.kind, p.type_name) for p in kernel("correct.cu", "axpy").parameters] == [
        (8, "pointer", "const float*"),
        (8, "pointer", "const float*"),
        (4, "floating", "float"),
        (8, "pointer", "float*"),
        (4, "integer", "int"),
    ]


def test_the_time_of_a_counter_that_all_blocks_share_is_linear_in_the_blocks() -> None:
    blocks, ticket = 40_000, torch.zeros(1, dtype=torch.int32)
    x, partial, out = (torch.ones(n, dtype=torch.int32) for n in (32 * blocks, blocks, 1))
    run("last_block_sums", (blocks,), (32,), [x, partial, ticket, out], uninitialised=[partial], time_limit_s=30)
    assert out.item() == 32 * blocks
