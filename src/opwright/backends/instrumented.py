"""Tools that watch each access to memory of a kernel: AddressSanitizer for C++."""

from __future__ import annotations

import subprocess
from pathlib import Path

from opwright.machine import Machine
from opwright.results import Refused
from opwright.results.outcomes import Instrumented, Tool

__all__ = ["address_sanitizer"]

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
