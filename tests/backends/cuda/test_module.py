"""CUDA kernels called from Python: errors before a GPU is needed, and results on a GPU."""

from __future__ import annotations

import ctypes
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import opwright as ow
from opwright.backends import simulation, under_check
from opwright.backends.compiler import run_compiler
from opwright.errors import CompileError, KernelError, LaunchError

SOURCE = """
struct Pair { int a; double b; };
__device__ int counter;
extern "C" __global__ void scale(const float* x, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * a;
}
template <class T> __global__ void fill(T* out, T value, long long n) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (long long)blockDim.x)
    out[i] = value;
}
__global__ void reversed(const float* x, float* out, int n) {
  extern __shared__ float tile[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = tile[n - 1 - i];
}
__global__ void from_struct(double* out, Pair p, int last) { out[0] = p.a; out[1] = p.b; out[2] = last; }
__global__ void __launch_bounds__(128) bounded(float* x) { x[threadIdx.x] = threadIdx.x; }
__global__ void count() { atomicAdd(&counter, 1); }
__global__ void counted(int* out) { *out = counter; counter = 0; }
__global__ void extents(int* out) {
  if (threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x + blockIdx.y + blockIdx.z == 0) {
    out[0] = gridDim.x; out[1] = gridDim.y; out[2] = gridDim.z;
    out[3] = blockDim.x; out[4] = blockDim.y; out[5] = blockDim.z;
  }
}
__global__ void wait(long long cycles) { long long start = clock64(); while (clock64() - start < cycles) {} }
"""


@pytest.fixture(scope="module")
def kernels() -> ow.CudaModule:
    return ow.cuda_module(SOURCE, instances=["fill<float>", "fill<int>", "fill<double>"])


@pytest.mark.slow
def test_a_file_is_found_beside_its_caller_and_text_is_taken_as_it_is(tmp_path: Path, run_python):
    (tmp_path / "k.cu").write_text("__global__ void k() {}")
    run_python(
        """
        import opwright as ow
        assert ow.cuda_module("k.cu").defined == ("k",)
        assert ow.cuda_module("__global__ void direct(int n) {}").defined == ("direct",)
        """
    )


@pytest.mark.parametrize(
    ("make", "output"),
    [
        (
            lambda m: ow.cuda_module("absent.cu"),
            "must be given a file that exists, or text with a __global__ function, got 'absent.cu'",
        ),
        (lambda m: ow.cuda_module("int x;\n"), "must define a __global__ function, got none"),
        (lambda m: ow.cuda_module(SOURCE, options=["--nonsense"]), "'--nonsense' is not known"),
        (lambda m: ow.cuda_module(SOURCE, instances=["fil<float>"]), "got 'fil'"),
        (lambda m: m["scal"], "the kernel must be one of ['scale', 'fill'"),
        (lambda m: m["scale"](1), "must be called with a grid and a block, got neither\n  → write scale[grid, block]"),
        (lambda m: m["scale"][4], "scale: a launch must be [grid, block] with at most two more, got 4"),
        (lambda m: m["scale"][1, 2, 3, 4, 5], "got (1, 2, 3, 4, 5)"),
        (
            lambda m: m["scale"][1, 2, 0, (1, 0)],
            "the cluster must have 1 to 16 blocks, got (1, 0, 1)\n  → take at most 8 blocks",
        ),
        (lambda m: m["scale"][32, 2, 0, 32], "the cluster must have 1 to 16 blocks, got (32, 1, 1)"),
        (
            lambda m: m["scale"][(4, 3), 2, 0, (2, 2)],
            "must be a whole number of clusters of (2, 2, 1) blocks",
        ),
        (
            lambda m: m["scale"][4, 2, 0, "2"],
            "the cluster must be an int or a tuple of up to three, not negative, got '2'",
        ),
        (lambda m: m["scale"][1, 1025], "in each direction, got (1025, 1, 1), 1025 threads"),
        (lambda m: m["scale"][1, (1, 1, 65)], "at most (1024, 1024, 64) in each direction"),
        (lambda m: m["scale"][1, 0], "got (0, 1, 1), 0 threads"),
        (lambda m: m["scale"][(1, 65536), 1], "the grid must be at most (2147483647, 65535, 65535), got (1, 65536, 1)"),
        (lambda m: m["scale"][1.5, 1], "the grid must be an int or a tuple of up to three, not negative, got 1.5"),
        (lambda m: m["scale"][(1, 1, 1, 1), 1], "a tuple of up to three"),
        (lambda m: m["scale"][1, 1, -1], "the shared memory must be a number of bytes, got -1"),
    ],
)
def test_mistakes_that_show_without_a_compiler(kernels, make, output):
    with pytest.raises(KernelError) as caught:
        make(kernels)
    assert output in str(caught.value)


def test_a_module_and_its_kernels_can_be_pickled(kernels):
    again = pickle.loads(pickle.dumps(kernels["scale"]))
    assert (again.name, again.fingerprint) == ("scale", kernels["scale"].fingerprint)


