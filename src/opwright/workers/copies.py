"""Copies of tensors with the same layout, and what was written into them."""

from __future__ import annotations

import torch

from opwright.contract.dtypes import element_bytes, equal_bytes

__all__ = ["changed_bytes", "copy_back", "on_cpu", "same_layout_copy"]

# In a larger storage that a tensor hardly uses, only its elements are copied and compared.
_MOST_BYTES = 1 << 30


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
