"""Finds a call in tables of the fastest kernels: by its device, its dtypes, and its number of elements.

Packages have this file, too: it needs no opwright at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from opwright.contract.dtypes import short
from opwright.processor import processor

__all__ = ["count_elements", "device_name", "dtype_key", "fastest_first", "find_range", "key_of"]


class _Range(Protocol):
    """The sizes below ``below`` elements (None: all others), which the ranges before it do not have."""

    @property
    def below(self) -> int | None: ...
    @property
    def kernel(self) -> str: ...


class _Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=_Range)
K = TypeVar("K", bound=_Named)


def key_of(arguments: Sequence[Any]) -> tuple[str, str] | None:
    """The key of a call's table: its device and its dtypes. None for a call without tensors."""
    tensors = _tensors(arguments)
    return (device_name(tensors[0].device), dtype_key(arguments)) if tensors else None


def find_range(ranges: Iterable[R], arguments: Sequence[Any]) -> R:
    """The range of a table, which covers all sizes, that has these arguments (in signature order)."""
    # Under torch.compile the count may be symbolic: each comparison then becomes a guard.
    elements = count_elements(arguments)
    return next(i for i in ranges if i.below is None or elements < i.below)


def fastest_first(
    kernels: Iterable[K], tables: Mapping[tuple[str, str], Sequence[R]], arguments: Sequence[Any]
) -> tuple[K, ...]:
    """The kernels in the order in which they are tried: as attached, but the one that a table names comes first."""
    listed = tuple(kernels)
    key = key_of(arguments) if tables and len(listed) > 1 else None
    ranges = tables.get(key) if key is not None else None
    if ranges is None:
        return listed
    fastest = find_range(ranges, arguments).kernel
    return tuple(sorted(listed, key=lambda k: k.name != fastest))


def count_elements(arguments: Sequence[Any]) -> int:
    """The size in tables: the number of elements of all tensor arguments."""
    return sum(t.numel() for t in _tensors(arguments))


def dtype_key(arguments: Sequence[Any]) -> str:
    """The dtypes in a table's key: the floating ones, or all if there are none."""
    found = {t.dtype for t in _tensors(arguments)}
    floating = {d for d in found if d.is_floating_point or d.is_complex}
    return ",".join(sorted(short(d) for d in floating or found))


def device_name(device: torch.device) -> str:
    """The name of a device, which is the same for GPUs of the same model."""
    if device.type == "cuda" and torch.cuda.is_available():
        return _gpu_name(torch.cuda.current_device() if device.index is None else device.index)
    return processor().name if device.type == "cpu" else device.type


@functools.cache
def _gpu_name(index: int) -> str:
    return torch.cuda.get_device_properties(index).name if index < torch.cuda.device_count() else "cuda"


def _tensors(arguments: Sequence[Any]) -> list[torch.Tensor]:
    listed = (a if isinstance(a, list | tuple) else (a,) for a in arguments)
    return [t for values in listed for t in values if isinstance(t, torch.Tensor)]
