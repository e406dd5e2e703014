"""``opwright show``: the compiled code of kernels, on a machine without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.cli import app
from opwright.errors import KernelError, KernelRefusedError
from opwright.gallery.add import add
from opwright.gallery.kmeans import kmeans_assign, kmeans_sums
from opwright.gallery.trig import sin
from opwright.report.terminal.side_by_side import side_by_side
from opwright.runtime.inspect.show import VIEWS, show_kernel, show_reference


def text(operator: ow.Op, kernel: str, what: str, arch: str = "") -> str:
    return "\n".join(f"{s.title}\n{s.text}" for s in show_kernel(operator.kernels[kernel], what, arch))


@pytest.mark.triton
def test_every_stage_of_a_triton_kernel_is_shown_without_a_gpu() -> None:
    marks = {"ttir": "tt.func", "ttgir": "ttg.", "llir": "define", "ptx": ".visible .entry sums_kernel"}
    for what, mark in marks.items():
        shown = text(kmeans_sums, "triton", what, "sm_90")
        assert mark in shown
        assert shown.startswith("sums_kernel(points: *fp32")
        assert "D=2" in shown.splitlines()[0]
    assert ".target sm_80" in text(kmeans_sums, "triton", "ptx", "sm_80")
    assert "registers" in text(kmeans_sums, "triton", "resources", "sm_90")


@pytest.mark.triton
def test_the_shared_memory_that_a_launch_requests_is_counted() -> None:
    shown = text(kmeans_sums, "triton", "resources", "sm_90")
    found = re.search(r"shared memory  (\d+) bytes per block, (\d+) of them dynamic", shown)
    assert found, shown
    assert int(found[1]) == int(found[2]) > 0  # a sum over several warps goes through shared memory


@pytest.mark.triton
def test_autotune_and_heuristics_are_seen_through() -> None:
    assert "add_kernel(x: *fp16" in text(add, "triton_autotuned", "ttir", "sm_90")
    assert "EVEN=" in text(sin, "triton_heuristics", "ttir", "sm_90")


@pytest.mark.triton
def test_a_launcher_that_launches_nothing_is_refused(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    f.triton(lambda x: x * 2, name="none")
    with pytest.raises(KernelRefusedError, match="launches no Triton kernel"):
        text(f, "none", "ttir")


TEMPLATES = ow.cuda_module("""
template <class T, int N>
__global__ void twice(const T* x, T* out, int n) {
  __shared__ T kept[N];
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < n) out[threadIdx.x] = 2 * kept[threadIdx.x];
}
__global__ void other(float* x) {}
""")
CPP = {torch.float32: "float", torch.float64: "double"}


def launch_twice(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    TEMPLATES[f"twice<{CPP[x.dtype]}, {64 * 2}>"][1, 128](x, out, x.numel())
    return out


def launch_unknown(x: Tensor) -> Tensor:
    TEMPLATES[f"thrice<{CPP[x.dtype]}>"][1, 128](x, x, 1)
    return x


@pytest.mark.nvrtc
def test_instances_that_a_launcher_composes_are_shown_for_each_dtype(namespace: str) -> None:
    @ow.op(f"{namespace}::f")
    def f(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * 2

    f.cuda(launch_twice, name="composed", dtypes=[torch.float32, torch.float64])
    titles = [shown.title for shown in show_kernel(f.kernels["composed"], "resources", "sm_90")]
    assert titles == ["twice<float, 128>, sm_90", "twice<double, 128>, sm_90"]
    assert "shared memory  1024 bytes per block, static" in text(f, "composed", "resources", "sm_90")
    f.cuda(launch_unknown, name="unknown", dtypes=[torch.float32])
    with pytest.raises(KernelError, match=r"the kernel must be one of .*, got 'thrice'"):
        text(f, "unknown", "resources", "sm_90")


@pytest.mark.compiler
@pytest.mark.slow  # compiles C++
def test_the_instructions_of_a_cpp_kernel_are_its_own() -> None:
    shown = text(kmeans_assign, "cpp", "asm")
    assert "assign<2, float>" in shown
    assert "ret" in shown
    assert "@plt>:" not in shown


@pytest.mark.slow
@pytest.mark.compiler
def test_what_inductor_generates_is_shown_of_a_numpy_kernel_and_of_a_reference() -> None:
    for shown in (
        text(kmeans_assign, "numpy_compiled", "inductor"),
        show_reference(add.contract, "inductor", "")[0].text,
    ):
        assert 'extern "C"' in shown
        assert "void  kernel(" in shown


def test_what_there_is_not_is_refused_with_the_reason() -> None:
    with pytest.raises(KernelRefusedError, match="not compiled by Inductor"):
        text(kmeans_assign, "cpp", "inductor")
    with pytest.raises(KernelRefusedError, match="not Triton"):
        text(kmeans_assign, "cpp", "ttir")
    with pytest.raises(KernelRefusedError, match="not compiled for the CPU"):
        text(kmeans_assign, "triton", "asm")
    with pytest.raises(KernelRefusedError, match="there is no asm of a reference"):
        show_reference(add.contract, "asm", "")


def test_every_view_is_offered_on_the_command_line() -> None:
    from opwright.cli.show import What

    assert {w.value for w in What} == {*VIEWS, "schema", "parts"}


def opwright(*args: str) -> str:
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    return done.output


def test_two_kernels_are_shown_side_by_side() -> None:
    shown = opwright("show", "opwright.gallery.kmeans:kmeans_assign", "--what", "source", "--diff", "cpp", "reference")
    assert "gallery::kmeans_assign:cpp" in shown
    assert any(" | " in line for line in shown.splitlines())


def test_a_file_gets_what_would_be_shown(tmp_path: Path) -> None:
    for what, mark in (("source", "np.argmin"), ("parts", "autograd")):
        file = tmp_path / what
        shown = opwright(
            "show", "opwright.gallery.kmeans:kmeans_assign", "--what", what, "--kernel", "reference", "-o", str(file)
        )
        assert shown == ""
        assert mark in file.read_text()


def test_lines_are_marked_by_how_they_differ() -> None:
    _, shown = side_by_side(("a", "same\nold\ngone\nend"), ("b", "same\nnew\nend\nmore" + "x" * 90), 43)
    marks = [line[21:22] for line in shown.text.splitlines()[2:]]
    assert [m.strip() for m in marks] == ["", "|", "<", "", ">"]
    assert shown.text.splitlines()[-1].endswith("…")
    assert np.all([len(line) <= 43 for line in shown.text.splitlines()])