def test_the_fingerprint_follows_text_headers_options_and_name(tmp_path: Path):
    (tmp_path / "k.cu").write_text('#include "h.cuh"\n__global__ void k() {}\n__global__ void l() {}')
    seen = set()
    for header, options in (("1", []), ("2", []), ("2", ["-DX=1"])):
        (tmp_path / "h.cuh").write_text(f"// {header}")
        module = ow.cuda_module(tmp_path / "k.cu", options=options)
        seen |= {module["k"].fingerprint, module["l"].fingerprint}
    assert len(seen) == 6


@pytest.mark.nvrtc
def test_an_instance_with_variables_of_its_own_has_to_be_named_from_the_start(kernels):
    with pytest.raises(KernelError, match=r"device variable 'counter'.*\n.*instances=\['fill<short>'\]"):
        kernels.entry("sm_90", "fill<short>")
    kernels.entry("sm_90", "fill<float>")


@pytest.mark.nvrtc
def test_a_template_without_its_arguments_says_what_is_missing(kernels):
    with pytest.raises(KernelError, match=r"a template needs its arguments, as in module\['fill<float>'\]"):
        kernels.entry("sm_90", "fill")


def test_variables_are_those_that_kernels_may_write(kernels):
    assert kernels.variables == ("counter",)
    assert ow.cuda_module("__device__ const int t[2] = {1, 2};\n__global__ void k(int* x) {}").variables == ()


def test_cdiv_rounds_up():
    assert [ow.cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


# -- on a GPU -----------------------------------------------------------------------------------------------


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(1000, device="cuda")


@pytest.mark.gpu
def test_numbers_arrive_as_the_kernel_declares_them(kernels, x):
    out = torch.empty_like(x)
    kernels["scale"][8, 128](x, out, 2, 1000)  # an int for a float
    assert torch.equal(out, x * 2)
    kernels["scale"][8, 128](x, out, -0.5, 1000)
    assert torch.equal(out, x * -0.5)
    for name, value, dtype in (("fill<int>", -7, torch.int32), ("fill<double>", 0.1, torch.float64)):
        filled = torch.empty(33, dtype=dtype, device="cuda")
        kernels[name][2, 32](filled, value, 33)
        assert (filled == value).all()


@pytest.mark.gpu
def test_a_large_struct_goes_by_value(kernels):
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))

    out = torch.empty(3, dtype=torch.float64, device="cuda")
    kernels["from_struct"][1, 1](out, Pair(3, 0.5), -4)
    assert out.tolist() == [3, 0.5, -4]


@pytest.mark.gpu
def test_grids_and_blocks_have_three_directions(kernels):
    out = torch.empty(6, dtype=torch.int32, device="cuda")
    kernels["extents"][(2, 3, 4), (5, 6, 7)](out)
    assert out.tolist() == [2, 3, 4, 5, 6, 7]


@pytest.mark.gpu
def test_an_empty_grid_launches_nothing(kernels):
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernels["counted"][1, 1](out)
    kernels["count"][0, 64]()
    kernels["count"][(4, 0), 64]()
    kernels["counted"][1, 1](out)
    assert out.item() == 0


@pytest.mark.compiler
def test_an_empty_grid_launches_nothing_in_the_simulator():
    written = torch.zeros(4)
    kernel = ow.cuda_module("__global__ void write(float* x) { x[threadIdx.x] = 1; }")["write"]
    kernel[0, 4](written)
    assert written.sum() == 0
    kernel[1, 4](written)
    assert written.sum() == 4


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (lambda x: (x, x, 1.0), "must be given 4 arguments, got 3"),
        (lambda x: (x.double(), x, 1.0, 10), "elements, got float64"),
        (lambda x: (x, x.cpu(), 1.0, 10), "got a tensor on cpu"),
        (lambda x: (x, x, 1.0, 2**31), "must be between -2147483648 and 2147483647"),
        (lambda x: (x, x, x[0], 10), "value.item()"),
    ],
)
def test_wrong_arguments_are_refused_before_the_launch(kernels, x, arguments, output):
    for _ in range(2):  # as the first launch, and after one that made a function for later ones
        with pytest.raises(LaunchError) as caught:
            kernels["scale"][1, 32](*arguments(x))
        assert output in str(caught.value)
        kernels["scale"][1, 32](x, x, 1.0, 10)
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_more_threads_than_a_kernel_was_compiled_for_are_refused(kernels, x):
    with pytest.raises(LaunchError, match="compiled for at most 128"):
        kernels["bounded"][1, 256](x)
    kernels["bounded"][1, 128](x)
    assert x[:3].tolist() == [0, 1, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1000, 20_000])  # 4 KB, and 80 KB, which a kernel must request
def test_dynamic_shared_memory_is_there_and_too_much_is_refused(kernels, n):
    x, out = torch.randn(n, device="cuda"), torch.empty(n, device="cuda")
    kernels["reversed"][1, 256, 4 * n](x, out, n)
    assert torch.equal(out, x.flip(0))
    with pytest.raises(LaunchError, match="bytes of dynamic shared memory are requested, and this GPU has"):
        kernels["reversed"][1, 256, 300_000](x, out, n)


