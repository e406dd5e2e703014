"""What calls like an earlier one have in common, as the extension compares it (``templates/guarded_call.h``).

Tensors are compared by type, dtype, device, sizes, strides, dispatch keys and requires_grad; a number on which the
contract has no condition by its type; other arguments by type and value. A guard of any size compares ranks, and the
sizes of one name with each other, in place of sizes and strides. What is not listed here has no guard.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.contract.shapes.dims import AnyDim, Dim, FixedDim, NamedDim, VariadicDim

__all__ = ["Expected", "expected_arguments", "guarded_arity", "has_any_size"]

# Of a guarded call, and of the names of sizes in one: arrays of the extension have as many places.
_MOST_ARGUMENTS = 64
_MOST_ITEMS_OF_A_LIST = 16
_ANY_SIZE = -1
_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)
_ITEMS = (bool, int, float)
Item = tuple[Any, ...]


class Expected(enum.IntEnum):
    """What an argument has to be; the numbers are those of guarded_call.h."""

    TENSOR = 0
    REPEATED = 1
    FLOATING = 2
    INTEGER = 3
    CONSTANT = 4
    LIST = 5


def guarded_arity(contract: Contract) -> int:
    """The number of positional arguments that are all arguments of a call; -1 for operators without guards."""
    signature = contract.signature
    unguarded = signature.keyword_only or signature.groups or len(signature.arguments) > _MOST_ARGUMENTS
    return -1 if unguarded else len(signature.arguments)


def expected_arguments(
    contract: Contract, arguments: Sequence[Any], *, any_size: bool, free_kinds: Collection[type]
) -> tuple[Item, ...] | None:
    """What a guard expects of arguments like those of a valid call: an item for each, of an ``Expected`` and what is
    compared. None if there is no guard for such a call.

    Args:
        arguments: converted (``contract.binding.fill``).
        any_size: compare sizes only as far as the contract does (``has_any_size``).
        free_kinds: types of numbers that are compared by type only, where the contract has no condition on them.
    """
    names: dict[str, int] = {}
    first: dict[int, int] = {}  # the first position of each tensor, by its id
    items: list[Item] = []
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            earlier = first.setdefault(id(argument), i)
            axes = tuple(_axes(contract, i, argument, names)) if any_size else None
            items.append((Expected.TENSOR, argument, axes) if earlier == i else (Expected.REPEATED, earlier))
        else:
            item = _expected_value(contract, i, argument, free_kinds)
            if item is None:
                return None
            items.append(item)
    return tuple(items) if first and len(names) <= _MOST_ARGUMENTS else None


def _expected_value(contract: Contract, position: int, value: Any, free_kinds: Collection[type]) -> Item | None:
    if position in contract.free_numbers and type(value) in free_kinds:
        return Expected.FLOATING if type(value) is float else Expected.INTEGER, None
    if type(value) in _CONSTANTS:
        return None if value != value else (Expected.CONSTANT, value)
    if any(value is choice for choice in contract.signature.arguments[position].choices):  # of an enumeration
        return Expected.CONSTANT, value
    if type(value) is list and len(value) <= _MOST_ITEMS_OF_A_LIST and all(type(v) in _ITEMS for v in value):
        return None if any(v != v for v in value) else (Expected.LIST, tuple(value))
    return None


def has_any_size(contract: Contract) -> bool:
    """Whether the contract says no more of sizes than that some are equal or fixed."""
    tensors = [a.tensor for a in contract.signature.arguments if a.tensor is not None]
    dims = [dim for tensor in tensors for dim in tensor.dims]
    return not contract.where and not contract.signature.mutated and all(map(_is_compared, dims))


def _is_compared(dim: Dim) -> bool:
    if isinstance(dim, NamedDim):
        return not dim.broadcast and not dim.each
    return isinstance(dim, AnyDim | FixedDim | VariadicDim)


def _axes(contract: Contract, position: int, tensor: torch.Tensor, names: dict[str, int]) -> Iterator[int]:
    """For each axis of a tensor the number of its size's name, or ``_ANY_SIZE``, or -2 - a fixed size. An int argument
    that names a size makes the size a fixed one, because a guard compares the argument by its value."""
    expected = contract.signature.arguments[position].tensor
    assert expected is not None  # a tensor argument has one
    numbers = {a.name for a in contract.signature.arguments if a.tensor is None}
    axis = 0
    for dim in expected.dims:
        count = tensor.dim() - (len(expected.dims) - 1) if isinstance(dim, VariadicDim) else 1
        for k in range(count):
            if isinstance(dim, FixedDim):
                yield -2 - int(dim.size)
            elif isinstance(dim, AnyDim) or dim.name is None:  # type: ignore[union-attr]
                yield _ANY_SIZE
            elif dim.name in numbers:  # type: ignore[union-attr]
                yield -2 - tensor.shape[axis + k]
            else:
                name = f"*{dim.name}[{k}]" if isinstance(dim, VariadicDim) else dim.name  # type: ignore[union-attr]
                yield names.setdefault(str(name), len(names))
        axis += count
