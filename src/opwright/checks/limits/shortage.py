"""Memory that is short, which may be the work of others, and how much of it is free."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from opwright.checks.exceptions import text_of

__all__ = ["WITHOUT_SHORTAGE", "data_bytes", "free_bytes", "is_shortage", "lacks_memory"]

# What torch says in place of "out of memory" on machines without NVML, such as containers: it first asks that who has
# the memory of the GPU.
_WITHOUT_NVML = "nvmlInit_v2_() INTERNAL ASSERT FAILED"
# What torch, its libraries and Python say where memory is short, or a GPU takes no further process.
_SHORTAGES = (
    "OutOfMemoryError", "MemoryError", "out of memory", "not enough memory", "can't allocate memory",
    "STATUS_ALLOC_FAILED", "std::bad_alloc", "busy or unavailable", _WITHOUT_NVML,
)  # fmt: skip
WITHOUT_SHORTAGE = "free memory, or check fewer kernels at a time with --jobs"


def is_shortage(text: str) -> bool:
    """Whether an error says that a device or the machine had no memory left, which may be the work of others."""
    return any(words in text for words in _SHORTAGES)


def lacks_memory(error: BaseException) -> bool:
    """Whether torch or Python raised an error as there was not enough memory."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _WITHOUT_NVML in text_of(error)


def free_bytes(device: str) -> int:
    """The free memory of a GPU, or of this machine: what a container may use of it. 0 if the system does not say."""
    if torch.device(device).type == "cuda":
        free: int = torch.cuda.mem_get_info()[0]
        return free
    of_machine = _kilobytes("/proc/meminfo", "MemAvailable")
    limit, used = (_number_in(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    return of_machine if limit is None or used is None else min(of_machine, max(0, limit - used))


def data_bytes() -> int:
    """What this process has of the memory that RLIMIT_DATA limits."""
    return _kilobytes("/proc/self/status", "VmData")


def _kilobytes(file: str, name: str) -> int:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(file).read_text(), re.MULTILINE)
    except OSError:  # no Linux
        return 0
    return int(found[1]) * 1024 if found else 0


def _number_in(file: str) -> int | None:
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return None