@pytest.mark.gpu
def test_kernels_of_one_source_share_its_variables(kernels):
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernels["counted"][1, 1](out)
    kernels["count"][2, 64]()
    kernels["counted"][1, 1](out)
    assert out.item() == 128


@pytest.mark.gpu
def test_a_launch_goes_to_the_current_stream(kernels, x):
    """On a side stream that is kept busy, what was launched there has not run when the default stream is done."""
    side, out = torch.cuda.Stream(), torch.zeros_like(x)
    kernels["scale"][8, 128](x, out, 0.0, 1000)  # loaded
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        kernels["wait"][1, 1](1_000_000_000)
        kernels["scale"][8, 128](x, out, 1.0, 1000)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream())
    done.synchronize()
    assert not side.query(), "the kernel did not wait on the side stream"
    side.synchronize()
    assert torch.equal(out, x)


@pytest.mark.gpu
def test_launches_after_the_first_follow_the_stream_and_a_capture(kernels, x):
    out, side = torch.zeros_like(x), torch.cuda.Stream()
    launch = kernels["scale"][8, 128]  # held from before the first launch
    for factor in (1.0, 2.0, 3.0):
        launch(x, out, factor, 1000)
        kernels["scale"][8, 128](x, out, factor + 0.5, 1000)
        assert torch.equal(out, x * (factor + 0.5))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        kernels["wait"][1, 1](1_000_000_000)
        kernels["scale"][8, 128](x, out, 5.0, 1000)
    torch.cuda.current_stream().synchronize()
    assert not side.query(), "the kernel did not wait on the side stream"
    side.synchronize()
    assert torch.equal(out, x * 5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels["scale"][8, 128](x, out, 7.0, 1000)
    assert torch.equal(out, x * 5), "it ran while it was captured"
    graph.replay()
    assert torch.equal(out, x * 7)


@pytest.mark.gpu
def test_a_first_launch_inside_a_graph_capture_loads_and_replays(x):
    fresh = ow.cuda_module("__global__ void plus_one(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }")
    data = torch.zeros(32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fresh["plus_one"][1, 32](data, 32)
    assert data.sum() == 0
    graph.replay()
    graph.replay()
    assert data.tolist() == [2] * 32


@pytest.mark.gpu
def test_the_tensors_device_is_used_whatever_the_current_one_is(kernels):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, out = torch.randn(1000, device="cuda:1"), torch.empty(1000, device="cuda:1")
    with torch.cuda.device(0):
        kernels["scale"][8, 128](x, out, 2.0, 1000)
    assert torch.equal(out, x * 2)
    with pytest.raises(LaunchError, match="got a tensor on cuda:0"):
        kernels["scale"][8, 128](x, out.to("cuda:0"), 2.0, 1000)
    for device in ("cuda:0", "cuda:1", "cuda:1", "cuda:0", "cuda:0"):
        there, made = x.to(device), torch.empty(1000, device=device)
        kernels["scale"][8, 128](there, made, 3.0, 1000)
        assert torch.equal(made, there * 3)


@pytest.mark.gpu
def test_a_second_process_compiles_nothing(run_python):
    script = """
        import torch, opwright as ow
        from opwright.backends.cuda import nvrtc
        ran = []
        run = nvrtc._run_nvrtc
        nvrtc._run_nvrtc = lambda *a: ran.append(a) or run(*a)
        module = ow.cuda_module("__global__ void only_here(float* x) { x[threadIdx.x] = 42; }")
        x = torch.zeros(4, device="cuda")
        module["only_here"][1, 4](x)
        assert x.tolist() == [42] * 4
        print(len(ran))
    """
    assert [run_python(script).stdout.split()[-1] for _ in range(2)] == ["1", "0"]


@pytest.mark.gpu
@pytest.mark.parametrize("before", [False, True], ids=["first launch there", "launched before"])
def test_a_thread_that_has_not_used_cuda_can_launch(before):
    """As autograd's, where a kernel is the first thing that a backward does."""
    kernel = ow.cuda_module("__global__ void write(float* x) { x[threadIdx.x] = 7; }")["write"]
    x = torch.zeros(32, device="cuda")
    if before:
        kernel[1, 32](x)
        x.zero_()
    failed = []

    def launch():
        try:
            kernel[1, 32](x)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failed
    assert x.tolist() == [7.0] * 32


@pytest.mark.compiler
def test_what_does_not_compile_is_compiled_once_in_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ow.cuda_module("__global__ void k(float* x) { x[0] = of_no_such_name; }")
    commands = []

    def run(command: Sequence[str], *arguments: object, **options: object) -> str:
        commands.append(command)
        return run_compiler(command, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(simulation, "run_compiler", run)
    counts = []
    with under_check():
        for _ in range(3):
            with pytest.raises(CompileError, match="of_no_such_name"):
                module["k"][1, 32](torch.zeros(1))
            counts.append(len(commands))
    assert 0 < counts[0] == counts[1] == counts[2]
    with pytest.raises(CompileError, match="of_no_such_name"):
        module["k"][1, 32](torch.zeros(1))
    assert len(commands) > counts[0]
