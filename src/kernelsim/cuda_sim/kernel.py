"""Loads a CUDA kernel that was compiled for the CPU, launches it, and reports its errors."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsim.arguments import KernelStruct, Packer, Parameter, ParameterKind, typed_parameter
from kernelsim.arrays import array_of
from kernelsim.cuda_sim.abi import (
    ABI_VERSION,
    CodeRange,
    GiveStack,
    RawParameter,
    Region,
    Request,
    SharedVariable,
    Symbol,
    TakeStack,
    read_imports,
    read_symbols,
)
from kernelsim.cuda_sim.compilation import Built
from kernelsim.cuda_sim.findings import MemoryRange, describe
from kernelsim.cuda_sim.memory import Unwritten, address_of, known_memory, without_overlap
from kernelsim.errors import KernelError, LaunchError
from kernelsim.findings import error_of
from kernelsim.host import Host
from kernelsim.launching import check_launch, refuse_other_cluster

__all__ = ["SimulatedKernel", "SimulatedVariable"]

Dim3 = tuple[int, int, int]

_DEFAULT_SHARED_BYTES = 48 * 1024
_MOST_SHARED_BYTES = 227 * 1024
# The blocks of a cooperative launch, whose threads the runtime tells apart by 16 bits (runtime/vector_clock.h), and the
# stacks for them (runtime/abi.h).
_MOST_BLOCKS_TOGETHER, _MOST_THREADS_TOGETHER = 56, 16 * 1024
_GRID_BARRIER = "grid_arrive"
_READ_ONLY, _SHARED, _GUARD = 0, 1, 2  # ``StorageKind`` of abi.h
_DYNAMIC = "kernelsim_dynamic_shared"
_RUNTIME_VARIABLES = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim", "kernelsim_cluster"})
# The runtime's numbers of the kinds of parameters (include/kernelsim/entry.h).
_KINDS: tuple[ParameterKind, ...] = (
    "pointer", "integer", "unsigned", "floating", "floating", "floating", "struct",
)  # fmt: skip
_PRINTING = frozenset({"printf", "puts", "putchar", "vprintf", "__printf_chk", "__vprintf_chk"})
_CPU = -1  # the number of the device


@dataclass(frozen=True)
class SimulatedVariable:
    """A variable of a kernel: its symbol, the last identifier of its name, and its memory."""

    symbol: str
    name: str
    memory: ctypes.Array[ctypes.c_char]


class SimulatedKernel:
    """One compiled kernel, ready to be launched on CPU tensors.

    Attributes:
        name: the expression of the kernel.
        parameters: its parameters.
        checked: whether its memory accesses are checked.
    """

    def __init__(self, built: Built, host: Host) -> None:
        self.name = name = built.name
        self.checked = built.checked
        self._file, self._built, self._host = built.file, built, host
        self._library = ctypes.CDLL(str(built.file))
        if self._library.kernelsim_abi_version() != ABI_VERSION:
            raise KernelError(f"{built.file} was built by another version of the simulator", fix="clear the cache")
        self._take_stack, self._give_stack = _stack_pool(built.stacks)
        self.parameters = _parameters(self._library)
        self._packer = Packer(name, self.parameters)
        self._declared_cluster: Dim3 | None = None  # its __cluster_dims__, once a launch has met them

    def launch(
        self,
        grid: Dim3,
        block: Dim3,
        smem_bytes: int,
        arguments: Sequence[Any],
        *,
        cluster: Dim3 | None = None,
        seed: int | None = None,
        time_limit_s: float | None = None,
        uninitialised: Sequence[Any | Unwritten] = (),
        reachable: Sequence[Any] = (),
        read_only: Sequence[Any] = (),
    ) -> None:
        """Run the kernel to its end.

        ``cluster`` is that of the launch; None takes the kernel's ``__cluster_dims__``. ``seed`` permutes the order of
        blocks and of a block's threads; None keeps their order. ``uninitialised`` are tensors among the arguments that
        have no values yet; ``reachable``, those whose addresses are in structures; ``read_only``, those that it must
        not write.

        Raises:
            FindingError: with ``findings``. What the kernel wrote before is in the tensors.
            LaunchError: an argument that the kernel's parameter cannot take, or a launch beyond CUDA's limits.
        """
        blocks = cluster or self._declared_cluster or (1, 1, 1)
        check_launch(self.name, grid, block, smem_bytes, blocks)
        if self._is_cooperative:
            _check_cooperative(self.name, grid, block, blocks)
            blocks = grid
        _check_shared(self.name, smem_bytes, self._static_shared_bytes)
        holders = [_held(word) for word in self._packer.pack(arguments, _CPU)]
        if 0 in grid:
            return
        passed = [(i, t) for i, a in enumerate(arguments) for t in _within(a)]
        passed += [*self._packer.pointers.items(), *((-1, tensor) for tensor in reachable)]
        arrays = [(i, array) for i, t in passed if self.checked and (array := array_of(t)) is not None]
        known = known_memory(arrays, uninitialised, read_only) if self.checked else ()
        request = Request(
            grid=grid,
            block=block,
            cluster=blocks,
            dynamic_shared=smem_bytes,
            workers=self._host.cores(),
            checked=self.checked,
            permuted=seed is not None,
            cooperative=self._is_cooperative,
            repeatable=not self._prints,
            seed=(seed or 0) % 2**64,
            time_limit_s=time_limit_s or 0.0,
            take_stack=self._take_stack,
            give_stack=self._give_stack,
            thread_slot=_thread_slot(self._built.slot) if self.checked and not self._prints else 0,
        )
        addresses = (ctypes.c_void_p * max(1, len(holders)))(*(ctypes.addressof(h) for h in holders))
        request.arguments = ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p))
        keep = self._describe_memory(request, known, smem_bytes)
        if time_limit_s:
            request.code, request.code_count = self._code, len(self._code)
        self._library.kernelsim_launch(ctypes.byref(request))  # ctypes releases the GIL
        del keep
        if request.out_of_memory:
            threads = block[0] * block[1] * block[2]
            raise LaunchError(
                f"{self.name} on the simulator: not enough memory for blocks of {threads} threads",
                fix="launch smaller blocks, or raise the process's limit of memory (ulimit -v) or of mappings",
            )
        x, y, z = (int(n) for n in request.declared_cluster)
        if x:  # nothing ran
            if self._is_cooperative:
                raise _both_barriers(self.name)
            if cluster is not None:
                refuse_other_cluster(self.name, cluster, (x, y, z))
            self._declared_cluster = x, y, z
            self.launch(
                grid, block, smem_bytes, arguments,
                seed=seed, time_limit_s=time_limit_s, uninitialised=uninitialised, reachable=reachable,
                read_only=read_only,
            )  # fmt: skip
            return
        if request.finding_count:
            self._raise(request, known, smem_bytes)

    @functools.cached_property
    def variables(self) -> tuple[SimulatedVariable, ...]:
        """Its ``__device__`` and ``__constant__`` variables that are not const."""
        return tuple(
            SimulatedVariable(s.name, _plain_name(s.name), (ctypes.c_char * s.size).from_address(self._base + s.place))
            for s in self._symbols
            if s.kind == "variable" and s.writable and "kernelsim" not in s.name and not _belongs_to_runtime(s.name)
        )

    @functools.cached_property
    def _symbols(self) -> tuple[Symbol, ...]:
        return read_symbols(self._file)

    @functools.cached_property
    def _is_cooperative(self) -> bool:
        """Whether it has a barrier of the grid: the linker keeps the runtime's only where the kernel calls it."""
        return any(s.kind == "function" and _GRID_BARRIER in s.name for s in self._symbols)

    @functools.cached_property
    def _prints(self) -> bool:
        """Whether its blocks have an order that can be seen: that of their lines."""
        return not _PRINTING.isdisjoint(read_imports(self._file))

    @functools.cached_property
    def _base(self) -> int:
        """The load address of the shared object: the address of a function minus its offset in the file."""
        module_base = ctypes.cast(self._library.kernelsim_module_base, ctypes.CFUNCTYPE(ctypes.c_uint64))
        return int(module_base())

    @functools.cached_property
    def _code(self) -> ctypes.Array[CodeRange]:
        """The functions of the source; if the kernel is inlined, its caller."""
        own = [
            CodeRange(s.place, s.size)
            for s in self._symbols
            if s.kind == "function"
            and not _belongs_to_runtime(s.name)
            and not re.match(r"_ZN?K?St|_ZN9__gnu_cxx", s.name)
        ]
        return (CodeRange * len(own))(*own)

    @functools.cached_property
    def _static_shared_bytes(self) -> int:
        return sum(s.size for s in self._symbols if _is_shared(s) and s.name != _DYNAMIC)

    def _describe_memory(self, request: Request, known: Sequence[MemoryRange], smem_bytes: int) -> tuple[object, ...]:
        """Describe the memory of a launch to the runtime. The returned objects must outlive the launch."""
        request.thread_index_offset = self._thread_index_offset
        shared = []
        for symbol, kind in self._thread_storage:
            size = smem_bytes if symbol.name == _DYNAMIC else symbol.size
            if size:
                shared.append(SharedVariable(symbol.place, size, kind, 0))
        shared_array = (SharedVariable * max(1, len(shared)))(*shared)
        request.shared, request.shared_count = shared_array, len(shared)
        if not self.checked:
            return (shared_array,)
        regions = [
            Region(k.begin, k.end, 0, k.granule, *map(address_of, (k.written, k.inside, k.read_only))) for k in known
        ]
        for symbol in self._symbols:
            if symbol.kind == "variable" and not _belongs_to_runtime(symbol.name):
                begin = self._base + symbol.place
                regions.append(Region(begin, begin + symbol.size, 1, min(4, symbol.size), None, None, None))
        # Symbols may share memory (aliases); the runtime needs regions that do not overlap.
        regions = without_overlap(sorted(regions, key=lambda region: int(region.begin)))
        region_array = (Region * max(1, len(regions)))(*regions)
        request.regions, request.region_count = region_array, len(regions)
        return region_array, shared_array

    @functools.cached_property
    def _thread_storage(self) -> tuple[tuple[Symbol, int], ...]:
        """The variables in thread-local storage, each with its ``StorageKind`` of abi.h."""
        return tuple((s, _storage_kind(s)) for s in self._symbols if s.kind == "thread_local" and not _is_private(s))

    @functools.cached_property
    def _thread_index_offset(self) -> int:
        return next(s.place for s in self._symbols if s.name == "threadIdx")

    def _raise(self, request: Request, known: Sequence[MemoryRange], smem_bytes: int) -> None:
        shared = tuple(
            (_plain_name(s.name), s.place, smem_bytes if s.name == _DYNAMIC else s.size)
            for s in self._symbols
            if _is_shared(s)
        )
        raw = list(request.findings[: request.finding_count])
        source = self._built.source
        names = source.defining(self.name).parameter_names(self.name, len(self.parameters))
        findings = describe(raw, self.name, self._file, source, known, shared, names)
        raise error_of(self.name, findings)


