"""Compiles a Triton kernel for the CPU: arguments → TTIR → C++ → a shared object in the artifact cache."""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright.backends.build_tools import build_tools
from opwright.backends.compiler import run_compiler
from opwright.backends.compiler_inputs import key_parts
from opwright.backends.triton.simulator.generation import Generated, generate
from opwright.backends.triton.simulator.reading import read_module
from opwright.backends.triton.simulator.writer import Site
from opwright.cache import ArtifactKey
from opwright.errors import KernelError, KernelRefusedError
from opwright.internals import triton as triton_internals
from opwright.read_files import ReadFiles

__all__ = ["Compiled", "Specialised", "compile_kernel", "specialise"]

# Triton's frontend keeps state, and Python 3.11's parser fails where threads parse at the same time.
_COMPILING = threading.Lock()
_COMPILED: dict[tuple[Any, ...], Compiled] = {}
_INCLUDE = Path(__file__).parent / "include"
# Signed integers wrap, as on a GPU. No fast-math: infinities and NaN are values as others.
_FLAGS = (
    *("-std=c++17", "-O2", "-march=native", "-fPIC", "-shared", "-pthread", "-fwrapv", "-fno-strict-aliasing"),
    *("-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-w"),
)
_TYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
    torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip
_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "debug", "launch_pdl",
                      "launch_cooperative_grid", "sanitize_overflow"})  # fmt: skip


@dataclass(frozen=True)
class Specialised:
    """A kernel's arguments by name: the types of those at run time, and the values of the others."""

    signature: dict[str, str]
    constants: dict[str, Any]
    run_time: tuple[tuple[str, Any], ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel: its shared object, and the places in its source that may have findings."""

    name: str
    library: ctypes.CDLL
    programs: Any
    sites: tuple[Site, ...]
    parameters: tuple[str, ...]

    def run(self, request: Any, arguments: Any, order: int | None, total: int, threads: int) -> None:
        """Run all programs; the request gets their findings."""
        self.library.opwright_begin(request)
        enter, kernel = self.library.opwright_enter, self.library.opwright_kernel
        self.programs(
            enter, kernel, arguments, ctypes.c_uint64(total), ctypes.c_void_p(order), ctypes.c_uint32(threads)
        )


def specialise(function: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Specialised:
    """The arguments as Triton specialises them: constants, ones and None are part of the kernel.

    Raises:
        KernelError: an argument is missing.
        KernelRefusedError: an argument of a kind that the simulator does not take.
    """
    values = {**dict(zip(function.arg_names, args, strict=False)), **keywords}
    options = {name: values.pop(name) for name in list(values) if name not in function.arg_names}
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    run_time = []
    for parameter in function.params:
        value = values.get(parameter.name, parameter.default)
        if value is inspect.Parameter.empty:
            raise KernelError(f"{function.__name__}: argument {parameter.name} is missing", fix="pass it at the launch")
        is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or is_one:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            signature[parameter.name] = _type_of(function.__name__, parameter.name, value)
            run_time.append((parameter.name, value))
    return Specialised(signature, constants, tuple(run_time), {n: o for n, o in options.items() if n in _OPTIONS})


def _type_of(kernel: str, name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.dtype in _TYPES:
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    what = f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    raise KernelRefusedError(
        f"{kernel}: argument {name} is {what}, which the Triton simulator does not take",
        fix="check this kernel on a GPU",
    )


def compile_kernel(function: Any, specialised: Specialised, *, checked: bool) -> Compiled:
    """Compile a jitted function for these arguments, or take it from the cache.

    Raises:
        KernelRefusedError: no C++ compiler, no such Triton, or an operation that the simulator does not have.
        KernelError: Triton's frontend refuses the kernel.
    """
    # Triton's frontend takes tens of milliseconds. ``cache_key`` is of the source of all that a kernel calls, and of
    # the globals that it read; a constant by its text as well, since 1 == True and 0.0 == -0.0.
    constants = tuple((name, type(value), repr(value)) for name, value in specialised.constants.items())
    types, options = tuple(specialised.signature.items()), tuple(map(repr, sorted(specialised.options.items())))
    key = (function, function.cache_key, types, constants, options, checked)
    with _COMPILING:
        if key not in _COMPILED:
            _COMPILED[key] = _compile(function.__name__, _ttir(function, specialised), checked)
        return _COMPILED[key]


def _ttir(function: Any, specialised: Specialised) -> str:
    parts = triton_internals.stages()
    made = None
    if parts is not None:
        places = {name: (i,) for i, name in enumerate(specialised.signature)}
        constants = {places[name]: value for name, value in specialised.constants.items()}
        source = parts.ASTSource(fn=function, signature=specialised.signature, constexprs=constants, attrs={})
        options = {"enable_fp_fusion": True, **specialised.options, "debug": True}
        try:
            made = triton_internals.ttir(source, options)
        except Exception as error:  # the frontend raises errors of its own
            raise KernelError(f"Triton does not compile {function.__name__}: {error}") from error
    if made is None:
        raise KernelRefusedError("this Triton has no frontend that the simulator knows", fix="use Triton 3.4 to 3.9")
    return made


def _generated(name: str, ttir: str) -> Generated:
    try:
        return generate(read_module(ttir))
    except (
        KeyError,
        IndexError,
        AttributeError,
        StopIteration,
    ) as error:  # the text has another form than what is read
        raise KernelRefusedError(
            f"{name}: the Triton simulator cannot read what Triton made of it: {type(error).__name__}: {error}",
            fix="check this kernel in the interpreter, or on a GPU",
        ) from error


def _compile(name: str, ttir: str, checked: bool) -> Compiled:
    generated = _generated(name, ttir)
    flags = ["-DCHECKED"] if checked else []
    files = {"kernel.cpp": generated.text, "kernel.ttir": ttir}
    kernel = _library(f"{'checked' if checked else 'fast'}.{name}", files, flags)
    return Compiled(name, kernel, _programs(), tuple(generated.sites), tuple(generated.parameters))


@functools.cache
def _programs() -> Any:
    text = (_INCLUDE / "opwright_programs.cpp").read_text()
    return _library("programs", {"kernel.cpp": text}, []).opwright_run


def _library(name: str, files: Mapping[str, str], more_flags: Sequence[str]) -> ctypes.CDLL:
    """The shared object of ``kernel.cpp``; the other files are there to be read."""
    tools = build_tools()
    compiler = tools.machine.cxx
    if compiler is None:
        raise KernelRefusedError(f"{name}: there is no C++ compiler", fix="install g++ (apt install g++), or set CXX")
    flags = [*_FLAGS, *more_flags]
    header = (_INCLUDE / "opwright_triton.h").read_text()
    key = ArtifactKey(
        name=f"triton-simulator.{name}",
        parts=(
            *(("source", files["kernel.cpp"]), ("header", header), ("flags", " ".join(flags))),
            *(("processor", tools.machine.cpu_flags), *key_parts(compiler, ())),
        ),
        base=None,
    )

    def build(folder: Path) -> ReadFiles:
        for file, text in files.items():
            (folder / file).write_text(text)
        command = [compiler.path, *flags, f"-I{_INCLUDE}", "kernel.cpp", "-o", "kernel.so"]
        run_compiler(command, name, target="the Triton simulator", folder=folder)
        return ReadFiles()

    return ctypes.CDLL(str(tools.cache.get_or_build(key, build) / "kernel.so"))
