"""The two forms of a CUDA kernel of an operator: a launcher in Python, and a file with a host function."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends import get_backend
from opwright.backends.build_tools import build_tools
from opwright.backends.cuda.backend import _architecture_flags, nvrtc
from opwright.errors import CompileError, KernelError, KernelRefusedError, SignatureMismatchError
from opwright.machine import Compiler, Gpu, this_machine
from opwright.results import Accepted, Refused

HOST = """
#include <opwright/tensor.h>
using torch::stable::Tensor;

__global__ void scale_kernel(const float* x, float* out, float a, int64_t n) {
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = x[i] * a;
}

Tensor scale(const Tensor& x, double a) {
  Tensor in = opwright::contiguous(x), out = opwright::empty_like(in);
  const int64_t n = in.numel();
  if (n > 0)
    scale_kernel<<<(n + 255) / 256, 256, 0, opwright::current_stream(in)>>>(
        in.const_data_ptr<float>(), out.mutable_data_ptr<float>(), static_cast<float>(a), n);
  return out;
}
"""
DEVICE = """
__global__ void scale(const float* x, float* out, float a, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = x[threadIdx.x] * a;
}
"""
WITH_GPU = dataclasses.replace(this_machine(), gpus=(Gpu("a GPU", (9, 0), 80 << 30),))


def scale(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, " n"], a: float = 1.0) -> Float[Tensor, " n"]:
        return x * a

    return scale


def attach_file(op: ow.Op, folder: Path, text: str = HOST, **options: Any) -> Any:
    (folder / "scale.cu").write_text(text)
    return op.cuda(folder / "scale.cu", name="native", dtypes=[torch.float32], **options)


def attach_launcher(op: ow.Op) -> None:
    kernels = ow.cuda_module(DEVICE)

    @op.cuda(name="launched", dtypes=[torch.float32])
    def _(x: Tensor, a: float) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        kernels["scale"][1, 1024](x, out, a, x.numel())
        return out


def test_a_launcher_is_refused_without_nvrtc_or_gpu(namespace, monkeypatch):
    op = scale(namespace)
    attach_launcher(op)
    kernel = op.kernels["launched"]
    monkeypatch.setattr(nvrtc, "available", lambda: Refused("cuda-bindings is not installed", "pip install it"))
    assert kernel.probe("cuda", WITH_GPU) == Refused("cuda-bindings is not installed", "pip install it")
    monkeypatch.setattr(nvrtc, "available", lambda: Accepted("NVRTC"))
    assert isinstance(kernel.probe("cuda", WITH_GPU), Accepted)
    assert "no CUDA GPU" in kernel.probe("cuda", dataclasses.replace(WITH_GPU, gpus=())).reason


def test_doctor_says_what_is_there_and_what_that_is_good_for(monkeypatch):
    nothing = dataclasses.replace(this_machine(), gpus=(), nvcc=None, cxx=None)
    compiler = dataclasses.replace(nothing, cxx=Compiler("g++", "g++ 12"))
    monkeypatch.setattr(nvrtc, "available", lambda: Refused("no NVRTC", "install it"))
    available = get_backend("cuda").available
    assert available(nothing) == Refused("no NVRTC", "install it")
    assert "in the simulator only: no NVRTC (install it)" in available(compiler).note
    assert isinstance(available(dataclasses.replace(compiler, gpus=WITH_GPU.gpus)), Refused)
    monkeypatch.setattr(nvrtc, "available", lambda: Accepted("NVRTC 13.0"))
    assert "not simulated either: there is no C++ compiler" in available(nothing).note
    assert available(compiler).note.endswith("run it, in the simulator")
    assert "simulator" not in available(dataclasses.replace(compiler, gpus=WITH_GPU.gpus)).note


def test_a_file_is_refused_without_nvcc_and_needs_no_nvrtc(namespace, tmp_path, monkeypatch):
    op = scale(namespace)
    attach_file(op, tmp_path)
    monkeypatch.setattr(nvrtc, "available", lambda: Refused("no", "NVRTC"))
    refused = op.kernels["native"].probe("cuda", dataclasses.replace(WITH_GPU, nvcc=None))
    assert (refused.reason, "CUDA toolkit" in refused.remedy) == ("nvcc is not found", True)
    tools = dataclasses.replace(build_tools(), machine=dataclasses.replace(this_machine(), nvcc=None))
    with pytest.raises(KernelRefusedError, match="nvcc is not found"):
        get_backend("cuda").compile(op.kernels["native"].spec, op.contract, tools)


@pytest.mark.parametrize(
    ("text", "error", "output"),
    [
        (
            HOST.replace("double a", "float a"),
            SignatureMismatchError,
            "parameter 'a' must be 'double', got 'float'",
        ),
        (HOST.replace("Tensor scale(", "Tensor scaled("), KernelError, "must define the function 'scale', got none"),
    ],
)
def test_a_host_function_of_another_signature_is_refused_without_compiling(namespace, tmp_path, text, error, output):
    with pytest.raises(error, match=output):
        attach_file(scale(namespace), tmp_path, text)


def test_a_launcher_with_other_parameters_is_refused(namespace):
    with pytest.raises(SignatureMismatchError, match=r"must take \(x, a\), got \(x\)"):
        scale(namespace).cuda(lambda x: x, name="launched")


def test_an_edited_cu_file_changes_the_operators_fingerprint(namespace, tmp_path):
    def launcher(kernels):
        return lambda x, a: kernels["scale"][1, 1](x, x, a, 1)

    seen = set()
    for factor in (1, 2, 2):
        op = scale(namespace)
        kernels = ow.cuda_module(DEVICE.replace("* a", f"* a * {factor}"))
        op.cuda(launcher(kernels), name="launched")
        seen.add(op.fingerprint)
    assert len(seen) == 2


@pytest.mark.nvcc
def test_architectures_are_those_of_the_gpus_here_or_all_or_the_authors(namespace, tmp_path):
    op = scale(namespace)
    attach_file(op, tmp_path)
    spec = op.kernels["native"].spec
    without = dataclasses.replace(this_machine(), gpus=())
    assert _architecture_flags(spec, WITH_GPU) == (
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    )
    everywhere = _architecture_flags(spec, without)
    assert len(everywhere) > 4
    assert everywhere[-1].replace("compute_", "").count(everywhere[-2].rpartition("_")[2]) == 2, "PTX is for the newest"
    chosen = dataclasses.replace(spec, options={"options": ["-arch=sm_80"]})
    assert _architecture_flags(chosen, without) == ()


@pytest.mark.nvcc
@pytest.mark.parametrize(("options", "links"), [([], False), (["-rdc=true"], True), (["-rdc", "true"], True)])
def test_device_code_is_linked_where_it_is_relocatable(namespace, tmp_path, options, links):
    op = scale(namespace)
    attach_file(op, tmp_path, options=options)
    tools = get_backend("cuda").toolchain(op.kernels["native"].spec, op.contract, this_machine())
    assert ("--no-device-link" not in tools.flags) == links


@pytest.mark.nvcc
@pytest.mark.slow
def test_nvcc_builds_a_host_function_once(namespace, tmp_path):
    op = scale(namespace)
    attach_file(op, tmp_path, options=["-arch=sm_90"])
    messages: list[str] = []
    tools = dataclasses.replace(build_tools(), notify=messages.append)
    first, second = (get_backend("cuda").compile(op.kernels["native"].spec, op.contract, tools) for _ in range(2))
    assert b"scale_kernel" in first.file.read_bytes()
    assert second == first
    assert len(messages) == 1


@pytest.mark.nvcc
@pytest.mark.slow  # nvcc takes three seconds; test_compiler.py reads its messages
def test_a_compile_error_of_nvcc_shows_file_line_and_caret(namespace, tmp_path):
    op = scale(namespace)
    attach_file(op, tmp_path, HOST.replace("if (n > 0)", "if (m > 0)"))
    with pytest.raises(CompileError) as caught:
        get_backend("cuda").compile(op.kernels["native"].spec, op.contract, build_tools())
    message = str(caught.value)
    assert 'scale.cu(13): error: identifier "m" is undefined' in message
    assert "if (m > 0)\n" in message


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["launcher", pytest.param("file", marks=pytest.mark.nvcc)])
def test_either_form_is_an_operator(namespace, tmp_path, form):
    op = scale(namespace)
    attach_launcher(op) if form == "launcher" else attach_file(op, tmp_path)
    x = torch.randn(1000, device="cuda", requires_grad=True)
    assert op.explain(x, 3.0).chosen.kernel in ("launched", "native")
    for _ in range(3):  # the later ones are like the first
        assert torch.equal(op(x.detach(), 3.0), x.detach() * 3)
    op(x, 3.0).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))
    compiled = torch.compile(lambda x: op(x.sin(), 3.0) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(x), x.sin() * 3 + 1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            out = op(x.detach(), 2.0)
    side.synchronize()
    assert torch.equal(out, x.detach() * 2)
