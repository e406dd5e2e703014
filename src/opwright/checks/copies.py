"""The memory of arguments: copies with the same layout, and what was written into it."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from opwright.checks.exceptions import text_of
from opwright.contract.dtypes import element_bytes, equal_bytes

__all__ = [
    "WITHOUT_SHORTAGE", "changed_bytes", "copy_back", "data_bytes", "free_bytes", "is_shortage", "lacks_memory",
    "on_cpu", "same_layout_copy",
]  # fmt: skip

# In a larger storage that a tensor hardly uses, only its elements are copied and compared.
_MOST_BYTES = 1 << 30
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


def same_layout_copy(
    tensor: torch.Tensor, *, device: str | None = None, storage: torch.UntypedStorage | None = None
) -> torch.Tensor:
    """The tensor in a copy of its whole storage, with its strides and what lies around its elements.

    Args:
        device: of the copy; by default the tensor's.
        storage: for the copy, with as many bytes; by default a new one.
    """
    own = tensor.untyped_storage()
    if storage is None:
        storage = torch.UntypedStorage(own.nbytes(), device=device or tensor.device)
    copy = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    copy = copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    if _is_mostly_unused(tensor):
        copy.copy_(tensor)
    else:
        storage.copy_(own)
    return copy.conj() if tensor.is_conj() else copy


def copy_back(copy: torch.Tensor, original: torch.Tensor) -> None:
    """Write what was written into a copy of the same layout into the original."""
    if _is_mostly_unused(original):
        original.copy_(copy)
    else:
        original.untyped_storage().copy_(copy.untyped_storage())


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU with its strides, which ``Tensor.cpu`` does not keep where there are gaps: a reference that
    refuses them, as ``view`` does, has to see them. One that hardly uses its storage comes without them."""
    if tensor.device.type == "cpu" or _is_mostly_unused(tensor) or tensor.is_neg():
        return tensor.detach().cpu()
    storage = tensor.untyped_storage().cpu()
    copy = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return copy.conj() if tensor.is_conj() else copy


def changed_bytes(now: torch.Tensor, before: torch.Tensor, *, elements: bool) -> int:
    """How many bytes of a tensor's storage differ from those of a copy of the same layout.

    Args:
        elements: count all of them; else only those around the tensor's elements, which nothing may write.
    """
    if _is_mostly_unused(before):
        return int((element_bytes(now) != element_bytes(before)).sum()) if elements else 0
    stored = _bytes_of(now), _bytes_of(before)
    if equal_bytes(*stored):
        return 0
    differ = stored[0] != stored[1]
    if not elements and now.numel():
        size = now.element_size()
        strides = [*(size * s for s in now.stride()), 1]
        inside = torch.zeros_like(differ)
        inside.as_strided([*now.shape, size], strides, size * now.storage_offset()).fill_(True)
        differ &= ~inside
    return int(differ.sum())


def _is_mostly_unused(tensor: torch.Tensor) -> bool:
    stored = tensor.untyped_storage().nbytes()
    return stored > _MOST_BYTES and stored > 64 * tensor.numel() * tensor.element_size()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
