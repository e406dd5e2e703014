"""The stacks of simulated threads: one bounded pool for all kernels, and no end of it ends the process."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

from kernelsim.cuda_sim import compilation
from kernelsim.cuda_sim import kernel as simulator
from kernelsim.errors import FindingError
from kernelsim.own_host import own_host
from kernelsim.text.source import CudaSource
from tests.kernelsim.loading import loaded
from tests.sampled import quick

pytestmark = pytest.mark.compiler

REVERSE = """
__global__ void reverse(float* x) {
  __shared__ float s[1024];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
"""
# Recursion that the compiler cannot turn into a loop, to a depth that the caller gives.
RECURSION = """
__device__ __noinline__ int depth_sum(volatile int* x, int depth) {
  volatile int here[64];
  here[depth & 63] = depth;
  if (depth == 0) return 0;
  return depth_sum(x, depth - 1) + here[depth & 63];
}
__global__ void recursive(int* x, int depth) { x[threadIdx.x] = depth_sum(x, depth); }
"""


def built(text: str, name: str, *, checked: bool = True) -> compilation.Built:
    return compilation.compile_kernel(CudaSource(text), name, own_host(), checked=checked)


def copies(one: compilation.Built, folder: Path, count: int) -> list[simulator.SimulatedKernel]:
    """As many kernels: the loader takes each copy of the file for a library of its own."""
    made = []
    for number in range(count):
        file = folder / f"kernel{number}.so"
        shutil.copy(one.file, file)
        made.append(loaded(dataclasses.replace(one, file=file)))
    return made


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


# Loading 500 takes more than two seconds.
@pytest.mark.parametrize(("count", "checked"), quick([(40, False), (40, True), (500, True)], 0, 1))
def test_many_kernels_share_their_stacks(tmp_path: Path, count: int, checked: bool) -> None:
    one = built(REVERSE, "reverse", checked=checked)
    first = loaded(one)
    x = torch.arange(1024.0)
    first.launch((1, 1, 1), (1024, 1, 1), 0, [x])
    before = mappings()
    for kernel in copies(one, tmp_path, count):
        x = torch.arange(1024.0)
        kernel.launch((1, 1, 1), (1024, 1, 1), 0, [x])
        assert torch.equal(x, torch.arange(1023.0, -1.0, -1.0))
    assert mappings() - before < 12 * count  # a library has about six; the stacks of a block have 2,048


def in_a_process(code: str) -> str:
    """What the code prints, run beside this process: it uses up limits."""
    begin = (
        "import resource, torch\n"
        "from kernelsim.own_host import own_host\n"
        "from kernelsim.cuda_sim import compilation\n"
        "from tests.kernelsim.loading import loaded\n"
        "from kernelsim.text.source import CudaSource\n"
        "from kernelsim.errors import LaunchError\n"
        f"made = compilation.compile_kernel(CudaSource({REVERSE!r}), 'reverse', own_host(), checked=True)\n"
        "kernel = loaded(made)\n"
        "x = torch.arange(1024.0)\n"
    )
    done = subprocess.run([sys.executable, "-c", begin + textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_too_little_memory_is_an_error_and_the_next_launch_works() -> None:
    built(REVERSE, "reverse")
    said = in_a_process("""
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, limits[1]))
        try:
            kernel.launch((1, 1, 1), (1024, 1, 1), 0, [x])
        except LaunchError as error:
            print(error)
        kernel.launch((1, 1, 1), (32, 1, 1), 0, [x])
        resource.setrlimit(resource.RLIMIT_AS, limits)
        kernel.launch((1, 1, 1), (1024, 1, 1), 0, [x])
        print(x[:3].tolist())
    """)
    assert "reverse on the simulator: not enough memory for blocks of 1024 threads" in said
    assert said.endswith("[1023.0, 1022.0, 1021.0]\n")


@pytest.mark.parametrize("checked", [True, False])
def test_recursion_without_an_end_is_a_finding(checked: bool) -> None:
    kernel = loaded(built(RECURSION, "recursive", checked=checked))
    x = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(FindingError, match=r"stack-overflow: the thread's stack of 768 KiB is full") as caught:
        kernel.launch((1, 1, 1), (4, 1, 1), 0, [x, 10**6])
    (found,) = caught.value.findings
    assert (found.kind, found.line) in {("stack-overflow", line) for line in (2, 3, 4, 6)}
    kernel.launch((1, 1, 1), (4, 1, 1), 0, [x, 100])  # the process goes on, and so does the kernel
    assert x.tolist() == [5050] * 4


def test_what_a_deep_thread_used_is_given_back() -> None:
    kernel = loaded(built(RECURSION, "recursive", checked=False))
    x = torch.zeros(256, dtype=torch.int32)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    kernel.launch((1, 1, 1), (256, 1, 1), 0, [x, 1200])
    assert resident() - before < 64 * 2**20


def test_a_kernel_is_loaded_again_while_it_runs_in_another_thread() -> None:
    text = "__global__ void k(float* x, int n) { for (int i = 0; i < n; i++) x[threadIdx.x] += 1; }\n"
    made = compilation.compile_kernel(CudaSource(text), "k", own_host(), checked=True)
    x = torch.zeros(32)
    running = threading.Thread(target=lambda: loaded(made).launch((1, 1, 1), (32, 1, 1), 0, [x, 100_000]))
    running.start()
    while running.is_alive():
        assert len(loaded(made).parameters) == 2  # what describes them was checked as the kernel's own
    assert x.tolist() == [100_000] * 32