@functools.cache
def _stack_pool(library: Path) -> tuple[Any, Any]:
    """The functions that take and give back a thread's stack, from the one library for all kernels."""
    pool = ctypes.CDLL(str(library))
    take, give = pool.kernelsim_take_stack, pool.kernelsim_give_stack
    return ctypes.cast(take, TakeStack), ctypes.cast(give, GiveStack)


@functools.cache
def _thread_slot(library: Path) -> int:
    """The place of the pointer that each OS thread has for the simulator; 0 if the loader has no room for it."""
    try:
        slot = ctypes.CDLL(str(library)).kernelsim_thread_slot
    except OSError:
        return 0
    slot.restype = ctypes.c_int64
    return int(slot())


# --- parameters and arguments ---


def _parameters(library: ctypes.CDLL) -> tuple[Parameter, ...]:
    describe_parameters = library.kernelsim_parameters
    describe_parameters.restype = ctypes.POINTER(RawParameter)
    count = ctypes.c_uint32()
    raw = describe_parameters(ctypes.byref(count))
    return tuple(
        typed_parameter(_type_in(raw[i].type_name.decode()), raw[i].size, _KINDS[raw[i].kind])
        for i in range(count.value)
    )


def _type_in(function: str) -> str:
    """``... [with T = const float*]`` or ``... [T = const float *]``: the type."""
    found = re.search(r"\[(?:with )?T = (.+?)(?:;.*)?\]$", function)
    return found[1] if found else function


