"""What is refused before a kernel is compiled, and on which machines: messages, and whether the preprocessor leaves a
line out.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kernelsim.cuda_sim.rewriting import Refusal
from kernelsim.errors import RefusedError
from kernelsim.host import Compiler

__all__ = ["Lacking", "active_lines", "is_active", "lacking", "refused"]


class Lacking(NamedTuple):
    """Why kernels cannot be simulated on a machine, and a remedy."""

    reason: str
    remedy: str


def lacking(compiler: Compiler | None, system: str) -> Lacking | None:
    """What a machine lacks for the simulation of CUDA kernels; None if nothing."""
    if compiler is None:
        return Lacking("there is no C++ compiler", "install g++ (apt install g++), or set CXX")
    if "clang" in compiler.version:
        # Tried with clang 14, which hangs in checked builds, and clang 22, which misses misaligned accesses.
        return Lacking("the simulator needs g++; clang's instrumentation is not what it expects", "set CXX=g++")
    if not system.startswith("Linux"):
        return Lacking("the simulator reads ELF files, which only Linux has", "use Linux, or a container of it")
    return None


def active_lines(preprocessed: str) -> dict[tuple[str, int], str]:
    """The preprocessed text of each line of each file."""
    lines: dict[tuple[str, int], str] = {}
    file, number = "", 0
    for line in preprocessed.splitlines():
        marker = re.match(r'# (\d+) "([^"]*)"', line)
        if marker:
            number, file = int(marker[1]), marker[2].removeprefix("./")
            continue
        lines[file, number] = lines.get((file, number), "") + line
        number += 1
    return lines


def is_active(refusal: Refusal, line: str) -> bool:
    """Whether what is refused is still in a line after the preprocessor."""
    if refusal.what.startswith("#include"):
        return "KERNELSIM_INCLUDE_" in line
    return refusal.what.split()[0] in line


def refused(name: str, text: str, refusal: Refusal) -> RefusedError:
    """The error for a feature of a file that cannot be simulated."""
    line = text.splitlines()[refusal.line - 1].strip()
    return RefusedError(
        f"{name}:{refusal.line}: {refusal.what}: {refusal.why}\n    {line}",
        fix="check this kernel on a GPU, or give the simulator another way with #ifdef __KERNELSIM__",
    )
