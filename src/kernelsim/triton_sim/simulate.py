"""Launches Triton kernels on CPU tensors, compiled for the CPU and with every access checked."""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import math
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelsim.arrays import CPU, array_of, device_of
from kernelsim.errors import LaunchError
from kernelsim.findings import TritonFinding, error_of
from kernelsim.host import Host
from kernelsim.triton_sim.compilation import Compiled, compile_kernel
from kernelsim.triton_sim.frontend import Specialised, specialise
from kernelsim.triton_sim.memory import Memory, Region, Unwritten, is_descriptor

__all__ = ["Simulation", "with_left_out"]

_OVERFLOW = "integer-overflow"  # an assertion of Triton's own
_KINDS = {1: "out-of-bounds", 2: "uninitialised", 3: "misaligned", 4: "race", 5: "assertion", 6: "read-only"}
_MOST_FINDINGS = 64
_SEVERAL = 2**32 - 1
_MOST_PROGRAMS = (2**31 - 1, 2**16 - 1, 2**16 - 1)  # as CUDA has it, in each axis
_SMALLER_AXIS = (
    "let each program do more: larger blocks, or a loop over several",
    "let the longest dimension be axis 0, which may have 2147483647; or let each program do more",
)
# A launch takes all cores, and a compiled kernel knows one request at a time.
_one_launch = threading.Lock()


class _Finding(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("kind", "site", "region", "writes")),
        *(("program", ctypes.c_uint32 * 3), ("other", ctypes.c_uint32)),
        *(("element", ctypes.c_int64), ("offset", ctypes.c_int64)),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        *(("regions", ctypes.POINTER(Region)), ("region_count", ctypes.c_uint64)),
        *(("findings", ctypes.POINTER(_Finding)), ("finding_count", ctypes.c_uint64)),
        *(("finding_limit", ctypes.c_uint64), ("grid", ctypes.c_uint32 * 3)),
        *(("sources", ctypes.POINTER(ctypes.c_int32)), ("left_out", ctypes.c_uint8), ("one_warp", ctypes.c_uint8)),
    )


