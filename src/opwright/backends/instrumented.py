"""Tools that watch each access to memory of a kernel: AddressSanitizer for C++, compute-sanitizer for a GPU."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from opwright.backends import faults_on_gpu
from opwright.machine import Machine
from opwright.results import Refused
from opwright.results.outcomes import Instrumented, Tool

__all__ = ["address_sanitizer", "compute_sanitizer"]

# Besides addresses, what else makes an index wrong. Errors do not end the process, so that one run finds several.
_FLAGS = (
    "-fsanitize=address,signed-integer-overflow,bounds,integer-divide-by-zero,shift", "-fsanitize-recover=all",
    "-fno-omit-frame-pointer", "-g", "-O1",
)  # fmt: skip
_OPTIONS = (
    "detect_leaks=0", "halt_on_error=0", "detect_odr_violation=0", "alloc_dealloc_mismatch=0",
    "detect_stack_use_after_return=1", "color=never",
)  # fmt: skip
# torch's allocator gives tensors parts of large blocks, within which nothing is out of bounds.
_EACH_TENSOR_ALONE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# Seconds for a program that imports torch, and compiles and runs one kernel.
_TRIAL_S = 120


def address_sanitizer(machine: Machine) -> Instrumented | Refused:
    """AddressSanitizer, for C++. Its library has to be loaded first, and beside it that of C++, of which it replaces
    functions."""
    if machine.cxx is None:
        return Refused("there is no C++ compiler", "install g++ (apt install g++), or set CXX")
    found = [_library(machine.cxx.path, name) for name in ("libasan.so", "libstdc++.so")]
    libraries = [str(library) for library in found if library is not None]
    if len(libraries) < len(found):
        return Refused(f"{machine.cxx.version} has no {Tool.ADDRESS_SANITIZER}", "install g++'s (apt install libasan8)")
    environment = {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": ":".join(_OPTIONS),
        "UBSAN_OPTIONS": "print_stacktrace=0:halt_on_error=0:color=never",
    }
    return Instrumented(Tool.ADDRESS_SANITIZER, _FLAGS, environment=environment)


def _library(compiler: str, name: str) -> Path | None:
    """A library that comes with a compiler; g++ answers with the name alone if it has none."""
    done = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = Path(done.stdout.strip())
    return path if path.is_absolute() and path.exists() else None


def compute_sanitizer(*, barriers: bool) -> Instrumented | Refused:
    """NVIDIA's compute-sanitizer, for kernels of any language on a GPU.

    Args:
        barriers: whether the kernel's author has placed barriers, so that its other tools look for races and for
            barriers that not all threads reach.
    """
    path = _compute_sanitizer()
    if path is None:
        return Refused(
            f"{Tool.COMPUTE_SANITIZER} is not installed",
            "pip install nvidia-cuda-sanitizer-api, or install a CUDA toolkit",
        )
    blind = _why_blind(path, "memcheck")
    if blind:
        return Refused(
            f"{Tool.COMPUTE_SANITIZER} does not see a wrong access that is made for it here: {blind}",
            "run it where the driver lets one process watch another's GPU code, which not every container does",
        )
    tools = ("memcheck", *(tool for tool in ("racecheck", "synccheck") if barriers and not _why_blind(path, tool)))
    return Instrumented(
        Tool.COMPUTE_SANITIZER,
        commands={tool: _command(path, tool) for tool in tools},
        environment=dict(_EACH_TENSOR_ALONE),
    )


def _command(path: str, tool: str) -> tuple[str, ...]:
    """Files with their folders; no errors of torch's calls of CUDA, which torch expects; and memory after each
    allocation that is no other one's."""
    options = ["--tool", tool, "--print-limit", "20", "--strip-paths", "no", "--show-backtrace", "device"]
    options += ["--target-processes", "all"]  # a Python may start another one
    options += ["--report-api-errors", "no", "--padding", "1024"] if tool == "memcheck" else []
    return (path, *options)


@functools.cache
def _why_blind(path: str, tool: str) -> str:
    """The last words of a tool about a program with a fault, if it does not find it; else empty."""
    program = [sys.executable, "-c", faults_on_gpu.PROGRAM, tool]
    environment = {**os.environ, **_EACH_TENSOR_ALONE, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(
            [*_command(path, tool), *program],
            capture_output=True, text=True, check=False, timeout=_TRIAL_S, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it did not end within {_TRIAL_S} s"
    except OSError as error:
        return str(error)
    text = done.stdout + done.stderr
    if faults_on_gpu.FAULTS[tool][1] in text:
        return ""
    words = [line.strip("= ") for line in text.splitlines() if line.strip("= ")]
    return "; ".join(words[-2:]) or f"exit code {done.returncode}"


def _compute_sanitizer() -> str | None:
    """Of a package of Python or of a toolkit."""
    package = find_spec("nvidia")
    folders = map(Path, (package.submodule_search_locations or ()) if package is not None else ())
    packaged = [str(file) for folder in folders for file in folder.glob("*/compute-sanitizer/compute-sanitizer")]
    usual = [file for file in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer") if file]
    return next((file for file in (*packaged, *usual) if Path(file).is_file()), None)
