"""Whether a tensor that an operator writes shares elements with another argument, or with itself.

Extents are compared first. Where they overlap, a common address is looked for, because views that only interleave share
no element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.contract.contract import Contract
from opwright.contract.signature import Kind
from opwright.errors import ArgumentError
from opwright.internals.dispatch import is_functorch_tensor
from opwright.internals.tensors import share_memory

__all__ = ["overlap_check"]

# Steps of NumPy's exact solver, which needs a few for the views that programs make.
_MOST_WORK = 100_000


def overlap_check(contract: Contract, like: Sequence[Any]) -> Callable[..., None]:
    """A function of arguments with the sizes and strides of ``like``, which raises ArgumentError for a mutated argument
    that shares elements with another one: kernels read and write them in any order.

    Tensors without an address (fake ones, on meta) are compared by their storage; those of a transform or a subclass,
    which have none, by identity.

    Raises:
        ArgumentError: a mutated argument has several elements at one address.
    """
    mutated = contract.signature.mutated
    tensors = [
        (i, j, tensor)
        for i, value in enumerate(like)
        for j, tensor in enumerate(tree.tensors([value]))
        if not _is_static(tensor) or tensor.numel()
    ]
    for i, _, tensor in tensors:
        if i in mutated and _is_static(tensor) and _overlaps_itself(tensor):
            raise _internal_error(contract, i, tensor)
    places = [
        _Place(i, j, i in mutated, _device_of_address(t), _extent(t) if _is_static(t) else 0) for i, j, t in tensors
    ]
    devices = {place.device for place in places if place.is_written} - {None}
    by_address = [[place for place in places if place.device == device] for device in devices]
    without = [place for place in places if place.device is None]
    by_storage = [
        (a, b) for a in without for b in places if (a.is_written or b.is_written) and (b.device is not None or a < b)
    ]

    def check(*arguments: Any) -> None:
        for those in by_address:
            for a, b in _overlapping([(place.of(arguments).data_ptr(), place) for place in those]):
                if _share_elements(a.of(arguments), b.of(arguments)):
                    raise _error(contract, a, b)
        for a, b in by_storage:
            x, y = a.of(arguments), b.of(arguments)
            if x is y or (share_memory(x, y) and _share_elements(x, y)):
                raise _error(contract, a, b)

    return check


@dataclass(frozen=True, order=True)
class _Place:
    """Where a tensor stands among the arguments, and how many bytes it reaches over. It holds no tensor: a guard that
    has it outlives the call."""

    argument: int
    index: int  # in a list
    is_written: bool = field(compare=False)
    device: torch.device | None = field(compare=False)  # None if it has no address
    extent: int = field(compare=False)

    def name(self, contract: Contract) -> str:
        argument = contract.signature.arguments[self.argument]
        return f"{argument.name}[{self.index}]" if argument.kind is Kind.TENSOR_LIST else argument.name

    def of(self, arguments: Sequence[Any]) -> torch.Tensor:
        argument = arguments[self.argument]
        tensor: torch.Tensor = argument[self.index] if isinstance(argument, list | tuple) else argument
        return tensor


def _overlapping(places: list[tuple[int, _Place]]) -> list[tuple[_Place, _Place]]:
    """The pairs of places, one of them written, whose extents overlap from these addresses on, in the arguments' order.
    Sorted by their addresses, as lists may have thousands of tensors."""
    found = []
    read, written = list[tuple[int, _Place]](), list[tuple[int, _Place]]()  # those that reach on, with their ends
    for start, place in sorted(places):
        written = [one for one in written if one[0] > start]
        read = [one for one in read if one[0] > start]
        for _, other in (*written, *(read if place.is_written else ())):
            found.append((min(place, other), max(place, other)))
        (written if place.is_written else read).append((start + place.extent, place))
    return sorted(found)


def _device_of_address(tensor: torch.Tensor) -> torch.device | None:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not is_functorch_tensor(tensor)
    return tensor.device if is_plain and tensor.device.type != "meta" else None


def _is_static(tensor: torch.Tensor) -> bool:
    """Whether sizes and strides are numbers, and not symbols of torch.compile."""
    return all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def _address(tensor: torch.Tensor) -> int:
    """Where its first element lies; of a tensor without an address, counted from a start that is not 0."""
    if _device_of_address(tensor) is not None:
        return tensor.data_ptr()
    return (1 << 12) + int(tensor.storage_offset()) * tensor.element_size()


def _extent(tensor: torch.Tensor) -> int:
    """The bytes from the first to the last element of a non-empty tensor."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two of its elements have one address; exact for small tensors, and for all in which each axis steps over
    what the smaller steps reach."""
    reached = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if stride == 0:
            return True
        if stride < reached:
            return tensor.numel() > _MOST_WORK or _counts_an_address_twice(tensor)
        reached = stride * (size - 1) + reached
    return False


def _counts_an_address_twice(tensor: torch.Tensor) -> bool:
    axes = [np.arange(n) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    offsets = functools.reduce(np.add.outer, axes)
    return bool(np.unique(offsets).size < tensor.numel())


def _share_elements(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors with addresses, or with one storage, have an element in common."""
    if not (_is_static(x) and _is_static(y)):
        return False  # the call that runs has numbers, and is checked too
    try:
        return np.shares_memory(_as_array(x), _as_array(y), max_work=_MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class _Memory:
    """A tensor's addresses as an array, on any device: nothing reads them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "data": (_address(tensor), False), "shape": tuple(tensor.shape), "typestr": f"|V{size}", "version": 3,
            "strides": tuple(size * s for s in tensor.stride()),
        }  # fmt: skip


def _as_array(tensor: torch.Tensor) -> Any:
    return np.asarray(_Memory(tensor))


def _internal_error(contract: Contract, argument: int, tensor: torch.Tensor) -> ArgumentError:
    return ArgumentError(
        f"{contract.qualname}: the argument {contract.signature.arguments[argument].name!r} is written, but several of "
        f"its elements share an address (shape {list(tensor.shape)}, strides {list(tensor.stride())})",
        fix="pass a tensor of its own, for example with .contiguous()",
    )


def _error(contract: Contract, a: _Place, b: _Place) -> ArgumentError:
    written, other = (a, b) if a.is_written else (b, a)
    names = [place.name(contract) for place in (written, other)]
    return ArgumentError(
        f"{contract.qualname}: the argument {names[0]!r} is written, and shares memory with {names[1]!r}",
        fix=f"pass a copy for one of them: {names[1]}.clone()",
    )