def _leaves(value: Any) -> Iterator[Any]:
    """What is in nested lists, tuples and dictionaries."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves([*value.values()])
    else:
        yield value


@dataclass
class Simulation:
    """The options of a block, and which elements of its uninitialised tensors have been written."""

    checked: bool
    seed: int | None
    given: Sequence[Any] | None
    host: Host
    uninitialised: list[Unwritten] = field(default_factory=list)
    read_only: Sequence[Any] = ()

    def launch(self, function: Any, grid: Any, args: Sequence[Any], keywords: dict[str, Any]) -> bool:
        with self.host.calling():
            return self.launched(function, grid, args, keywords)

    def launched(self, function: Any, grid: Any, args: Sequence[Any], keywords: dict[str, Any]) -> bool:
        """Launch a kernel; False if one of its tensors is on another device."""
        values = _leaves([*args, *keywords.values()])
        devices = (device_of(value.base if is_descriptor(value) else value) for value in values)
        if any(device not in (None, CPU) for device in devices):
            return False
        specialised = specialise(function, args, keywords)
        size = _grid(function.__name__, grid, {**specialised.constants, **dict(specialised.run_time)})
        compiled = compile_kernel(function, specialised, self.host, checked=self.checked)
        if 0 not in size:
            self.run(compiled, size, specialised)
        return True

    def run(self, compiled: Compiled, grid: tuple[int, int, int], specialised: Specialised) -> None:
        """Run all programs.

        Raises:
            FindingError: with the findings.
        """
        kept = [array for t in self.read_only if self.checked and (array := array_of(t)) is not None]
        memory = Memory(self.given, self.uninitialised, kept)
        for name, value in specialised.run_time:
            types = compiled.parameters[len(memory.words) :]
            memory.add(name, value, types)
        memory.record(compiled.stored, checked=self.checked)
        arguments = (ctypes.c_void_p * max(1, len(memory.words)))(*(ctypes.addressof(word) for word in memory.words))
        findings = (_Finding * _MOST_FINDINGS)()
        regions = (Region * max(1, len(memory.regions)))(*memory.regions)
        sources = (ctypes.c_int32 * max(1, len(memory.sources)))(*memory.sources)
        size = (ctypes.c_uint32 * 3)(*grid)
        one_warp = specialised.options.get("num_warps") == 1
        request = _Request(
            regions, len(memory.regions), findings, 0, _MOST_FINDINGS, size, sources, _left_out.get(), one_warp
        )
        order = self.order(grid)
        with _one_launch:
            address = None if order is None else order.ctypes.data
            compiled.run(ctypes.byref(request), arguments, address, math.prod(grid), self.host.cores())
        if request.finding_count:
            found = findings[: request.finding_count]
            raise error_of(compiled.name, [_described(compiled, raw, memory, grid) for raw in found])

    def order(self, grid: tuple[int, int, int]) -> np.ndarray[Any, Any] | None:
        if self.seed is None:
            return None
        return np.random.default_rng(self.seed).permutation(np.arange(math.prod(grid), dtype=np.int32))


_left_out: ContextVar[int] = ContextVar("left_out", default=0)


@contextlib.contextmanager
def with_left_out(byte: int) -> Iterator[None]:
    """A block in which elements that a mask leaves out of a load without ``other=`` consist of such bytes, in checked
    kernels. Triton leaves them open; on a GPU they mostly are zeros, as they are here by default."""
    before = _left_out.set(byte)
    try:
        yield
    finally:
        _left_out.reset(before)


def _grid(kernel: str, grid: Any, values: dict[str, Any]) -> tuple[int, int, int]:
    asked = grid(values) if callable(grid) else grid
    sizes = [int(n) for n in (asked if isinstance(asked, (tuple, list)) else (asked,))]
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise LaunchError(f"{kernel}: the grid is {tuple(sizes)}", fix="pass one to three numbers, none negative")
    for axis, (size, most) in enumerate(zip(sizes, _MOST_PROGRAMS, strict=False)):
        if size > most:
            raise LaunchError(
                f"{kernel}: the grid {tuple(sizes)} has {size} programs in axis {axis}; CUDA refuses more than {most}",
                fix=_SMALLER_AXIS[axis > 0],
            )
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _described(compiled: Compiled, raw: Any, memory: Memory, grid: tuple[int, int, int]) -> TritonFinding:
    site = compiled.sites[raw.site]
    kind, message = _KINDS[raw.kind], site.message
    if kind == "assertion" and "overflow detected" in message:
        kind = _OVERFLOW
    elif kind != "assertion":
        message = _access(raw, site.bytes, memory, grid, kind)
    source = linecache.getline(site.file, site.line).strip()
    x, y, z = raw.program
    return TritonFinding(
        kind, message, compiled.name, site.file, site.line, source, program=(x, y, z), element=raw.element
    )


def _access(raw: Any, size: int, memory: Memory, grid: tuple[int, int, int], kind: str) -> str:
    verb = "writes" if raw.writes else "reads"
    if raw.region >= len(memory.regions):
        return f"{verb} {size} bytes at {hex(raw.offset)}, outside of all arguments"
    name, array = memory.tensors[raw.region]
    what = f"{name} ({array.dtype} {list(array.shape)})"
    count = array.span
    index = (memory.regions[raw.region].begin + raw.offset - array.begin) // array.itemsize
    if kind == "read-only":
        return f"writes element {index} of {what}, which is read-only"
    if kind != "race":
        where = f" at element {index}"
        if index >= count:
            where = f", {index - count} elements after the end" if index > count else " just past the end"
        elif index < 0:
            where = f", {-index} elements before the start"
        return f"{verb} {size} bytes{where} of {what}"
    x, y, z = raw.program
    number = raw.other - 1
    if number == x + grid[0] * (y + grid[1] * z):
        if not raw.writes:
            return (
                f"reads element {index} of {what}, which another thread of the program has stored; it may see what was "
                "there before, as no tl.debug_barrier() is between"
            )
        return (
            f"writes element {index} of {what}, where another element of the same block has another value; "
            "which of the two stays is undefined"
        )
    place = (number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1])
    other = "several other programs read" if raw.other == _SEVERAL else f"program {place} reads or writes"
    return f"{verb} element {index} of {what}, which {other} without an atomic operation between"