def _within(argument: Any) -> Sequence[Any]:
    """The tensors that an argument is made of, and what else."""
    if isinstance(argument, KernelStruct):
        return [argument.tensor]
    return argument if isinstance(argument, list | tuple) else [argument]


_STRUCT_ALIGNMENT = 128  # of a tensor map, the most that CUDA's own types need


def _held(word: Any) -> Any:
    """A 64-bit value, or the bytes of a struct, in its own memory: smaller parameters read the low bytes."""
    if not isinstance(word, bytes):
        return ctypes.c_int64(word)
    room = ctypes.create_string_buffer(len(word) + _STRUCT_ALIGNMENT)
    held = (ctypes.c_char * len(word)).from_buffer(room, -ctypes.addressof(room) % _STRUCT_ALIGNMENT)
    ctypes.memmove(held, word, len(word))
    return held


def _check_shared(kernel: str, smem_bytes: int, static_bytes: int) -> None:
    if static_bytes > _DEFAULT_SHARED_BYTES:
        raise LaunchError(
            f"{kernel}: {static_bytes} bytes of __shared__ variables; CUDA allows {_DEFAULT_SHARED_BYTES}",
            fix="declare them extern __shared__, and pass the size at the launch",
        )
    if static_bytes + smem_bytes > _MOST_SHARED_BYTES:
        raise LaunchError(
            f"{kernel}: the bytes of shared memory must be at most {_MOST_SHARED_BYTES}, got {static_bytes} static and "
            f"{smem_bytes} dynamic ones",
            fix="use a smaller tile",
        )


