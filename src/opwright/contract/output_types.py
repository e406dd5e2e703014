"""The shapes and dtypes of outputs, as far as annotations state them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from opwright.contract.binding import Binding, bind
from opwright.contract.shapes.dims import AnyDim, Dim, ExprDim, FixedDim, NamedDim, VariadicDim, evaluate, names_in
from opwright.contract.signature import TensorType

if TYPE_CHECKING:
    from opwright.contract.contract import Contract

__all__ = ["StatedOutput", "stated_outputs"]


@dataclass(frozen=True)
class StatedOutput:
    """What a call's arguments and the annotation of one output decide; None for what they leave open."""

    shape: tuple[Any, ...] | None
    dtype: torch.dtype | None


def stated_outputs(
    contract: Contract, arguments: Sequence[Any], new_size: Callable[[], Any] | None = None
) -> tuple[list[StatedOutput], torch.device]:
    """What annotations state of each output of a call, and the outputs' device.

    Args:
        new_size: gives a size that depends on data; None leaves such shapes open.

    Raises:
        ArgumentError: an argument disagrees with the contract.
    """
    binding = bind(contract, arguments)
    assert binding.device is not None  # bind() refuses calls without a tensor
    sizes = dict(binding.sizes)
    if new_size is not None:
        sizes |= {name: new_size() for name in sorted(contract.signature.data_dependent)}
    outputs = [StatedOutput(_shape(r.tensor, sizes), _dtype(r.tensor, binding)) for r in contract.signature.returns]
    return outputs, binding.device


def _dtype(tensor: TensorType, binding: Binding) -> torch.dtype | None:
    return tensor.dtypes[0] if len(tensor.dtypes) == 1 else binding.dtypes.get(tensor.dtype_class)


def _shape(tensor: TensorType, sizes: dict[str, Any]) -> tuple[Any, ...] | None:
    shape: list[Any] = []
    for dim in tensor.dims:
        extent = _extent(dim, sizes)
        if extent is None:
            return None
        shape += extent
    return tuple(shape)


def _extent(dim: Dim, sizes: dict[str, Any]) -> tuple[Any, ...] | None:
    """The sizes of the axes of one dim; None if a name is open, or the axis may have any size."""
    match dim:
        case VariadicDim(name=str(name)):
            return tuple(sizes[name]) if name in sizes else None
        case NamedDim(name=name):
            return (sizes[name],) if name in sizes else None
        case FixedDim(size=size):
            return (size,)
        case ExprDim(text=text):
            try:
                return (evaluate(text, sizes),) if names_in(text) <= sizes.keys() else None
            except ZeroDivisionError:
                return None
        case AnyDim() | VariadicDim():
            return None
