"""Generates Inductor's code for a target GPU on a machine without one, and compiles it with Triton.

Inductor queries a few device properties while it generates code. Here a record of the target GPU answers these queries;
inputs are fake tensors on a GPU; and the generated text is caught before it is loaded. This needs a process of its own,
because torch and Triton cache the answers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from opwright import tree
from opwright.backends.inductor.target_gpus import TargetGpu
from opwright.backends.numpy import tracing
from opwright.backends.numpy.placement import arrays_made_on
from opwright.backends.triton.stages import STAGES, CompiledKernel
from opwright.contract.contract import Contract
from opwright.contract.numpy.rules import DefaultFloatDtype
from opwright.contract.signature import Language
from opwright.errors import KernelRefusedError, OpwrightError
from opwright.import_file import import_file
from opwright.internals import triton as triton_internals
from opwright.internals.compiler import InductorParts, device_switches, fake_tensors, inductor_parts

__all__ = ["Compilable", "Generated", "compiled", "generate_for", "kernels_in"]

# Turns off choices that Inductor makes by timing on the device, and compile processes, which would lack the answers.
_WITHOUT_A_DEVICE = {
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "shape_padding": False,
    "cpp_wrapper": False,
    "compile_threads": 1,
}


@dataclass(frozen=True)
class Compilable:
    """A function for Inductor: an operator's reference, or a NumPy kernel. ``who`` names it in messages."""

    who: str
    contract: Contract
    function: Callable[..., Any]
    language: Language
    default_float_dtype: DefaultFloatDtype = "float64"


@dataclass(frozen=True)
class Generated:
    """A kernel that Inductor generated, or all its code if it only calls libraries. ``made`` is Triton's result."""

    name: str
    language: str
    text: str
    made: CompiledKernel | None = None


class _CaughtError(BaseException):
    """Ends a compilation as soon as its result is known; no ``except Exception`` stops it."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def compiled(compilable: Compilable, code_of: Callable[..., Any] = tracing.generate) -> Callable[..., Any]:
    """The compilable on arguments in signature order, compiled by torch.compile when it is called.

    Args:
        code_of: the backend that compiles a traced graph; Inductor by default.
    """
    split = len(compilable.contract.signature.positional)
    named = [a.name for a in compilable.contract.signature.keyword_only]

    def run(*values: Any) -> Any:
        return compilable.function(*values[:split], **dict(zip(named, values[split:], strict=True)))

    if compilable.language == "torch":
        return torch.compile(run, fullgraph=True, backend=code_of)
    compile_ = functools.partial(
        tracing.compile_whole, default_float_dtype=compilable.default_float_dtype, code_of=code_of
    )
    return tracing.on_tensors(run, compilable.contract.name, compile_)


def generate_for(
    gpu: TargetGpu, compilable: Compilable, calls: Sequence[Sequence[Any]], *, run_triton: bool
) -> tuple[Generated, ...]:
    """Inductor's code for the last of some calls. A size that differs between them is symbolic.

    Args:
        calls: the arguments of each; tensors may be on ``meta``.
        run_triton: compile each kernel as well, with the first of the configurations that Inductor would time.

    Raises:
        CompileError: torch.compile cannot trace the function.
        KernelRefusedError: this torch or Triton generates nothing without the device.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            kernels = kernels_in(_text_of(gpu, compilable, calls))
            return tuple(_run_triton(k, gpu, Path(folder)) for k in kernels) if run_triton else kernels
    except OpwrightError:
        raise
    except Exception as error:  # Dynamo, Inductor, Triton, LLVM and ptxas raise many types
        raise _as_opwright_error(gpu, compilable, error) from error


def kernels_in(text: str) -> tuple[Generated, ...]:
    """The kernels in Inductor's code, or all of the code if it only calls libraries."""
    cpp = re.findall(r"(?ms)^(\w+) = async_compile\.cpp_pybinding\(.*?r?'''(.*?)'''\)", text)
    gpu = re.findall(r"(?ms)^(\w+) = async_compile\.triton\('\w+', '''(.*?)'''", text)
    found = [(n, "cpp", t.strip("\n")) for n, t in cpp] + [(n, "python", t.strip("\n")) for n, t in gpu]
    return tuple(Generated(*f) for f in found or [("calls of libraries", "python", text)])


def _text_of(gpu: TargetGpu, compilable: Compilable, calls: Sequence[Sequence[Any]]) -> str:
    function, text = compiled(compilable, functools.partial(_generate, gpu)), ""
    config: Any = importlib.import_module("torch.compiler.config")
    place = arrays_made_on(torch.device("cuda")) if compilable.language == "numpy" else contextlib.nullcontext()
    with config.patch(force_disable_caches=True), torch.no_grad(), place:
        for arguments in calls:
            try:
                function(*_as_on_a_gpu(arguments))
            except _CaughtError as caught:
                text = caught.result
    if not text:
        raise KernelRefusedError(
            f"{compilable.who}: Inductor of torch {torch.__version__} did not pass on the code that it generated",
            fix=_fix(gpu),
        )
    return text


