"""Inductor's code for a named GPU, on a machine without one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.errors import CompileError, KernelRefusedError
from opwright.gallery.add import add
from opwright.gallery.kmeans import kmeans_assign
from opwright.results import Shown
from opwright.runtime.inspect import inductor_views
from opwright.runtime.inspect.show import show_kernel, show_reference

needs_triton = pytest.mark.triton


def of_kernel(what: str, arch: str, dynamic: bool = False) -> Shown:
    return show_kernel(kmeans_assign.kernels["numpy_compiled"], what, arch, dynamic)[0]


@pytest.mark.slow
@needs_triton
def test_the_triton_of_a_numpy_kernel_is_shown_and_this_process_knows_of_no_gpu() -> None:
    before = torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda.get_device_properties
    shown = of_kernel("triton", "sm_90")
    assert shown.title.endswith(", sm_90, for float32[1000000, 2], float32[8, 2]")
    assert "@triton.jit\ndef triton_" in shown.text
    assert "cc=90" in shown.text
    assert "xnumel = 1000000" in shown.text
    assert "sqrt" in shown.text
    assert before == (torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda.get_device_properties)
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            torch.empty(1, device="cuda")


@pytest.mark.slow
@needs_triton
def test_sizes_that_changed_are_symbolic_and_those_that_did_not_are_numbers() -> None:
    shown = of_kernel("triton", "sm_90", dynamic=True)
    assert shown.title.endswith("for float32[1000000, 2], float32[8, 2] after float32[10000, 2], float32[8, 2]")
    assert "@triton.jit" in shown.text
    assert "xnumel = 1000000" not in shown.text
    assert "r0_numel = 8" in shown.text


@pytest.mark.slow
@needs_triton
def test_the_stages_of_what_inductor_generates_are_shown_for_the_architecture() -> None:
    shown = show_reference(add.contract, "ptx", "sm_80")[0]
    assert shown.title.startswith("triton_poi_fused_add_0(XBLOCK=")
    assert ".target sm_80" in shown.text
    assert ".visible .entry triton_poi_fused_add_0(" in shown.text
    assert "ttg." in of_kernel("ttgir", "sm_100").text


@pytest.mark.slow
@needs_triton
def test_a_reference_that_cannot_be_compiled_is_an_error_that_names_operator_and_line(namespace: str) -> None:
    @ow.op(f"{namespace}::breaks")
    def breaks(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        torch._dynamo.graph_break()
        return x * 2

    with pytest.raises(CompileError, match=rf"{namespace}::breaks: cannot be compiled whole \(in breaks at .*\.py:\d+"):
        show_reference(breaks.contract, "triton", "sm_90")


@pytest.mark.exhaustive
@pytest.mark.slow
@needs_triton
def test_where_inductor_only_calls_libraries_there_is_nothing_for_triton(namespace: str) -> None:
    @ow.op(f"{namespace}::product")
    def product(x: Float[Tensor, "n k"], y: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
        return x @ y

    assert "extern_kernels.mm" in show_reference(product.contract, "inductor", "sm_90")[0].text
    with pytest.raises(KernelRefusedError, match="product:reference: Inductor generates no Triton kernel"):
        show_reference(product.contract, "ptx", "sm_90")


def test_an_unknown_architecture_is_refused() -> None:
    for what in ("inductor", "triton", "ptx"):
        with pytest.raises(KernelRefusedError, match="the properties of 'sm_91' are not known"):
            of_kernel(what, "sm_91")


def test_without_triton_it_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = replace(build_tools(), machine=replace(build_tools().machine, triton=None, gpus=()))
    monkeypatch.setattr(inductor_views, "build_tools", lambda: tools)
    with pytest.raises(KernelRefusedError, match=r"numpy_compiled: .*Triton is not installed") as refused:
        of_kernel("triton", "sm_90")
    assert "pip install opwright[triton]" in str(refused.value)


def test_a_process_that_ends_early_is_refused_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SimpleNamespace(returncode=-11, stderr="Traceback\nSegmentation fault")
    monkeypatch.setattr("opwright.runtime.inspect.inductor_child.subprocess.run", lambda *_, **__: ended)
    tools = replace(build_tools(), machine=replace(build_tools().machine, triton="3.9", gpus=()))
    monkeypatch.setattr(inductor_views, "build_tools", lambda: tools)
    with pytest.raises(KernelRefusedError, match=r"for sm_90 ended with -11: Segmentation fault"):
        of_kernel("triton", "sm_90")


@needs_triton
def test_a_process_that_does_not_end_is_stopped_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwright.runtime.inspect.inductor_child._TIME_LIMIT_S", 0.01)
    with pytest.raises(KernelRefusedError, match=r"gallery::kmeans_assign: .* for sm_90 was stopped after 0\.01 s"):
        of_kernel("triton", "sm_90")


@pytest.mark.slow
@pytest.mark.gpu
def test_what_is_generated_without_the_gpu_is_what_is_generated_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    arch = build_tools().machine.gpus[0].arch
    with_it = of_kernel("triton", arch).text
    tools = replace(build_tools(), machine=replace(build_tools().machine, gpus=()))
    monkeypatch.setattr(inductor_views, "build_tools", lambda: tools)
    without_it = of_kernel("triton", arch).text
    assert code_of(without_it) == code_of(with_it)


def code_of(text: str) -> str:
    """The kernel below the decorators, which also tell which of an architecture's products it was generated for."""
    return text.partition("@triton.jit")[2]
