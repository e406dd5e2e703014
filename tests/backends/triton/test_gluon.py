"""Kernels in Gluon: a GPU runs them, a CPU shows what is compiled, and nothing takes them for kernels in Triton."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import kernelsim
import opwright as ow
from kernelsim.errors import NotSimulatedError
from opwright.backends.triton.tracing import kernels_reached
from opwright.errors import KernelRefusedError
from opwright.runtime import serialization
from opwright.runtime.inspect.show import show_kernel

triton = pytest.importorskip("triton")
gluon = pytest.importorskip("triton.experimental.gluon")
gl = gluon.language

pytestmark = pytest.mark.triton

IN_A_FILE = """
from triton.experimental import gluon

@gluon.jit
def double_kernel(x, out): ...

def double(x):
    return x * 2
"""


@gluon.jit(do_not_specialize=["n"])
def double_kernel(x, out, n, BLOCK: gl.constexpr):  # type: ignore[no-untyped-def]
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(out + at, gl.load(x + at, mask=at < n) * 2, mask=at < n)


def launch(x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        double_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
    return out


@pytest.fixture
def double(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::double")
    def double(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x * 2

    double.triton(launch, name="gluon")
    return double


@pytest.mark.parametrize("interpreter", [False, True])
def test_a_check_on_a_cpu_refuses_it_and_says_why(double, interpreter):
    (verdict,) = ow.check(double, kernels=["gluon"], device="cpu-sim", interpreter=interpreter)
    assert verdict.status is ow.results.Status.REFUSED
    assert "Gluon kernels run on a GPU only" in verdict.reason


def test_a_file_that_imports_gluon_is_refused_too(double, tmp_path):
    (tmp_path / "kernels.py").write_text(IN_A_FILE)
    double.triton(tmp_path / "kernels.py", entry="double", name="file")
    (verdict,) = ow.check(double, kernels=["file"], device="cpu-sim")
    assert "Gluon kernels run on a GPU only" in verdict.reason


def test_a_launch_of_an_imported_library_is_refused_by_name():
    with kernelsim.triton_launches(), pytest.raises(NotSimulatedError, match="double_kernel is in Gluon"):
        launch(torch.ones(5))


def test_its_stages_are_shown_but_for_the_one_that_it_does_not_have(double):
    kernel = double.kernels["gluon"]
    (ptx,) = show_kernel(kernel, "ptx", "sm_90")
    assert ".visible .entry double_kernel" in ptx.text
    assert "BLOCK=128" in ptx.title
    (ttgir,) = show_kernel(kernel, "ttgir", "sm_90")
    assert "#ttg.blocked" in ttgir.text
    with pytest.raises(KernelRefusedError, match="without the stage ttir"):
        show_kernel(kernel, "ttir", "sm_90")


@pytest.mark.gpu
def test_on_a_gpu_it_is_checked_and_runs_in_torch_compile(double):
    (verdict,) = ow.check(double, kernels=["gluon"], device="cuda")
    assert verdict.status is ow.results.Status.PASS, verdict
    x = torch.randn(1000, device="cuda")
    assert torch.equal(torch.compile(lambda x: double(x) + 1, fullgraph=True)(x), x * 2 + 1)


def test_it_is_found_but_no_tracer_takes_it_for_triton(double):
    assert list(kernels_reached(launch)) == [double_kernel]
    assert double.kernels["gluon"].traceable() is None


def test_it_travels_by_value_as_what_it_is(double):
    sent = serialization.load(serialization.dump(double))
    (kernel,) = kernels_reached(sent.kernels["gluon"].spec.source)
    assert type(kernel) is type(double_kernel)
    assert kernel is not double_kernel
    assert kernel.do_not_specialize == ["n"]
