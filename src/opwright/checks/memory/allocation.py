"""How much memory a call takes: what it leaves behind, and its peak beyond what was there before.

Both count bytes that were asked for, not pages that happen to be in memory, so a busy machine does not change them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import mmap
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "OtherThreads", "address_space", "given_out", "open_files", "peak_of", "room_for_small_blocks", "threads",
    "why_no_peaks", "without_collections",
]  # fmt: skip

# The option of the C library's mallopt(3) for the least size of a block with pages of its own, and that size.
_M_MMAP_THRESHOLD, _OWN_PAGES = -3, 1 << 16
# Free pieces of half that size, for smaller blocks.
_PIECES = 1 << 10
# Seconds until a thread that has not ended counts as one that stays.
_PATIENCE_S = 1.0


class _HeapStatistics(ctypes.Structure):
    """``struct mallinfo2`` of the C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t) for name in ("of_heaps", *"bcd", "in_own_pages", "e", "f", "in_heap", "g", "h")
    )


def given_out(device: str) -> Iterator[tuple[str, int]]:
    """The bytes that the C library has given out, and those that tensors on a GPU take. (What the process has also
    grows where free memory lies in pieces.)"""
    if _is_gnu():
        found = _library().mallinfo2()
        yield "memory", found.in_own_pages + found.in_heap
    if device == "cuda":
        yield "GPU memory", torch.cuda.memory_allocated()


def open_files() -> int:
    """The number of files, pipes and sockets that this process has open."""
    return _entries("/proc/self/fd")


def threads() -> int:
    """The number of threads in this process, those of native code included."""
    return _entries("/proc/self/task")


def _entries(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:  # no Linux
        return 0


def address_space() -> int:
    """The bytes of this process's address space, also those that nobody has touched, but for those of the C library's
    heaps, which grow and shrink as they like."""
    now, _ = _sizes() or (0, 0)
    if not _is_gnu():
        return now
    found = _library().mallinfo2()
    return int(now - found.of_heaps - found.in_own_pages)


def why_no_peaks(device: str) -> str:
    """Why the peak of a call cannot be measured on a device; empty if it can."""
    if device == "cuda" or (_is_gnu() and _sizes() is not None):
        return ""
    return "the peak of a call is known on Linux with the GNU C library only"


class OtherThreads:
    """The threads that this process has anyway: each that a call starts has a stack of megabytes until it ends."""

    def __init__(self) -> None:
        self._count = threads()

    def wait_for_the_end(self) -> None:
        """Wait until those that a call has started have ended, or stay, as those of a pool do."""
        deadline = time.monotonic() + _PATIENCE_S
        while (count := threads()) > self._count and time.monotonic() < deadline:
            time.sleep(0.001)
        self._count = max(count, self._count)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """A block in which Python's collector does not run by itself: garbage from before that it frees during a call would
    hide what the call takes. What calls leave is in the youngest generation, which is quick to collect."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def peak_of(call: Callable[[], Any], device: str) -> int:
    """The most bytes that a call takes at a time beyond what is there before, its results included: on a GPU, those of
    torch's allocator; else the address space of the process, in which torch, NumPy and ``malloc`` allocate."""
    gc.collect(0)
    return _peak_on_gpu(call) if device == "cuda" else _peak_of_process(call)


def _peak_on_gpu(call: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _ = call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_of_process(call: Callable[[], Any]) -> int:
    """Linux keeps the largest size that a process ever had. Unused pages first make the present size the largest."""
    with _no_free_large_blocks():
        sizes = _sizes()
        assert sizes is not None  # else ``why_no_peaks`` says so
        now, largest = sizes
        missing = max(largest - now, mmap.PAGESIZE)
        with mmap.mmap(-1, missing, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0):
            now, _ = _sizes() or (0, 0)
            _ = call()
            _, largest = _sizes() or (0, 0)
    return largest - now


def _sizes() -> tuple[int, int] | None:
    """The bytes of this process's address space: now, and at most until now."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # no Linux
        return None
    found = [re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE) for name in ("VmSize", "VmPeak")]
    now, largest = (int(match[1]) * 1024 if match else 0 for match in found)
    return (now, largest) if largest else None


# -- the heap of the GNU C library ------------------------------------------------------------------------------------


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _HeapStatistics
    library.malloc.restype = ctypes.c_void_p
    return library


@functools.cache
def _is_gnu() -> bool:
    return all(hasattr(ctypes.CDLL(None), name) for name in ("mallinfo2", "mallopt"))


@contextlib.contextmanager
def room_for_small_blocks() -> Iterator[None]:
    """Free pieces of the heap, each between two others: in this block, Python's objects and other small blocks are no
    part of a call's peak, unless they are very many."""
    if not _is_gnu():
        yield
        return
    pieces = [_allocated(_OWN_PAGES // 2) for _ in range(2 * _PIECES)]
    _free(pieces[::2])
    try:
        yield
    finally:
        _free(pieces[1::2])


@contextlib.contextmanager
def _no_free_large_blocks() -> Iterator[None]:
    """Take all that is free in the heap and large enough for a block of some size: what a call would get of it does not
    make the process larger. Such a block has pages of its own then, which are given back when it is freed."""
    _library().mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES)
    taken: list[int | None] = []
    try:
        while not taken or (taken[-1] is not None and not _has_own_pages(taken[-1])):
            taken.append(_allocated(_OWN_PAGES))
        yield
    finally:
        _free(taken)


def _allocated(size: int) -> int | None:
    block: int | None = _library().malloc(ctypes.c_size_t(size))
    return block


def _has_own_pages(block: int) -> bool:
    """The second bit of a block's size, which lies before it (glibc's ``malloc.c``: IS_MMAPPED)."""
    return bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2)


def _free(blocks: Iterable[int | None]) -> None:
    for block in blocks:
        _library().free(ctypes.c_void_p(block))
