"""What the simulators find, as records: kind, message, and place in the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelsim.errors import FindingError

__all__ = ["CallSite", "CudaFinding", "Finding", "OtherThread", "TritonFinding", "error_of"]

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Finding:
    """One error of a kernel, with its place in the source.

    Attributes:
        kind: such as "out-of-bounds", "race" or "barrier"; docs/kernelsim.md lists them.
        message: a description of the error.
        kernel: the kernel's name.
        file: the source's name; empty if it is not known.
        line: the line in it; 0 if it is not known.
        source_line: the text of that line.
    """

    kind: str
    message: str
    kernel: str
    file: str = ""
    line: int = 0
    source_line: str = ""


@dataclass(frozen=True, kw_only=True)
class CudaFinding(Finding):
    """One error of a CUDA kernel.

    Attributes:
        block: ``blockIdx`` of the thread.
        thread: ``threadIdx`` of the thread.
        other: for an error of two threads, the other thread: its block, thread, file, line and source line.
        callers: the calls that led to the line, from the innermost to the kernel's own; empty if it is in the kernel.
    """

    block: Triple
    thread: Triple
    other: OtherThread | None = None
    callers: tuple[CallSite, ...] = ()

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file or "unknown place"
        lines = [f"{where}: {self.kind}: {self.message}"]
        lines += [f"    {self.source_line}"] if self.source_line else []
        for caller in self.callers:
            lines.append(f"    called at {caller.file}:{caller.line}: {caller.source_line}".rstrip(": "))
        lines.append(f"    in {self.kernel}, block {self.block}, thread {self.thread}")
        if self.other is not None:
            place = f" at {self.other.file}:{self.other.line}" if self.other.line else ""
            lines.append(f"    and block {self.other.block}, thread {self.other.thread}{place}")
            lines += [f"    {self.other.source_line}"] if self.other.source_line else []
        return "\n".join(lines)


@dataclass(frozen=True)
class CallSite:
    """Where a function was called on the way to a finding."""

    file: str
    line: int
    source_line: str = ""


@dataclass(frozen=True)
class OtherThread:
    """The second thread of a finding."""

    block: Triple
    thread: Triple
    file: str = ""
    line: int = 0
    source_line: str = ""


@dataclass(frozen=True, kw_only=True)
class TritonFinding(Finding):
    """One error of a Triton kernel.

    Attributes:
        program: the program, as ``tl.program_id`` numbers it.
        element: the element of the block.
    """

    program: Triple
    element: int

    def __str__(self) -> str:
        place = f"in {self.kernel}, program {self.program}, element {self.element} of the block"
        where = f"{Path(self.file).name}:{self.line}"
        return f"{where}: {self.kind}: {self.message}\n    {self.source_line}\n    {place}"


def error_of(kernel: str, findings: Sequence[Finding]) -> FindingError:
    """The error for the findings of a launch."""
    count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
    report = "\n".join(map(str, findings))
    return FindingError(f"{kernel} on the simulator: {count}\n{report}", findings=findings)
