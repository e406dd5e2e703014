"""The face of kernelsim: calls, reports, options, the command, the plugin of pytest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernelsim
from kernelsim.command import main

pytestmark = pytest.mark.compiler
pytest_plugins = ["pytester"]

SAXPY = """\
__global__ void saxpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) out[i] = a * x[i] + y[i];
}
"""
ORDER = """\
__global__ void last(int* out) {
  if (threadIdx.x % 32 == 0) out[0] = threadIdx.x;
}
"""


def vectors(count: int = 100) -> tuple[np.ndarray[Any, Any], ...]:
    return np.arange(count, dtype=np.float32), np.ones(count, np.float32), np.zeros(count, np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "saxpy.cu"
    path.write_text(SAXPY)
    return path


# --- calls ---


def test_a_launch_returns_a_report(file: Path) -> None:
    x, y, out = vectors()
    report = kernelsim.cuda(file)["saxpy"][1, 128](x, y, out, 2.0, 99)
    assert report
    assert (report.kernel, report.checked, report.findings) == ("saxpy", True, ())
    assert str(report).startswith("saxpy: no findings, every access checked, ")
    assert (out == 2 * x + y).all()


def test_a_report_says_that_a_gpu_refuses_an_empty_grid(file: Path) -> None:
    kernel, arguments = kernelsim.cuda(file)["saxpy"], (*vectors(), 2.0, 99)
    report = kernel[(1, 0), 128](*arguments)
    assert str(report).startswith("saxpy: nothing ran, as the grid (1, 0, 1) has no blocks; a GPU refuses it")
    assert report.to_json()["note"] == report.note
    assert not arguments[2].any()
    assert kernel[1, 128](*arguments).note == ""


def test_a_finding_is_raised_with_its_record(file: Path) -> None:
    with pytest.raises(kernelsim.FindingError, match=r"saxpy.cu:3: out-of-bounds: reads 4 bytes") as caught:
        kernelsim.cuda(file)["saxpy"][1, 128](*vectors(), 2.0, 100)
    found = caught.value.findings[0]
    assert isinstance(found, kernelsim.Finding)
    assert (found.kind, found.line, found.kernel) == ("out-of-bounds", 3, "saxpy")
    assert found.source_line == "if (i <= n) out[i] = a * x[i] + y[i];"
    assert (found.block, found.thread) == ((0, 0, 0), (100, 0, 0))


def test_without_raises_the_report_has_the_findings(file: Path) -> None:
    with kernelsim.options(raises=False):
        report = kernelsim.cuda(file)["saxpy"][1, 128](*vectors(), 2.0, 100)
    assert not report
    assert {found.kind for found in report.findings} == {"out-of-bounds"}
    assert "saxpy: 1 finding, every access checked" in str(report)
    assert report.to_json()["findings"][0]["line"] == 3


@pytest.mark.parametrize("checked", [True, False])
def test_an_unwritten_element_is_found_if_it_is_checked(file: Path, checked: bool) -> None:
    x, y, out = vectors()
    with kernelsim.options(checked=checked, uninitialised=[x], raises=False):
        report = kernelsim.cuda(file)["saxpy"][1, 128](x, y, out, 2.0, 99)
    assert {found.kind for found in report.findings} == ({"uninitialised"} if checked else set())


def test_what_a_kernel_has_written_in_the_block_is_initialised(file: Path) -> None:
    x, y, out = vectors()
    kernel = kernelsim.cuda(file)["saxpy"]
    with kernelsim.options(uninitialised=[out]):
        kernel[1, 128](x, y, out, 2.0, 99)
        assert kernel[1, 128](out, y, x, 2.0, 99)


def test_arrays_of_any_strides_are_taken(file: Path) -> None:
    x, y, out = np.arange(200, dtype=np.float32)[::-2], np.ones(100, np.float32), np.zeros(100, np.float32)
    kernel = kernelsim.cuda(file)["saxpy"]
    kernel[1, 1](x, y, out, 2.0, 0)
    assert out[0] == 399
    with pytest.raises(kernelsim.FindingError, match="out-of-bounds: reads 4 bytes just past the end of argument 'x'"):
        kernel[1, 2](x, y, out, 2.0, 1)


def test_an_array_between_whose_elements_is_no_whole_number_is_refused(file: Path) -> None:
    records = np.zeros(10, dtype=[("x", np.float32), ("flag", np.uint8)])
    with pytest.raises(kernelsim.LaunchError, match=r"must be multiples of 4 bytes, got \(5,\)"):
        kernelsim.cuda(file)["saxpy"][1, 1](records["x"], records["x"], records["x"], 2.0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*vectors(), 2.0), "must be given 5 arguments, got 4"),
        ((*vectors()[:2], np.zeros(100), 2.0, 99), "argument 3, `float\\*`, must have float32 elements, got float64"),
        ((*vectors(), 2.0, 1.5), "argument 5, `int`, must be an int, got float 1.5"),
        ((*vectors()[:2], "out", 2.0, 99), "must be a tensor, got str 'out'"),
    ],
)
def test_arguments_that_a_kernel_does_not_take_are_refused(
    file: Path, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(kernelsim.LaunchError, match=message):
        kernelsim.cuda(file)["saxpy"][1, 128](*arguments)


def test_launches_and_names_that_there_are_not_are_refused(file: Path) -> None:
    kernels = kernelsim.cuda(file)
    assert kernels.names == ("saxpy",)
    with pytest.raises(kernelsim.KernelError, match=r"saxpy.cu: the kernel must be one of \['saxpy'\], got 'sax'"):
        kernels["sax"]
    with pytest.raises(kernelsim.LaunchError, match=r"a launch must be \[grid, block\] with at most two more, got 4"):
        kernels["saxpy"][4]
    with pytest.raises(kernelsim.LaunchError, match=r"got \(2048, 1, 1\), 2048 threads"):
        kernels["saxpy"][1, 2048](*vectors(), 2.0, 99)
    with pytest.raises(kernelsim.LaunchError, match="was called without a grid"):
        kernels["saxpy"](*vectors(), 2.0, 99)
    with pytest.raises(kernelsim.KernelError, match=r"must be a file that exists, or CUDA C\+\+, got 'none\.cu'"):
        kernelsim.cuda("none.cu")
    with pytest.raises(kernelsim.KernelError, match="'-fancy' is not known"):
        kernelsim.cuda(file, flags=["-fancy"])


def test_a_source_that_does_not_compile_or_is_refused_says_so() -> None:
    with pytest.raises(kernelsim.CompileError, match=r"<cuda source>:2:\d+: error") as caught:
        kernelsim.cuda("__global__ void k(int* x) {\n  x[0] = nonsense;\n}")["k"][1, 1](np.zeros(1, np.int32))
    assert "nonsense" in caught.value.log
    with pytest.raises(kernelsim.RefusedError, match="the device's heap is not simulated"):
        kernelsim.cuda("__global__ void k() {\n  int* p = new int[3]; delete[] p;\n}")["k"][1, 1]()


def test_variables_are_read_and_written() -> None:
    kernels = kernelsim.cuda("""
        __device__ int total[2];
        __global__ void add(int n) { atomicAdd(&total[1], n); }
        template <int N> __global__ void twice() { total[1] *= N; }
    """)
    kernels.write("total", np.array([1, 5], np.int32))
    kernels["add"][1, 4](2)
    kernels["twice<2>"][1, 1]()
    assert kernels.read("total", "int32").tolist() == [1, 26]
    with pytest.raises(kernelsim.KernelError, match="the values of 'total' must have 8 bytes, got 4"):
        kernels.write("total", np.int32(0))
    with pytest.raises(kernelsim.KernelError, match="the variable must be one that can be written, got 'none'"):
        kernels.read("none")


# --- the command ---


def test_the_command_runs_a_kernel(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(file), "float32[100]", "float32[100]=arange", "float32[100]=empty", "2.0"]
    assert main([*arguments, "99", "--block", "128"]) == 0
    assert "saxpy: no findings" in capsys.readouterr().out
    assert main(["run", str(file), "--block", "128", *arguments[2:], "100", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(found["kind"], found["line"]) for found in report["findings"]] == [("out-of-bounds", 3)]
    assert main(["list", str(file)]) == 0
    assert capsys.readouterr().out == "saxpy\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["float32[100]=some"], "the values must be random, zeros, ones, arange or empty, got some"),
        (["float33[100]"], "the dtype must be one of NumPy's, got float33"),
        (["x"], "an argument must be a number, a tensor or a .npy file, got 'x'"),
        (["1"], "must be given 5 arguments, got 1"),
        (["--kernel", "other"], "the kernel must be one of ['saxpy'], got 'other'"),
    ],
)
def test_the_command_says_what_is_wrong(
    file: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(file), *arguments]) == 2
    assert message in capsys.readouterr().err


# --- the plugin ---

TESTS = f"""
import numpy as np
SAXPY, ORDER = {SAXPY!r}, {ORDER!r}

def test_right(kernelsim):
    x, out = np.ones(10, np.float32), np.zeros(10, np.float32)
    kernelsim.cuda(SAXPY)["saxpy"][1, 10](x, x, out, 2.0, 9)
    assert (out == 3).all()

def test_wrong(kernelsim):
    x, out = np.ones(10, np.float32), np.zeros(10, np.float32)
    kernelsim.cuda(SAXPY)["saxpy"][1, 11](x, x, out, 2.0, 10)

def test_order(kernelsim):
    out = np.zeros(1, np.int32)
    with kernelsim.options(checked=False):
        kernelsim.cuda(ORDER)["last"][1, 128](out)
    assert out[0] == 96
"""


def test_the_fixture_runs_a_test_in_several_orders(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "kernelsim.pytest", "-p", "no:xdist", "--kernelsim-orders=3")
    result.assert_outcomes(passed=6, failed=3)
    result.stdout.fnmatch_lines(["*test_wrong?order1?*", "*out-of-bounds: reads 4 bytes*"])


def test_at_least_one_order_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "kernelsim.pytest", "-p", "no:xdist", "--kernelsim-orders=0")
    assert "--kernelsim-orders must be at least 1, got 0" in "\n".join([*result.outlines, *result.errlines])
