"""Messages from the findings that the simulator's runtime recorded: which memory, which line, which threads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelsim.arrays import Array
from kernelsim.cuda_sim.abi import RawFinding
from kernelsim.cuda_sim.compilation import SIMULATOR_HEADERS
from kernelsim.findings import CallSite, CudaFinding, OtherThread
from kernelsim.text.source import CudaSource

__all__ = ["KINDS", "MemoryRange", "describe"]

# The numbers of ``FindingKind`` in abi.h.
KINDS = {
    1: "out-of-bounds",
    2: "uninitialised",
    3: "misaligned",
    4: "race",
    5: "barrier",
    6: "warp-mask",
    7: "warp-lane",
    8: "time-limit",
    9: "assertion",
    10: "trap",
    11: "division-by-zero",
    12: "index-out-of-bounds",
    13: "stack-overflow",
    14: "launch-bounds",
    15: "cluster",
    16: "read-only",
}
_GLOBAL, _SHARED, _LOCAL = 1, 2, 3
_BARRIER = 5
_READ, _WRITE, _ATOMIC = 1, 2, 4

# A variable in shared memory: name, offset, size.
Shared = tuple[str, int, int]
Place = tuple[str, int]


@dataclass(frozen=True, eq=False)
class MemoryRange:
    """A range of memory that the kernel may access, and the tensors in it with their positions."""

    begin: int
    end: int
    granule: int
    tensors: tuple[tuple[int, Array], ...]
    written: bytearray | None = None
    inside: np.ndarray[Any, Any] | None = None
    read_only: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of the memory of an access.

    Attributes:
        tensors: those of the launch, each with what it is called.
        named: the only one that the line of the access names.
    """

    tensors: Sequence[tuple[str, Array]]
    named: tuple[str, Array] | None = None

    @classmethod
    def of(cls, ranges: Sequence[MemoryRange], parameters: Sequence[str], line: str) -> Known:
        """What is known from a line of the source, and the names of the kernel's parameters; empty if not known."""
        numbered = [tensor for each in ranges for tensor in each.tensors]
        named = [(_called(place, parameters), array) for place, array in numbered]
        words = set(re.findall(r"\w+", line)).intersection(parameters)
        pairs = zip(named, numbered, strict=True)
        found = [t for t, (place, _) in pairs if 0 <= place < len(parameters) and parameters[place] in words]
        is_sure = len(found) == 1 and all(place >= 0 for place, _ in numbered)  # others have no name in the line
        return cls(named, found[0] if is_sure else None)


def _called(position: int, parameters: Sequence[str]) -> str:
    if position < 0:
        return "a reachable tensor"
    return f"argument {parameters[position]!r}" if position < len(parameters) else f"argument number {position + 1}"


def describe(
    raw: Sequence[RawFinding],
    kernel: str,
    file: Path,
    source: CudaSource,
    known: Sequence[MemoryRange],
    shared: Sequence[Shared],
    parameters: Sequence[str] = (),
) -> tuple[CudaFinding, ...]:
    """The findings in the order in which they occurred, one of each kind per line or pair of lines.

    Args:
        parameters: the names of the kernel's; empty if they are not known.
    """
    frames = _symbolise(file, sorted({pc for f in raw for pc in (f.pc, f.other_pc) if pc}))
    places = {pc: of[0] for pc, of in frames.items()}
    callers = {pc: of[1:] for pc, of in frames.items()}
    texts = {source.name: source.text.splitlines()}
    if any(name not in texts for name, _ in places.values()):
        texts = {path.name: header.text.splitlines() for path, header in source.headers().items()} | texts

    def quoted(place: Place) -> str:
        text = texts.get(place[0], [])
        return text[place[1] - 1].strip() if 0 < place[1] <= len(text) else ""

    found: dict[tuple[str, frozenset[Place]], CudaFinding] = {}
    for one in raw:
        place = _place(one.file, one.line, one.pc, places)
        other = _other(one, places, quoted)
        finding = CudaFinding(
            kind=KINDS[one.kind],
            message=_SENTENCES[KINDS[one.kind]](one, Known.of(known, parameters, quoted(place)), shared),
            kernel=kernel,
            block=_triple(one.block),
            thread=_triple(one.thread),
            file=place[0],
            line=place[1],
            source_line=quoted(place),
            other=other,
            callers=tuple(CallSite(*caller, quoted(caller)) for caller in callers.get(one.pc, ()) if not one.file),
        )
        # A race between two lines may be found in either order, and is one finding.
        both = frozenset({place, (other.file, other.line)} if other is not None else {place})
        if one.kind == _BARRIER and one.text:  # a function that waits is called for several mbarriers
            both |= {(caller.file, caller.line) for caller in finding.callers}
        found.setdefault((finding.kind, both), finding)
    return tuple(found.values())


