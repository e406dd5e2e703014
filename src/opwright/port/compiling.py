"""Compiles a rewritten file, and reads the errors of the compiler."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.native.abi import INCLUDE, STABLE, TARGET_VERSION
from opwright.backends.native.host_function import TORCH
from opwright.machine import Machine
from opwright.results.port import Remaining

__all__ = ["Compilation", "compile_file"]

_ERROR = re.compile(
    r"(?m)^(?P<file>\S[^\n:(]*?)[:(](?P<line>\d+)(?::\d+|\))?\s*:\s*(?:fatal |catastrophic )?error:?\s*(?P<what>.*)$"
)
_TIME_LIMIT_S = 600


@dataclass(frozen=True)
class Compilation:
    """The result; ``not_tried`` says why there is none."""

    errors: tuple[Remaining, ...] = ()
    seconds: float = 0.0
    not_tried: str = ""


def compile_file(
    file: Path, machine: Machine, folders: Sequence[Path], options: Sequence[str] = (), own: Collection[str] = ()
) -> Compilation:
    """Compile a file on torch's stable ABI to an object, which is thrown away.

    Args:
        own: the names of the user's files: errors in others, which follow from theirs, are left out.
    """
    is_cuda = file.suffix == ".cu"
    compiler = machine.nvcc if is_cuda else machine.cxx
    if compiler is None:
        return Compilation(not_tried="there is no nvcc" if is_cuda else "there is no C++ compiler")
    of_language = ["-DUSE_CUDA", "--expt-relaxed-constexpr", "-O0"] if is_cuda else ["-fmax-errors=0", "-Wall"]
    if not is_cuda and "clang" in compiler.version.lower():
        of_language[0] = "-ferror-limit=0"
    includes = [f"-I{folder}" for folder in (file.parent, *folders, INCLUDE, TORCH / "include")]
    with tempfile.TemporaryDirectory() as made:
        command = [
            compiler.path, f"-std={STABLE.cpp_standard}", *of_language, f"-DTORCH_TARGET_VERSION={TARGET_VERSION}",
            *includes, *options, "-c", str(file), "-o", f"{made}/object.o",
        ]  # fmt: skip
        start = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            return Compilation(not_tried=f"the compiler did not end within {_TIME_LIMIT_S} s")
        seconds = time.perf_counter() - start
    if done.returncode == 0:
        return Compilation(seconds=seconds)
    found: dict[tuple[str, int], Remaining] = {}
    for error in _ERROR.finditer(done.stderr + done.stdout):
        name, line = Path(error["file"]).name, int(error["line"])
        found.setdefault((name, line), Remaining(name, line, f"does not compile: {error['what']}", in_result=True))
    if theirs := {key: one for key, one in found.items() if key[0] in own}:
        found = theirs
    last = (done.stderr + done.stdout).strip()[-500:]
    return Compilation(tuple(found.values()) or (Remaining(file.name, 0, f"does not compile: {last}", True),), seconds)
