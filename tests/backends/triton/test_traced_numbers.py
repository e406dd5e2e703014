"""In a graph of torch.compile, a Triton kernel computes with Python's floats as in a plain launch: in float32."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import opwright as ow
from opwright.backends.triton.tracing import traceable_launcher

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [pytest.mark.triton, pytest.mark.compiler]


@triton.jit
def _scaled(x, out, factor, n, BLOCK: tl.constexpr):
    """A docstring, "factor" in it."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, factor * tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def _part(x, factor, IS_PLAIN: tl.constexpr):
    if IS_PLAIN:
        return x
    return x * factor


@triton.jit
def _in_parts(x, out, factor, n, BLOCK: tl.constexpr, IS_PLAIN: tl.constexpr):
    # Returns of two types, if the factor is float64.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, _part(tl.load(x + at, mask=at < n), factor, IS_PLAIN), mask=at < n)


@triton.jit
def _with_constant(x, out, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, FACTOR * tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def _annotated(x, out, factor: float, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, factor * tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def _in_float64(x, out, factor: tl.float64, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, factor * tl.load(x + at, mask=at < n), mask=at < n)


_tuned = triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])(_scaled)


def scaled(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _scaled[(triton.cdiv(x.numel(), 64),)](x, out, factor, x.numel(), BLOCK=64)
    return out


def by_name(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _scaled[(triton.cdiv(x.numel(), 64),)](x=x, out=out, n=x.numel(), factor=factor, BLOCK=64)
    return out


def tuned(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, factor, x.numel())
    return out


def in_parts(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _in_parts[(triton.cdiv(x.numel(), 64),)](x, out, factor, x.numel(), BLOCK=64, IS_PLAIN=True)
    return out


def by_whole_number(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _scaled[(triton.cdiv(x.numel(), 64),)](x, out, int(factor), x.numel(), BLOCK=64)
    return out


def by_constant(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _with_constant[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), FACTOR=factor, BLOCK=64)
    return out


def annotated(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _annotated[(triton.cdiv(x.numel(), 64),)](x, out, factor, x.numel(), BLOCK=64)
    return out


def by_annotation(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _in_float64[(triton.cdiv(x.numel(), 64),)](x, out, factor, x.numel(), BLOCK=64)
    return out


def inside(times: int) -> Callable[..., Tensor]:
    @triton.jit
    def kernel(x, out, factor, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, factor * times * tl.load(x + at, mask=at < n), mask=at < n)

    def launcher(x: Tensor, factor: float) -> Tensor:
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 64),)](x, out, factor, x.numel(), BLOCK=64)
        return out

    return launcher


def traced(launcher: Callable[..., Tensor]) -> Any:
    """The kernel in a graph of a call."""
    launch = traceable_launcher(launcher)
    assert launch is not None
    with FakeTensorMode(), torch.no_grad():
        graph = make_fx(lambda x: launch(x, 0.1))(torch.empty(100, device="cuda"))
    (node,) = (n for n in graph.graph.nodes if "kernel_idx" in n.kwargs)
    return kernel_side_table.get_kernel(node.kwargs["kernel_idx"])


def compiled_as_inductor_does(kernel: Any, folder: Path) -> str:
    """The first form of the kernel in Triton's own language, with its text alone, and the factor in float64."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    parts = f"@triton.jit\n{_part.src}\n" if "_part" in kernel.src else ""
    file = folder / "generated.py"
    file.write_text(f"import triton\nimport triton.language as tl\n\n{parts}\n@triton.jit\n{kernel.src}")
    spec = importlib.util.spec_from_file_location("generated", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, kernel.fn.__name__)
    types = {"x": "*fp32", "out": "*fp32", "factor": "fp64", "n": "i32"}
    constants = {"BLOCK": 64, "IS_PLAIN": True}
    signature = {name: types.get(name, "constexpr") for name in function.arg_names}
    source = ASTSource(function, signature, {n: v for n, v in constants.items() if n in function.arg_names})
    return str(compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"])


@pytest.mark.parametrize("launcher", [scaled, by_name, tuned, in_parts, annotated])
def test_a_float_is_one_of_32_bits(launcher, tmp_path):
    kernel = traced(launcher).fn if launcher is tuned else traced(launcher)
    ttir = compiled_as_inductor_does(kernel, tmp_path)
    assert "    factor = tl.cast(factor, tl.float32)\n" in kernel.src
    assert not [line for line in ttir.splitlines() if "xf64>" in line], ttir


def test_without_it_tiles_are_of_64_bits_or_nothing_compiles(tmp_path):
    assert "xf64>" in compiled_as_inductor_does(_scaled, tmp_path)
    with pytest.raises(Exception, match="_part"):
        compiled_as_inductor_does(_in_parts, tmp_path)


@pytest.mark.parametrize("launcher", [by_whole_number, by_constant, by_annotation])
def test_kernels_without_such_numbers_are_traced_as_they_are(launcher):
    assert traced(launcher) in (_scaled, _with_constant, _in_float64)


def test_a_kernel_with_names_of_the_function_around_it_is_traced():
    assert "tl.cast(factor, tl.float32)" in traced(inside(3)).src


@pytest.mark.gpu
@pytest.mark.parametrize("launcher", [scaled, by_name, tuned, in_parts, by_whole_number, by_constant, by_annotation])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_calls_give_the_bits_of_plain_ones(launcher, dynamic, namespace):
    @ow.op(f"{namespace}::scaled")
    def operator(x: Float32[Tensor, " n"], factor: float) -> Float32[Tensor, " n"]:
        return x * factor

    operator.triton(launcher, name="kernel")
    torch.compiler.reset()  # of one function, torch compiles so many versions
    x = torch.randn(1000, device="cuda")
    compiled = torch.compile(lambda x, factor: operator(x + 1, factor) * 2, fullgraph=True, dynamic=dynamic)
    for factor in (0.1, 1.0, 3.0000001):
        assert torch.equal(compiled(x, factor), operator(x + 1, factor) * 2)
