"""Wrappers of private APIs of tensors."""

from __future__ import annotations

from typing import Any

import torch

from opwright.internals.lookup import find

__all__ = ["address_in_object", "base_of", "is_true", "memory_of", "share_memory", "version_of", "was_written"]


def _counts_writes(version: Any) -> bool:
    tensor = torch.zeros(1, device="cpu")
    before = version.__get__(tensor)
    tensor.add_(1)
    return bool(version.__get__(tensor) > before)


def _identifies_storages(identity: Any) -> bool:
    x, y = torch.zeros(2, device="cpu"), torch.zeros(2, device="cpu")
    one, view, other = (identity.__get__(t.untyped_storage()) for t in (x, x[1:], y))
    return bool(one == view != other)


_version = find("version", _counts_writes)
_identity = find("storage_identity", _identifies_storages)
_check = find("check")
_address = find("tensor_address", lambda address: address.__get__(torch.empty(0)) > 0)


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that another one is a view of; None for one that is no view, or if that is not known."""
    return getattr(tensor, "_base", None)


def version_of(tensor: torch.Tensor) -> int | None:
    """A tensor's version counter, which counts in-place writes; None if it is not available."""
    return None if _version is None else int(_version.__get__(tensor))


def was_written(tensor: torch.Tensor, version: int | None) -> bool:
    """Whether a tensor was written since it had a version; True if that is not known."""
    return version is None or version_of(tensor) != version


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are views of one storage; False for wrappers (functorch's, subclasses), which have none."""
    return a is b or memory_of(a) == memory_of(b)


def memory_of(tensor: torch.Tensor) -> tuple[str, int]:
    """What identifies the storage of a tensor that lives; that of a wrapper, which has none, is its own."""
    try:
        storage = tensor.untyped_storage()
        if _identity is not None:
            return "storage", int(_identity.__get__(storage))
        if address := storage.data_ptr():
            return "address", address
    except (NotImplementedError, RuntimeError):
        pass
    return "tensor", id(tensor)


def address_in_object(tensor: torch.Tensor) -> int | None:
    """The address of the C++ tensor of a Python tensor; None if it is not available."""
    return None if _address is None else int(_address.__get__(tensor))


def is_true(condition: Any) -> bool:
    """Whether a comparison of sizes holds. One of a size that depends on data is compared when the code runs."""
    if not isinstance(condition, torch.SymBool) or _check is None:
        return bool(condition)
    try:
        _check(condition)
    except RuntimeError:
        return False
    return True
