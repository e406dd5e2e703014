"""The memory that a simulated launch may access: the elements of its tensors, and which of them are written."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from opwright.backends.cuda.simulator.abi import Region
from opwright.backends.cuda.simulator.findings import MemoryRange

__all__ = ["Unwritten", "address_of", "known_memory", "without_overlap"]


class Unwritten:
    """An uninitialised tensor (``torch.empty``), across several launches.

    Reading a byte of it that no kernel has written is a finding. Pass the same object to every launch that takes the
    tensor; for a single launch the tensor itself is enough.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.written = bytearray(_span(tensor)[1] - _span(tensor)[0])


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte of the tensor's elements and of the end of the last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _inside(tensor: torch.Tensor) -> torch.Tensor | None:
    """Which bytes of the span belong to an element; None for all, as in every dense tensor."""
    begin, end = _span(tensor)
    size = tensor.element_size()
    if tensor.numel() * size >= end - begin:
        return None
    mask = torch.zeros((end - begin) // size, dtype=torch.bool)
    mask.as_strided(tensor.shape, tensor.stride()).fill_(True)
    return mask.repeat_interleave(size).to(torch.uint8)


def known_memory(
    tensors: Sequence[tuple[int, torch.Tensor]], uninitialised: Sequence[torch.Tensor | Unwritten]
) -> tuple[MemoryRange, ...]:
    """The memory that the kernel may access: the spans of its tensors, overlapping ones merged."""
    fresh = [u if isinstance(u, Unwritten) else Unwritten(u) for u in uninitialised]
    spans = sorted((*_span(tensor), position, tensor) for position, tensor in tensors if tensor.numel())
    groups: list[list[tuple[int, int, int, torch.Tensor]]] = []
    for span in spans:
        if groups and span[0] < max(other[1] for other in groups[-1]):
            groups[-1].append(span)
        else:
            groups.append([span])
    return tuple(_merge(group, fresh) for group in groups)


def _merge(group: list[tuple[int, int, int, torch.Tensor]], fresh: Sequence[Unwritten]) -> MemoryRange:
    begin, end = group[0][0], max(span[1] for span in group)
    inside: torch.Tensor | None = None
    masks = [_inside(tensor) for *_, tensor in group]
    if all(mask is not None for mask in masks):
        inside = torch.zeros(end - begin, dtype=torch.uint8)
        for (first, last, _, _), mask in zip(group, masks, strict=True):
            inside[first - begin : last - begin] |= mask  # type: ignore[arg-type]
    written = next(
        (u.written for u in fresh if len(group) == 1 and _span(u.tensor) == (begin, end)),
        None,
    )
    tensors = tuple((position, first, last, tensor) for first, last, position, tensor in group)
    granule = min(tensor.element_size() for *_, tensor in group)
    return MemoryRange(begin, end, granule, tensors, written, inside)


def address_of(memory: bytearray | torch.Tensor | None) -> int | None:
    """Where it is; None for nothing."""
    if memory is None:
        return None
    if isinstance(memory, torch.Tensor):
        return memory.data_ptr()
    return ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))


def without_overlap(regions: list[Region]) -> list[Region]:
    """Of regions in the order of their beginnings, those that begin in no other one before."""
    kept: list[Region] = []
    for region in regions:
        if not kept or region.begin >= kept[-1].end:
            kept.append(region)
    return kept