def _other(one: RawFinding, places: dict[int, Place], quoted: Callable[[Place], str]) -> OtherThread | None:
    kind = KINDS[one.kind]
    if kind != "race" and not one.other_line and not (kind == "barrier" and one.mask):
        return None
    place = _place(one.other_file, one.other_line, one.other_pc, places)
    return OtherThread(_triple(one.other_block), _triple(one.other_thread), *place, quoted(place))


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    return int(values[0]), int(values[1]), int(values[2])


# --- source locations ---


def _place(file: bytes | None, line: int, pc: int, places: dict[int, Place]) -> Place:
    if file:
        return os.path.normpath(file.decode()), int(line)
    return places.get(pc, ("", 0))


def _symbolise(file: Path, pcs: Sequence[int]) -> dict[int, list[Place]]:
    """The places in the user's code for each address, from the innermost inlined function to the kernel."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line") or shutil.which("llvm-symbolizer")
    if not pcs or tool is None:
        return {}
    # A recorded address is a return address, which may belong to the next line.
    command = [tool, "-a", "-i", "-e", str(file), *(hex(pc - 1) for pc in pcs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    places: dict[int, list[Place]] = {}
    current = 0
    for line in done.stdout.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", line.strip()):
            current = int(line, 16) + 1
            continue
        match = re.match(r"(.*?):(\d+)", line.strip())
        if match is None:
            continue
        name = os.path.normpath(match[1])
        if SIMULATOR_HEADERS not in name and not name.startswith(("/usr/", "?", "<kernel>")) and int(match[2]):
            places.setdefault(current, []).append((name, int(match[2])))
    return places


# --- messages ---


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


def _verb(access: int) -> str:
    if access & _ATOMIC:
        return "atomically updates"
    return "writes" if access & _WRITE else "reads"


def _noun(access: int) -> str:
    if access & _ATOMIC:
        return "atomic update"
    return "write" if access & _WRITE else "read"


def _memory(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    """The variable or tensor of an access, or the nearest one."""
    if one.space == _SHARED:
        whose = f" of block {_triple(one.owner)}" if one.has_owner else ""
        return _in_shared(int(one.address), int(one.size), shared) + whose
    return _in_tensors(int(one.address), int(one.size), known)


def _in_shared(at: int, size: int, shared: Sequence[Shared]) -> str:
    before = [s for s in shared if s[1] <= at]
    if not before:
        return "shared memory, before its first variable"
    name, begin, length = max(before, key=lambda s: s[1])
    what = name if name == "dynamic shared memory" else f"shared variable {name!r}"
    return _relative(at - begin, size, length, f"{what} ({_bytes(length)})")


def _in_tensors(at: int, size: int, known: Known) -> str:
    if at < 4096:
        return f"address {at:#x}, a null pointer"
    if not known.tensors:
        return f"address {at:#x}, which is in no argument"
    name, array = min(known.tensors, key=lambda t: max(t[1].begin - at, at - t[1].end + 1, 0))
    if known.named is not None and not array.begin <= at < array.end:
        name, array = known.named
    begin, end = array.begin, array.end
    if begin - at > 2**20 or at - end > 2**20:
        return f"address {at:#x}, which is near no argument"
    return _relative(at - begin, size, end - begin, f"{name} ({array.dtype} {list(array.shape)})")


def _relative(offset: int, size: int, length: int, what: str) -> str:
    if offset < 0:
        return f"{_bytes(-offset)} before {what}"
    if offset >= length:
        return (
            f"{_bytes(offset - length)} past the end of {what}" if offset > length else f"just past the end of {what}"
        )
    if offset + size > length:
        return f"byte {offset} of {what}, across its end"
    return f"byte {offset} of {what}"


def _out_of_bounds(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    where = _memory(one, known, shared)
    gap = ", between the elements of the view" if where.startswith("byte ") and "across" not in where else ""
    return f"{_verb(one.access)} {_bytes(one.size)}{_placed(where)}{gap}"


def _placed(where: str) -> str:
    """A place as it continues "reads 4 bytes": `` at byte 4 of x``, `` just past the end of x``."""
    if where.startswith("just past"):
        return f" {where}"
    return f", {where}" if re.match(r"\d+ bytes? (?:past|before) ", where) else f" at {where}"


def _read_only(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    return f"{_verb(one.access)} {_bytes(one.size)} at {_memory(one, known, shared)}, which is read-only"


def _uninitialised(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    if one.text:  # an accumulator
        return str(one.text.decode())
    where = _memory(one, known, shared)
    missing = (
        "which was never written",
        "of which only some bytes were written",
        "which an asynchronous copy fills that no thread has waited for",
    )[one.value]
    return f"{_verb(one.access)} {_bytes(one.size)} at {where}, {missing}"


def _misaligned(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    what = one.text.decode(errors="replace") or "an access"
    if what.endswith(" size"):
        return f"{what} is {one.address} bytes, which is not a multiple of {one.value}"
    return f"{what} through address {one.address:#x}, which is not a multiple of {one.value}"


def _race(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    between = (
        "blocks are not ordered" if list(one.block) != list(one.other_block) else "there is no barrier between them"
    )
    if one.space == _LOCAL:  # an accumulator
        return str(one.text.decode())
    between = one.text.decode() or between
    first, second = _noun(one.access), _noun(one.other_access)
    article = "an" if second[0] == "a" else "a"
    return f"{first} of {_bytes(one.size)} at {_memory(one, known, shared)} races with {article} {second}; {between}"


def _barrier(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    if one.text and one.space != _SHARED:
        return str(one.text.decode())
    if one.text:  # an mbarrier
        return f"the mbarrier at {_memory(one, known, shared)} {one.text.decode(errors='replace')}"
    if one.other_line:
        return f"{one.mask} threads of the block wait at barriers on different lines"
    threads = "1 thread" if one.mask == 1 else f"{one.mask} threads"
    return f"{threads} of the block reached the end of the kernel without reaching this barrier"


def _cluster(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    if one.space != _SHARED:
        return str(one.text.decode())
    return f"{_verb(one.access)} {_bytes(one.size)} at {_memory(one, known, shared)}, which {one.text.decode()}"


def _warp_mask(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    if one.value == -1:
        return f"the mask {one.mask:#010x} does not include the calling lane"
    return f"the mask {one.mask:#010x} includes lanes that do not take part: {_lanes(one.missing)}"


def _warp_lane(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    return (
        f"reads from lane {one.value}, which does not take part: the value is undefined (so for {_lanes(one.missing)})"
    )


def _lanes(mask: int) -> str:
    """``lanes 0-3, 7``."""
    runs: list[list[int]] = []
    for lane in (i for i in range(32) if mask >> i & 1):
        if runs and runs[-1][1] == lane - 1:
            runs[-1][1] = lane
        else:
            runs.append([lane, lane])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"lane {shown}" if mask and not mask & (mask - 1) else f"lanes {shown}"


def _index(one: RawFinding, known: Known, shared: Sequence[Shared]) -> str:
    return f"index {one.value} of an array of type {one.text.decode(errors='replace')}"


_SENTENCES: dict[str, Callable[[RawFinding, Known, Sequence[Shared]], str]] = {
    "out-of-bounds": _out_of_bounds,
    "read-only": _read_only,
    "uninitialised": _uninitialised,
    "misaligned": _misaligned,
    "race": _race,
    "barrier": _barrier,
    "cluster": _cluster,
    "warp-mask": _warp_mask,
    "warp-lane": _warp_lane,
    "time-limit": lambda *_: "still running at its time limit",
    "assertion": lambda one, *_: f"assertion failed: {one.text.decode(errors='replace')}",
    "trap": lambda one, *_: one.text.decode(errors="replace") or "__trap() was called",
    "division-by-zero": lambda *_: "integer division by zero, or of the smallest integer by -1",
    "index-out-of-bounds": _index,
    "stack-overflow": lambda one, *_: (
        f"the thread's stack of {one.value // 1024} KiB is full: recursion without an end?"
    ),
    "launch-bounds": lambda one, *_: (
        f"the block has more threads than __launch_bounds__ allows ({one.value}): a GPU refuses the launch"
    ),
}
