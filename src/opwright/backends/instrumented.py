"""Tools that watch each access to memory of a kernel: AddressSanitizer for C++, compute-sanitizer for a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

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


def compute_sanitizer() -> Instrumented | Refused:
    """NVIDIA's compute-sanitizer, for kernels of any language on a GPU."""
    path = _compute_sanitizer()
    if path is None:
        return Refused(
            f"{Tool.COMPUTE_SANITIZER} is not installed",
            "pip install nvidia-cuda-sanitizer-api, or install a CUDA toolkit",
        )
    # By default, torch gives tensors parts of large blocks, within which nothing is out of bounds.
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = (path, "--tool", "memcheck", "--print-limit", "20", "--error-exitcode", "0")
    return Instrumented(Tool.COMPUTE_SANITIZER, (), command, environment)


def _compute_sanitizer() -> str | None:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("compute-sanitizer")
    except Exception:  # an older cuda-pathfinder does not know the tool, or there is none
        found = None
    return found or shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
