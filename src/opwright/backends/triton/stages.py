"""Compiles a launcher's Triton kernels for a target GPU, without one: the launcher runs on meta tensors, and its
launches are compiled instead of launched."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from opwright.backends.compiler import run_compiler
from opwright.backends.gpu.device_code import Resources
from opwright.backends.gpu.ptxas import read_resources
from opwright.backends.gpu.simulated_tensors import on_simulated
from opwright.backends.simulation import triton_launches_go_to
from opwright.backends.triton.tracing import is_interpreted, kernels_reached
from opwright.contract.contract import Contract
from opwright.errors import CompileError, KernelRefusedError
from opwright.internals import triton as triton_internals

__all__ = ["STAGES", "CompiledKernel", "compile_launches"]

STAGES = ("ttir", "ttgir", "llir", "ptx")
_TYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
_LAUNCH_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion"})


@dataclass(frozen=True)
class CompiledKernel:
    """One compiled kernel. ``called`` describes the arguments that it was compiled for; ``shared_bytes`` is what a
    launch requests for a block: Triton declares no static shared memory."""

    name: str
    called: str
    stages: dict[str, str]
    cubin: bytes
    shared_bytes: int

    def resources(self, arch: str, folder: Path) -> Resources | None:
        """Registers, spills and shared memory, from ptxas."""
        file = folder / f"{self.name}.ptx"
        file.write_text(self.stages["ptx"])
        named = re.search(r"\.target (sm_\w+)", self.stages["ptx"])  # such as sm_90a
        arguments = ["-v", f"-arch={named[1] if named else arch}", str(file), "-o", str(file.with_suffix(".o"))]
        refused: list[CompileError] = []
        for ptxas in _ptxas():
            try:
                found = read_resources(run_compiler([ptxas, *arguments], f"{self.name}.ptx"), self.name)
                return found and replace(found, dynamic_shared=self.shared_bytes)
            except CompileError as error:
                refused.append(error)
        why = refused[-1].message if refused else "there is none"
        raise KernelRefusedError(f"Triton's ptxas cannot read this PTX: {why}", fix="use --what ptx")


def compile_launches(
    launcher: Callable[..., Any], contract: Contract, arguments: Sequence[Any], arch: str
) -> list[CompiledKernel]:
    """Every kernel that a launcher launches on these arguments (tensors on ``meta``), compiled for ``arch``.

    Raises:
        KernelRefusedError: it launches none, or Triton cannot compile for that architecture here.
    """
    if any(map(is_interpreted, kernels_reached(launcher))):
        raise KernelRefusedError("TRITON_INTERPRET is set, so that Triton compiles nothing", fix="unset it")
    launches: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = []
    with triton_launches_go_to(lambda *launch: launches.append(launch)):
        contract.signature.call(on_simulated(launcher), arguments)
    if not launches:
        raise KernelRefusedError(
            f"{contract.qualname}: the launcher launches no Triton kernel", fix="use another --what"
        )
    return [_compile(function, args, kwargs, arch) for function, _, args, kwargs in launches]


def _compile(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arch: str) -> CompiledKernel:
    import triton

    values = {**dict(zip(function.arg_names, args, strict=False)), **kwargs}
    parts = triton_internals.stages(function)
    if parts is None:
        raise KernelRefusedError(
            f"Triton {triton.__version__} does not compile {function.__name__} for a GPU that is not present",
            fix=f"use a machine with {arch}",
        )
    options = {name: values.pop(name) for name in _LAUNCH_OPTIONS & values.keys()}
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(function.params):
        value = values.get(parameter.name, parameter.default)
        kind = "constexpr" if parameter.is_constexpr or value is None or value is True else _type_of(value)
        if kind == "constexpr" or (type(value) is int and value == 1):
            kind, constants[(i,)] = "constexpr", value
        elif isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
        signature[parameter.name] = kind
    source = parts.ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    try:
        made = triton.compile(
            source, target=parts.GPUTarget("cuda", int(arch.removeprefix("sm_")), 32), options=options
        )
    except Exception as error:  # LLVM, MLIR and ptxas each raise errors of their own
        raise KernelRefusedError(f"Triton does not compile {function.__name__} for {arch}: {error}") from error
    called = ", ".join(
        f"{n}={constants[(i,)]!r}" if k == "constexpr" else f"{n}: {k}" for i, (n, k) in enumerate(signature.items())
    )
    stages = {s: str(made.asm[s]) for s in STAGES if s in made.asm}
    return CompiledKernel(function.__name__, called, stages, made.asm["cubin"], made.metadata.shared)


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _ptxas() -> list[str]:
    """The ptxas binaries of Triton: one for older and one for newer architectures."""
    import triton

    return [str(p) for p in sorted((Path(triton.__file__).parent / "backends" / "nvidia" / "bin").glob("ptxas*"))]