def _check_cooperative(kernel: str, grid: Dim3, block: Dim3, cluster: Dim3) -> None:
    if cluster != (1, 1, 1):
        raise _both_barriers(kernel)
    blocks, threads = math.prod(grid), math.prod(block)
    if blocks > _MOST_BLOCKS_TOGETHER or blocks * threads > _MOST_THREADS_TOGETHER:
        raise LaunchError(
            f"{kernel} waits for its whole grid (grid.sync()), and {blocks} blocks of {threads} threads do not fit",
            fix=f"the simulator runs at most {_MOST_BLOCKS_TOGETHER} blocks and {_MOST_THREADS_TOGETHER:,} threads at "
            "once; launch fewer blocks, and let each thread step over the data by the size of the grid",
        )


def _both_barriers(kernel: str) -> LaunchError:
    return LaunchError(
        f"{kernel} waits for its whole grid (grid.sync()) and has clusters; the simulator has one or the other",
        fix="launch it without clusters, or check it on a GPU",
    )


# --- variables ---


def _is_shared(symbol: Symbol) -> bool:
    return symbol.kind == "thread_local" and not _is_private(symbol) and _storage_kind(symbol) == _SHARED


def _storage_kind(symbol: Symbol) -> int:
    if symbol.name in _RUNTIME_VARIABLES:
        return _READ_ONLY
    # The compiler's guard of a shared variable with a constructor, within a function and outside.
    return _GUARD if symbol.name.startswith("_ZGV") or symbol.name == "__tls_guard" else _SHARED


def _is_private(symbol: Symbol) -> bool:
    """Whether a variable in thread-local storage is the runtime's own, which no kernel can name."""
    return "worker_of_this_thread" in symbol.name


def _belongs_to_runtime(name: str) -> bool:
    if "kernelsim_kernel_entry" in name or "kernelsim9Signature" in name:
        return False
    return "kernelsim" in name or name.startswith(("_ZGV", "_ZTV", "DW.ref", "__", "_DYNAMIC", "_GLOBAL_OFFSET_TABLE_"))


def _plain_name(symbol: str) -> str:
    """The last identifier of a mangled name: ``_ZZ6kernelPfE4tile`` is ``tile``."""
    if symbol == _DYNAMIC:
        return "dynamic shared memory"
    if not symbol.startswith("_Z"):
        return symbol
    for found in reversed(list(re.finditer(r"\d+", symbol))):
        for skip in range(len(found[0])):
            length = int(found[0][skip:])
            name = symbol[found.end() : found.end() + length]
            rest = symbol[found.end() + length :]
            if (
                length
                and len(name) == length
                and re.fullmatch(r"[A-Za-z_]\w*", name)
                and re.fullmatch(r"E?(_\d*_?)?", rest)
            ):
                return name
    return symbol
