"""<opwright/atomics.cuh>: torch's own header where it has one, and ours with an older torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from opwright.backends.native.abi import INCLUDE
from opwright.backends.native.host_function import TORCH
from opwright.machine import this_machine

PROGRAM = """\
#include <opwright/atomics.cuh>

#include <cstdio>

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

template <typename T>
__global__ void add(T* sum, T value) {
  gpuAtomicAdd(sum, value);
  gpuAtomicAddNoReturn(sum + 1, value);
}

template <typename T>
void print_sums() {
  T* sums;
  cudaMallocManaged(&sums, 2 * sizeof(T));
  sums[0] = sums[1] = T(1);
  add<<<2, 64>>>(sums, T(2));
  cudaDeviceSynchronize();
  std::printf("%g %g\\n", static_cast<double>(sums[0]), static_cast<double>(sums[1]));
}

int main() {
  print_sums<float>();
  print_sums<double>();
  print_sums<int32_t>();
  print_sums<int64_t>();
  print_sums<Half>();
  print_sums<BFloat16>();
}
"""


@pytest.mark.gpu
@pytest.mark.nvcc
@pytest.mark.parametrize("torch_has_them", [True, False])
def test_each_type_is_added(torch_has_them: bool, tmp_path: Path) -> None:
    header = (INCLUDE / "opwright" / "atomics.cuh").read_text()
    if not torch_has_them:
        header = header.replace("#if __has_include(<torch/headeronly/cuda/Atomic.h>)", "#if 0")
    (tmp_path / "opwright").mkdir()
    (tmp_path / "opwright" / "atomics.cuh").write_text(header)
    (tmp_path / "sums.cu").write_text(PROGRAM)
    nvcc = this_machine().nvcc
    assert nvcc is not None
    flags = [
        "-std=c++20",
        "-arch=native",
        "-w",
        "-DTORCH_TARGET_VERSION=0x020b000000000000",
        "--expt-relaxed-constexpr",
    ]
    folders = [f"-I{tmp_path}", f"-I{TORCH / 'include'}"]
    program = tmp_path / "sums"
    subprocess.run([nvcc.path, *flags, *folders, str(tmp_path / "sums.cu"), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split()
    # From 256 on, bfloat16 counts in twos: 1 + 2 is 3, and 255 + 2 is 256 (to even), which ends it there.
    assert printed == ["257", "257"] * 5 + [printed[-1], printed[-1]]
    assert float(printed[-1]) in (256, 258)
