"""Tensors that a kernel must not write: each write is a finding, even if it is taken back, and other memory is free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernelsim

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = [pytest.mark.triton, pytest.mark.compiler]

N = 300

CUDA = """
__global__ void sets_back(float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float was = x[i];
  x[i] = 2 * was;
  out[i] = x[i];
  x[i] = was;
}
__global__ void copies(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}
__global__ void adds_nothing(float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * atomicAdd(&x[i], 0.f);
}
__global__ void every_second(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[2 * i] = 2 * x[2 * i];
}
__global__ void vectors(float4* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (4 * i >= n) return;
  float4 was = x[i];
  x[i] = make_float4(was.x, was.y, was.z, was.w + 0.f);
  out[4 * i] = 2 * was.x; out[4 * i + 1] = 2 * was.y; out[4 * i + 2] = 2 * was.z; out[4 * i + 3] = 2 * was.w;
}
"""
KERNELS = kernelsim.cuda(CUDA)


@triton.jit
def sets_back(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    was = tl.load(x + i, mask=i < n)
    tl.store(x + i, 2 * was, mask=i < n)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)
    tl.store(x + i, was, mask=i < n)


@triton.jit
def copies(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def adds_nothing(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, 2 * tl.atomic_add(x + i, 0.0, mask=i < n), mask=i < n)


@triton.jit
def every_second(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + 2 * i, 2 * tl.load(x + 2 * i, mask=i < n), mask=i < n)


def run(language: str, name: str, x: Any, out: Any, n: int, **options: Any) -> list[tuple[str, str]]:
    """The kind and the line's text of each finding."""
    with kernelsim.options(raises=False, **options):
        if language == "cuda":
            report = KERNELS[name][3, 128](x, out, n)
        else:
            report = kernelsim.triton(globals()[name])[(3,)](x, out, n, B=128)
    return [(found.kind, found.source_line) for found in report.findings]


def tensors() -> tuple[Any, Any]:
    return np.arange(N, dtype=np.float32), np.zeros(N, dtype=np.float32)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_write_that_is_set_back_is_found_at_each_line(seed: int | None) -> None:
    x, out = tensors()
    lines = run("cuda", "sets_back", x, out, N, read_only=[x], seed=seed)
    assert lines == [("read-only", "x[i] = 2 * was;"), ("read-only", "x[i] = was;")]
    assert (x == np.arange(N)).all()  # the launch goes on
    assert (out == 2 * x).all()
    lines = run("triton", "sets_back", x, out, N, read_only=[x], seed=seed)
    assert [kind for kind, _ in lines] == ["read-only"] * 2
    assert [line.partition(",")[0] for _, line in lines] == ["tl.store(x + i"] * 2
    assert (x == np.arange(N)).all()
    assert (out == 2 * x).all()


def test_the_message_names_the_argument() -> None:
    x, out = tensors()
    with kernelsim.options(read_only=[x]):
        with pytest.raises(
            kernelsim.FindingError,
            match=r"read-only: writes 4 bytes at byte 0 of argument 'x' \(float32 \[300\]\), which is read-only",
        ):
            KERNELS["sets_back"][3, 128](x, out, N)
        with pytest.raises(
            kernelsim.FindingError, match=r"read-only: writes element \d+ of x \(float32 \[300\]\), which is read-only"
        ):
            kernelsim.triton(sets_back)[(3,)](x, out, N, B=128)


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_an_atomic_update_that_adds_nothing_is_a_write(language: str) -> None:
    x, out = tensors()
    assert [kind for kind, _ in run(language, "adds_nothing", x, out, N, read_only=[x])] == ["read-only"]
    assert run(language, "adds_nothing", x, out, N) == []


def test_a_vector_that_writes_the_same_values_is_a_write() -> None:
    x, out = tensors()
    assert run("cuda", "vectors", x, out, N, read_only=[x[1:2]])[0][0] == "read-only"
    assert run("cuda", "vectors", x, out, N) == []


@pytest.mark.parametrize("language", ["cuda", "triton"])
@pytest.mark.parametrize("checked", [True, False])
def test_a_kernel_may_read_them_and_write_others(language: str, checked: bool) -> None:
    x, out = tensors()
    assert run(language, "copies", x, out, N, read_only=[x], checked=checked) == []
    assert run(language, "copies", x, out, N, read_only=[x, x, x[::-1]], checked=checked) == []  # the same memory again
    assert run(language, "sets_back", x, out, N, read_only=[np.zeros(N, np.float32)], checked=checked) == []


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_elements_beside_those_of_a_view_may_be_written(language: str) -> None:
    both = np.arange(2 * N, dtype=np.float32)
    assert run(language, "every_second", both[::2], both[1:], N, read_only=[both[::2]]) == []
    assert (both[1::2] == 2 * both[::2]).all()
    found = run(language, "every_second", both[1:], both, N, read_only=[both[::2]])
    assert [kind for kind, _ in found] == ["read-only"]


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_a_part_of_a_tensor_and_a_view_of_other_elements_are_the_tensors(language: str) -> None:
    x, out = tensors()
    assert run(language, "sets_back", x[5:], out, N - 5, read_only=[x])[0][0] == "read-only"
    halves = x.view(np.float16)
    assert run(language, "sets_back", x, out, N, read_only=[halves[4:5]])[0][0] == "read-only"


def test_a_tensor_with_rows_far_apart_needs_no_memory_between_them() -> None:
    torch = pytest.importorskip("torch")
    storage = torch.empty(2**31 + N, dtype=torch.float32)  # untouched pages take no memory
    x = storage.as_strided((2, N), (2**31, 1)).zero_()
    with kernelsim.options(read_only=[x], raises=False):
        assert not kernelsim.triton(copies)[(3,)](x, torch.empty(N), N, B=128).findings
        report = kernelsim.triton(sets_back)[(3,)](x[1], torch.empty(N), N, B=128)
    assert [found.kind for found in report.findings] == ["read-only"] * 2
