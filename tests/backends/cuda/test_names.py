"""The names of kernels: namespaces, templates, overloads; and the places that findings name."""

from __future__ import annotations

import pytest
import torch

import kernelsim
import opwright as ow
from kernelsim.text.parsed_source import parsed
from opwright.errors import KernelError, SimulatorError

SPACES = """
namespace demo { namespace inner {
__global__ void fill(float* x) { x[0] = 1; }
template <class T, int N = 2> __global__ void times(T* x) { x[0] = N; }
} }
namespace { __global__ void hidden(float* x) { x[0] = 3; } }
namespace one { __global__ void twice(float* x) { x[0] = 4; } }
namespace two { __global__ void twice(float* x) { x[0] = 5; } }
"""


def test_a_namespace_may_be_left_out_where_one_kernel_has_the_name() -> None:
    kernels = ow.cuda_module(SPACES)
    assert kernels["fill"].name == "demo::inner::fill"
    assert kernels["inner::fill"] is kernels["fill"]
    assert kernels["times<float, 3>"].name == "demo::inner::times<float, 3>"
    assert kernels["hidden"].name == "hidden"
    assert kernels["two::twice"].name == "two::twice"
    with pytest.raises(KernelError, match=r"'twice' is ambiguous.*\n.*one::twice, two::twice"):
        kernels["twice"]
    assert parsed(SPACES).qualified_names("twice") == ("one::twice", "two::twice")


@pytest.mark.slow
@pytest.mark.compiler
def test_the_simulator_runs_them() -> None:
    kernels = ow.cuda_module(SPACES)
    for name, value in {"fill": 1, "times<float, 3>": 3, "hidden": 3, "two::twice": 5, "times<float>": 2}.items():
        out = torch.zeros(1)
        with kernelsim.options(checked=False):
            kernels[name][1, 1](out)
        assert out.item() == value, name


@pytest.mark.nvrtc
def test_nvrtc_compiles_them() -> None:
    kernels = ow.cuda_module(SPACES)
    for name in ("fill", "times<float, 3>", "hidden", "one::twice"):
        assert kernels.entry("sm_90", name)[1].parameters[0].type_name == "float*"


def test_a_template_without_arguments_is_an_error_that_says_so() -> None:
    with pytest.raises(
        KernelError, match=r"'times' is a template\n.*needs its arguments, as in module\['times<float>'\]"
    ):
        ow.cuda_module(SPACES)["times"]


OVERLOADS = "__global__ void k(float* x) { x[0] = 1; }\n__global__ void k(int* x, int n) { x[0] = n; }\n"


@pytest.mark.compiler
def test_an_overloaded_kernel_is_an_error_in_the_simulator() -> None:
    with pytest.raises(KernelError, match="'k' is overloaded"):
        ow.cuda_module(OVERLOADS)["k"][1, 1](torch.zeros(1))


@pytest.mark.nvrtc
def test_an_overloaded_kernel_is_an_error_with_nvrtc() -> None:
    with pytest.raises(KernelError, match=r"'k' is overloaded: k\(float\*\), k\(int\*, int\)"):
        ow.cuda_module(OVERLOADS).entry("sm_90", "k")


@pytest.mark.compiler
def test_a_finding_in_a_helper_names_the_calls_that_led_to_it() -> None:
    text = """
#line 900 "generated.py"
__device__ float load(const float* x, int i) {
  return x[i];
}
__device__ float twice(const float* x, int i) { return 2 * load(x, i); }
__global__ void k(const float* x, float* y, int n) {
  y[0] = twice(x, 0);
  y[1] = twice(x, n);
}
"""
    x, y = torch.ones(4), torch.zeros(2)
    with pytest.raises(SimulatorError) as caught:
        ow.cuda_module(text)["k"][1, 1](x, y, 4)
    (finding,) = caught.value.findings
    assert (finding.line, finding.source_line) == (3, "return x[i];")
    assert [(c.line, c.source_line) for c in finding.callers] == [
        (5, "__device__ float twice(const float* x, int i) { return 2 * load(x, i); }"),
        (8, "y[1] = twice(x, n);"),
    ]
    assert "called at <cuda source>:8: y[1] = twice(x, n);" in str(finding)
    assert y.tolist() == [2, 0]
