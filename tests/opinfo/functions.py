"""The functions of the generated operators: a reference, and kernels that compute the same. Sent to workers by value,
so that this module needs nothing besides torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import TreeSpec, tree_unflatten

__all__ = ["HALVES", "alone", "as_tensors", "bind_constants", "eager_kernel", "fused_kernel"]

HALVES = (torch.float16, torch.bfloat16)
Function = Callable[..., Any]


def bind_constants(function: Function, leaves: Sequence[Any], spec: TreeSpec, slots: Sequence[int]) -> Function:
    """The function of its tensors alone: the other arguments, and how they lie in lists, are those of a sample.

    Args:
        leaves, spec: the flattened (input, args, kwargs) of a sample.
        slots: the places of tensors among the leaves.
    """

    constants = [None if i in slots else leaf for i, leaf in enumerate(leaves)]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(constants)
        for place, tensor in zip(slots, tensors, strict=True):
            filled[place] = tensor
        first, positional, named = tree_unflatten(filled, spec)
        return function(first, *positional, **named)

    return call


def as_tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result. Raises TypeError if it is something else."""
    listed = list(result) if isinstance(result, tuple | list) else [result]
    for value in listed:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"it returns {type(value).__name__}")
        if value.layout is not torch.strided or type(value) not in (torch.Tensor, FakeTensor):
            raise TypeError(f"it returns a tensor of {value.layout} and type {type(value).__name__}")
    return listed


def alone(call: Function) -> Function:
    """A function whose results are tuples of one tensor, giving the tensor."""

    def first(*tensors: torch.Tensor) -> Any:
        result = call(*tensors)
        return result[0] if isinstance(result, tuple) else result

    return first


def _packed(result: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Tensors in the form of a result: alone, in a tuple, or in a list."""
    if isinstance(result, torch.Tensor):
        return tensors[0]
    return list(tensors) if isinstance(result, list) else tuple(tensors)


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    """In memory of its own, contiguous, without pending conjugation, as kernels return their outputs."""
    return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _is_rounded(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _in(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in a dtype; a complex one stays complex."""
    return tensor.to(torch.complex32 if tensor.is_complex() and dtype is torch.float16 else dtype)


def eager_kernel(call: Function) -> Function:
    """As torch computes it on this device, in this dtype."""

    def eager(*tensors: torch.Tensor) -> Any:
        result = call(*tensors)
        return _packed(result, [_fresh(t) for t in as_tensors(result)])

    return eager


def fused_kernel(call: Function, dtypes: Mapping[torch.dtype, Sequence[torch.dtype]]) -> Function:
    """As fused kernels compute: half-precision inputs in float32, and each output rounded once.

    Args:
        dtypes: those of the outputs, by the dtype of the inputs.
    """

    def fused(*tensors: torch.Tensor) -> Any:
        half = next((t.dtype for t in tensors if t.dtype in HALVES), None)
        result = call(*(t.float() if t.dtype in HALVES else t for t in tensors))
        outputs = as_tensors(result)
        if half is not None:
            rounded = list(dtypes[half]) if half in dtypes else []
            rounded += [rounded[-1] if rounded else half] * (len(outputs) - len(rounded))
            outputs = [_in(o, dtype) if _is_rounded(o) else o for o, dtype in zip(outputs, rounded, strict=False)]
        return _packed(result, [_fresh(o) for o in outputs])

    return fused
