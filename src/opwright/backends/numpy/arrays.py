"""Converts arrays to tensors on the same memory, and results back to the caller's type."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opwright.errors import ArgumentError
from opwright.internals.tensors import version_of, was_written

__all__ = ["Borrowed", "as_numpy", "borrow", "is_array", "refuse_shared_writes"]


@dataclass(frozen=True)
class Copied:
    """An array whose memory torch could not share, and the tensor with its copy."""

    array: Any
    tensor: torch.Tensor
    version: int | None

    def was_written(self) -> bool:
        """Whether the tensor has been written to since it was made."""
        if self.version is None:  # without a version counter
            return not np.array_equal(self.array, self.tensor.detach().cpu().numpy(), equal_nan=True)
        return was_written(self.tensor, self.version)


@dataclass(frozen=True)
class Borrowed:
    """A call's leaves with tensors in place of arrays.

    Attributes:
        device: the tensors' device; None without tensors.
        give_back: converts a result to the caller's type.
    """

    leaves: tuple[Any, ...]
    device: torch.device | None
    give_back: Callable[[torch.Tensor], Any]
    copies: tuple[Copied, ...] = ()
    shared: tuple[tuple[Any, torch.Tensor, int | None], ...] = ()

    def write_back(self, who: str) -> None:
        """Copy writes to tensors back to their arrays.

        Raises:
            ValueError: the array is read-only; the same error as NumPy's.
            ArgumentError: another argument shares the written memory, so that the results differ from NumPy's.
        """
        for copied in self.copies:
            if copied.was_written():
                if not copied.array.flags.writeable:
                    raise ValueError("assignment destination is read-only")
                copied.array[...] = copied.tensor.detach().cpu().numpy()
        written = [a for a, t, version in self.shared if was_written(t, version)]
        written += [c.array for c in self.copies if c.was_written()]
        every = [a for a, _, _ in self.shared] + [c.array for c in self.copies]
        _refuse_shared(written, every, who)


def refuse_shared_writes(values: Sequence[Any], tensors: Sequence[torch.Tensor], who: str) -> None:
    """Refuse what new tensors on arrays were used for: a write to memory that another argument shares."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    _refuse_shared([a for a, t in zip(arrays, tensors, strict=True) if version_of(t) != 0], arrays, who)


def _refuse_shared(written: Sequence[Any], every: Sequence[Any], who: str) -> None:
    if any(a is not b and np.may_share_memory(a, b) and np.shares_memory(a, b) for a in written for b in every):
        raise ArgumentError(
            f"{who} wrote into an argument whose memory another argument shares; the results are not NumPy's",
            fix="pass a copy of one of them",
        )


def is_array(value: Any) -> bool:
    """Whether this is an array, of NumPy or of another library that can share its memory."""
    if isinstance(value, np.ndarray):
        return True
    if isinstance(value, torch.Tensor | np.generic | type):
        return False
    return hasattr(value, "__dlpack__") or hasattr(value, "__array__")


def borrow(leaves: Sequence[Any], device: torch.device | None, who: str, *, functional: bool = False) -> Borrowed:
    """Tensors for arrays, on the same memory if torch can share it.

    Args:
        device: the device for the tensors; None to keep each array's.
        functional: the tensors will not be written, so read-only memory may be shared.

    Raises:
        ArgumentError: arrays and tensors in one call, or an array that torch cannot hold.
    """
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    if tensors and arrays:
        raise ArgumentError(
            f"{who} must be given arrays or tensors, got both in one call",
            fix="pass tensors: torch.as_tensor(array) does not copy",
        )
    if tensors:
        found = next((t.device for t in tensors if t.device.type != "cpu"), tensors[0].device)
        return Borrowed(tuple(_number(leaf, found) for leaf in leaves), found, lambda tensor: tensor)
    lender = _Lender(device, who, functional)
    lent = tuple(lender.tensor_for(leaf) if is_array(leaf) else _number(leaf, device) for leaf in leaves)
    at = next((leaf.device for leaf in lent if isinstance(leaf, torch.Tensor)), device)
    return Borrowed(lent, at, _giver(arrays), tuple(lender.copies), tuple(lender.shared))


def _number(leaf: Any, device: torch.device | None) -> Any:
    """A NumPy number as a tensor without dims, which keeps its dtype; other values as they are."""
    if isinstance(leaf, np.number | np.bool_):
        return torch.from_numpy(np.asarray(leaf)).to(device or "cpu")
    return leaf


class _Lender:
    """Makes the tensors of one call: one for each array, also for an array that is passed twice."""

    def __init__(self, device: torch.device | None, who: str, functional: bool) -> None:
        self._device = device
        self._who = who
        self._functional = functional
        self._made: dict[int, torch.Tensor] = {}
        self.copies: list[Copied] = []
        self.shared: list[tuple[Any, torch.Tensor, int | None]] = []

    def tensor_for(self, value: Any) -> torch.Tensor:
        if id(value) not in self._made:
            self._made[id(value)] = self._make(value)
        return self._made[id(value)]

    def _make(self, value: Any) -> torch.Tensor:
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
            tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(value)
            return tensor
        array = np.asarray(value)
        try:
            tensor = self._share(array)
        except TypeError as error:
            raise ArgumentError(
                f"{self._who}: torch has no array of dtype {array.dtype}", fix="convert it, as with .astype(np.float64)"
            ) from error
        moved = tensor if self._device is None else tensor.to(self._device)
        with torch.inference_mode(False):
            if moved is tensor and tensor.data_ptr() == array.ctypes.data:
                self.shared.append((array, tensor, version_of(tensor)))
            else:
                self.copies.append(Copied(array, moved, version_of(moved)))
        return moved

    def _share(self, array: Any) -> torch.Tensor:
        """A tensor on the array's memory, or on a copy if torch cannot share it: strides, byte order, read-only."""
        steps_back = any(s < 0 or s % array.itemsize for s in array.strides)
        if steps_back or not array.dtype.isnative or not (array.flags.writeable or self._functional):
            array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
        with torch.inference_mode(False):
            if array.flags.writeable:
                return torch.from_numpy(array)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about a read-only array, which is not written here
                return torch.from_numpy(array)


def _giver(arrays: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
    """The conversion of results: to arrays of the first array's library, else to NumPy's."""
    first = arrays[0] if arrays else None
    if first is not None and not isinstance(first, np.ndarray) and hasattr(first, "__array_namespace__"):
        namespace = first.__array_namespace__()
        return lambda tensor: namespace.from_dlpack(tensor.detach())
    return as_numpy


def as_numpy(tensor: torch.Tensor) -> Any:
    """An array on the tensor's memory; a NumPy number for a tensor without dims, as most NumPy functions return."""
    array = tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    return array[()] if array.ndim == 0 else array
