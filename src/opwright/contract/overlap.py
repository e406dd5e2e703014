"""Whether a tensor that an operator writes shares elements with another argument, or with itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from opwright import tree
from opwright.errors import ArgumentError

if TYPE_CHECKING:
    from opwright.contract.contract import Contract

__all__ = ["overlap_check"]

# Steps of NumPy's exact solver, which needs a few for the views that programs make.
_MOST_WORK = 100_000


def overlap_check(contract: Contract, like: Sequence[Any]) -> Callable[..., None]:
    """A function of arguments with the sizes and strides of ``like``, which raises ArgumentError for a mutated argument
    that shares memory with another one: kernels read and write them in any order.

    Raises:
        ArgumentError: a mutated argument has several elements at one address.
    """
    signature = contract.signature
    tensors = [
        (argument.name, i, j, tensor)
        for i, argument in enumerate(signature.arguments)
        for j, tensor in enumerate(tree.tensors([like[i]]))
        if tensor.numel()
    ]
    for name, i, _, tensor in tensors:
        if i in signature.mutated and any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True)):
            raise ArgumentError(
                f"{contract.qualname}: the argument {name!r} is written, but it is expanded: several of its elements "
                f"share an address (shape {list(tensor.shape)}, strides {list(tensor.stride())})",
                fix="pass a tensor of its own, for example with .contiguous()",
            )
    pairs = [
        (a, b)
        for n, a in enumerate(tensors)
        for b in tensors[n + 1 :]
        if a[1] in signature.mutated or b[1] in signature.mutated
    ]
    extents = {(i, j): _extent(tensor) for _, i, j, tensor in tensors}

    def check(*arguments: Any) -> None:
        for (name, i, k, _), (other, j, m, _) in pairs:
            x, y = _pick(arguments[i], k), _pick(arguments[j], m)
            first, second = x.data_ptr(), y.data_ptr()
            if first < second + extents[j, m] and second < first + extents[i, k] and _share_elements(x, y):
                raise _error(contract, name, other)

    return check


def _pick(argument: Any, index: int) -> torch.Tensor:
    tensor: torch.Tensor = argument[index] if isinstance(argument, list | tuple) else argument
    return tensor


def _extent(tensor: torch.Tensor) -> int:
    """The bytes from the first to the last element of a non-empty tensor."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


class _Memory:
    """A tensor's addresses as an array, on any device: nothing reads them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False), "shape": tuple(tensor.shape), "typestr": f"|V{size}", "version": 3,
            "strides": tuple(size * s for s in tensor.stride()),
        }  # fmt: skip


def _share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.device != b.device:
        return False
    try:
        return np.shares_memory(np.asarray(_Memory(a)), np.asarray(_Memory(b)), max_work=_MOST_WORK)  # type: ignore[arg-type]  # NumPy's stubs know 0 and -1 only
    except np.exceptions.TooHardError:
        return True


def _error(contract: Contract, name: str, other: str) -> ArgumentError:
    mutated = {contract.signature.arguments[i].name for i in contract.signature.mutated}
    written, read = (name, other) if name in mutated else (other, name)
    return ArgumentError(
        f"{contract.qualname}: the argument {written!r} is written, and shares memory with {read!r}",
        fix=f"pass a copy for one of them: {read}.clone()",
    )
