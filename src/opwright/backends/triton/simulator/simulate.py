"""`ow.simulate()`: launches Triton kernels on CPU tensors, compiled for the CPU and with every access checked."""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import math
import random
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opwright import tree
from opwright.backends.triton.simulator.compilation import Compiled, compile_kernel
from opwright.backends.triton.simulator.frontend import Specialised, specialise
from opwright.backends.triton.simulator.memory import Memory, Region, element_count, is_descriptor
from opwright.contract.dtypes import short
from opwright.errors import LaunchError, SimulatorError
from opwright.internals.triton import launches_go_to

__all__ = ["TritonFinding", "compiling_only", "simulate", "with_left_out"]

_KINDS = {1: "out-of-bounds", 2: "uninitialised", 3: "misaligned", 4: "race", 5: "assertion"}
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


@dataclass(frozen=True)
class TritonFinding:
    """An error of a Triton kernel: what, where in its source, in which program and at which element of the block."""

    kind: str
    message: str
    file: str
    line: int
    source: str
    kernel: str
    program: tuple[int, int, int]
    element: int

    def __str__(self) -> str:
        place = f"in {self.kernel}, program {self.program}, element {self.element} of the block"
        return f"{Path(self.file).name}:{self.line}: {self.kind}: {self.message}\n    {self.source}\n    {place}"


@dataclass
class _Simulation:
    """The options of a block, and which elements of its uninitialised tensors have been written."""

    checked: bool
    seed: int | None
    given: Sequence[torch.Tensor] | None
    uninitialised: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def launch(self, function: Any, grid: Any, args: Sequence[Any], keywords: dict[str, Any]) -> bool:
        values = tree.leaves([*args, *keywords.values()])
        tensors = [value.base if is_descriptor(value) else value for value in values]
        if any(isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu" for tensor in tensors):
            return False
        specialised = specialise(function, args, keywords)
        size = _grid(function.__name__, grid, {**specialised.constants, **dict(specialised.run_time)})
        compiled = compile_kernel(function, specialised, checked=self.checked)
        if 0 not in size and not _only_compiles.get():
            self.run(compiled, size, specialised)
        return True

    def run(self, compiled: Compiled, grid: tuple[int, int, int], specialised: Specialised) -> None:
        """Run all programs.

        Raises:
            SimulatorError: with the findings.
        """
        memory = Memory()
        for name, value in specialised.run_time:
            types = compiled.parameters[len(memory.words) :]
            memory.add(name, value, types, self.given, self.uninitialised)
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
            address = None if order is None else order.data_ptr()
            compiled.run(ctypes.byref(request), arguments, address, math.prod(grid))
        if request.finding_count:
            found = findings[: request.finding_count]
            raise _error(compiled, [_described(compiled, raw, memory, grid) for raw in found])

    def order(self, grid: tuple[int, int, int]) -> torch.Tensor | None:
        if self.seed is None:
            return None
        numbers = list(range(grid[0] * grid[1] * grid[2]))
        random.Random(self.seed).shuffle(numbers)
        return torch.tensor(numbers, dtype=torch.int32)


_only_compiles: ContextVar[bool] = ContextVar("only_compiles", default=False)


@contextlib.contextmanager
def compiling_only() -> Iterator[None]:
    """A block in which simulated kernels are compiled where they are launched, and not run."""
    before = _only_compiles.set(True)
    try:
        yield
    finally:
        _only_compiles.reset(before)


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


@contextlib.contextmanager
def simulate(
    *,
    checked: bool = True,
    seed: int | None = None,
    uninitialised: Sequence[torch.Tensor] = (),
    given: Sequence[torch.Tensor] | None = None,
) -> Iterator[None]:
    """A block in which ``kernel[grid](...)`` runs Triton kernels on CPU tensors, compiled by g++ from Triton's own
    intermediate code. Autotuned kernels take their first configuration.

    Args:
        checked: check every access (the default); without it, kernels run faster.
        seed: run the programs in an order drawn with this seed.
        uninitialised: tensors without values, such as from ``torch.empty``: reading an element that no kernel of this
            block has written is a finding.
        given: the arguments of a launcher. Through a part of one that it passes on, the kernel may access all of it,
            and through a part of a tensor that the launcher allocated, all of that. By default, a kernel may access
            what is passed to it, from the first element of each tensor to its last.

    Raises, at a launch:
        SimulatorError: the kernel has errors; each finding names the source line.
        NotSimulatedError: it needs something that the simulator does not have, which is named.
    """
    fresh = [(tensor, torch.zeros(tensor.numel(), dtype=torch.uint8)) for tensor in uninitialised]
    with launches_go_to(_Simulation(checked, seed, given, fresh).launch):
        yield


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


def _error(compiled: Compiled, findings: list[TritonFinding]) -> SimulatorError:
    count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
    report = "\n".join(map(str, findings))
    return SimulatorError(f"{compiled.name} on the simulator: {count}\n{report}", findings=tuple(findings))


def _described(compiled: Compiled, raw: Any, memory: Memory, grid: tuple[int, int, int]) -> TritonFinding:
    site = compiled.sites[raw.site]
    kind, message = _KINDS[raw.kind], site.message
    if kind == "assertion" and "overflow detected" in message:
        kind = "integer-overflow"
    elif kind != "assertion":
        message = _access(raw, site.bytes, memory, grid, race=kind == "race")
    source = linecache.getline(site.file, site.line).strip()
    x, y, z = raw.program
    return TritonFinding(kind, message, site.file, site.line, source, compiled.name, (x, y, z), raw.element)


def _access(raw: Any, size: int, memory: Memory, grid: tuple[int, int, int], *, race: bool) -> str:
    verb = "writes" if raw.writes else "reads"
    if raw.region >= len(memory.regions):
        return f"{verb} {size} bytes at {hex(raw.offset)}, outside of all arguments"
    name, tensor = memory.tensors[raw.region]
    what = f"{name} ({short(tensor.dtype)} {list(tensor.shape)})"
    item = tensor.element_size()
    count = element_count(tensor)
    index = (memory.regions[raw.region].begin + raw.offset - tensor.data_ptr()) // item
    if not race:
        where = f"element {index}"
        if index >= count:
            where = f"{index - count} elements after the end" if index > count else "just past the end"
        elif index < 0:
            where = f"{-index} elements before the start"
        return f"{verb} {size} bytes at {where} of {what}"
    x, y, z = raw.program
    number = raw.other - 1
    if number == x + grid[0] * (y + grid[1] * z):
        if not raw.writes:
            return (
                f"reads element {index} of {what} in all threads of the program, of which one has stored it in a "
                "block; others may see what was there before, as no tl.debug_barrier() is between"
            )
        return (
            f"writes element {index} of {what}, where another element of the same block has another value; "
            "which of the two stays is undefined"
        )
    place = (number % grid[0], number // grid[0] % grid[1], number // grid[0] // grid[1])
    other = "several other programs read" if raw.other == _SEVERAL else f"program {place} reads or writes"
    return f"{verb} element {index} of {what}, which {other} without an atomic operation between"