def _as_on_a_gpu(arguments: Sequence[Any]) -> list[Any]:
    def fake(t: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda")

    with fake_tensors():
        return [tree.map_tensors(fake, a) for a in arguments]


def _generate(gpu: TargetGpu, graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """Run Inductor. The target GPU is in place only while the final graph becomes code: the tracing and rewriting
    before that would use the device itself."""
    inductor = _inductor(gpu)

    def catch(text: str) -> None:
        raise _CaughtError(text)

    def inner(*args: Any, **kwargs: Any) -> Any:
        saved = mock.patch.object(inductor.GraphLowering, "save_output_code", staticmethod(catch))
        with _as_device(gpu), saved:
            return inductor.compile_fx_inner(*args, **kwargs)

    with inductor.config.patch(_WITHOUT_A_DEVICE):
        return inductor.compile_fx(graph, inputs, inner_compile=inner)


def _inductor(gpu: TargetGpu) -> InductorParts:
    found = inductor_parts()
    if found is None:
        raise KernelRefusedError(
            f"torch {torch.__version__} generates no code for {gpu.arch} without such a GPU", fix=_fix(gpu)
        )
    return found


@contextlib.contextmanager
def _as_device(gpu: TargetGpu) -> Iterator[None]:
    """A block in which torch and Triton query a record instead of a device."""
    inductor = _inductor(gpu)
    _set_driver(gpu)
    answers = _answers(gpu)
    with contextlib.ExitStack() as stack:
        for interface in (torch.cuda, inductor.CudaInterface):
            for name in answers.keys() & vars(interface).keys():
                stack.enter_context(mock.patch.object(interface, name, answers[name]))
        for function in vars(inductor.triton_facts).values():
            if hasattr(function, "cache_clear"):  # answers cached without a GPU
                function.cache_clear()
        yield


def _answers(gpu: TargetGpu) -> dict[str, Any]:
    state = torch.zeros(16, dtype=torch.uint8, device="cpu")  # a generator's, which Inductor saves and restores
    properties = types.SimpleNamespace(
        name=gpu.name, gcnArchName=gpu.name, major=gpu.capability[0], minor=gpu.capability[1], warp_size=gpu.warp_size,
        multi_processor_count=gpu.multiprocessors, regs_per_multiprocessor=gpu.registers,
        max_threads_per_multi_processor=gpu.threads, max_threads_per_block=gpu.threads_per_block,
        shared_memory_per_block=48 * 1024, shared_memory_per_block_optin=gpu.shared_memory,
    )  # fmt: skip
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_properties": properties,
        "get_device_capability": gpu.capability, "get_device_name": gpu.name, "get_rng_state": state,
        "set_rng_state": None, **dict.fromkeys(device_switches(), 0),
    }  # fmt: skip
    return {name: staticmethod(functools.partial(_answer, value)) for name, value in answers.items()}


def _answer(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _set_driver(gpu: TargetGpu) -> None:
    """Make a Triton driver for the target GPU; Triton's own cannot be made without a GPU."""
    import triton

    driver, parts = triton_internals.nvidia_driver(), triton_internals.stages()
    if driver is None or parts is None:
        raise KernelRefusedError(
            f"Triton {triton.__version__} generates no code for {gpu.arch} without such a GPU", fix=_fix(gpu)
        )

    target = parts.GPUTarget

    class TargetDriver(driver):  # type: ignore[misc, valid-type]  # Inductor tests whether the driver is NVIDIA's
        def __init__(self) -> None:
            properties = {"max_shared_mem": gpu.shared_memory, "multiprocessor_count": gpu.multiprocessors}
            self.utils = types.SimpleNamespace(get_device_properties=functools.partial(_answer, properties))
            self.get_current_device = functools.partial(_answer, 0)

        def get_current_target(self) -> Any:
            return target("cuda", 10 * gpu.capability[0] + gpu.capability[1], gpu.warp_size)

    triton.runtime.driver.set_active(TargetDriver())


def _run_triton(kernel: Generated, gpu: TargetGpu, folder: Path) -> Generated:
    """The kernel with every stage, compiled by Triton as from Inductor."""
    import triton

    if "@triton.jit" not in kernel.text:
        return kernel
    compile_ = triton.compile

    def catch(*args: Any, **kwargs: Any) -> None:
        raise _CaughtError(compile_(*args, **kwargs))

    with _as_device(gpu):
        waiting = _import(kernel, folder)
        first = waiting.configs[0]
        try:
            with mock.patch.object(triton, "compile", catch):
                _inductor(gpu).precompile(waiting, first)
        except _CaughtError as caught:
            asm, shared_bytes = caught.result.asm, caught.result.metadata.shared
        else:
            raise AttributeError("Inductor did not call triton.compile")
    stages = {s: str(asm[s]).replace(f"{folder}/", "") for s in STAGES}
    made = CompiledKernel(kernel.name, _configuration(first, len(waiting.configs)), stages, asm["cubin"], shared_bytes)
    return Generated(kernel.name, kernel.language, kernel.text, made)


def _import(kernel: Generated, folder: Path) -> Any:
    """Import a kernel with Inductor's decorators. Triton reads its source from the file."""
    file = folder / f"{kernel.name}.py"
    file.write_text(kernel.text)
    return getattr(import_file(file, kernel.name), kernel.name)


def _configuration(chosen: Any, number: int) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in chosen.all_kwargs().items() if value is not None)
    return f"{settings}: the first of {number} that Inductor times" if number > 1 else settings


def _as_opwright_error(gpu: TargetGpu, compilable: Compilable, error: Exception) -> OpwrightError:
    known = tracing.explain_break(
        error, compilable.who, "compute it outside of the operator, and pass it as an argument"
    )
    return known or _refusal(gpu, compilable, error)


def _refusal(gpu: TargetGpu, compilable: Compilable, error: Exception) -> KernelRefusedError:
    root: Any = error
    while (inner := getattr(root, "inner_exception", None) or root.__cause__) is not None:
        root = inner
    first_line = next(iter(str(root).strip().splitlines()), "")
    return KernelRefusedError(
        f"{compilable.who}: Inductor of torch {torch.__version__} generates nothing for {gpu.arch} without such a GPU: "
        f"{type(root).__name__}: {first_line}",
        fix=_fix(gpu),
    )


def _fix(gpu: TargetGpu) -> str:
    return f"use a machine with {gpu.arch}, or show the C++ for this CPU: --what inductor without --arch"
