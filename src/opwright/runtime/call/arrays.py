"""Calls of an operator on arrays, of NumPy or of another library that shares its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.backends.numpy.arrays import borrow, is_array
from opwright.contract.contract import Contract

__all__ = ["call_on_arrays", "holds_arrays", "traced_on_arrays"]


def holds_arrays(arguments: Sequence[Any]) -> bool:
    """Whether a call's arguments, or lists among them, contain arrays."""
    return any(
        is_array(a) or (isinstance(a, list | tuple) and bool(a) and is_array(a[0]))
        for a in arguments
        if not isinstance(a, torch.Tensor)
    )


def call_on_arrays(call: Callable[..., Any], contract: Contract, arguments: Sequence[Any]) -> Any:
    """Call an operator on tensors that share the arrays' memory; results share memory with the kernel's outputs."""
    leaves = tree.leaves(list(arguments))
    borrowed = borrow(leaves, None, contract.qualname, functional=True)
    on_tensors = tree.rebuild(list(arguments), borrowed.leaves)
    result = contract.signature.call(call, on_tensors)
    return tree.map_tensors(borrowed.give_back, result)


def traced_on_arrays(overload: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call an operator within a graph of NumPy code that torch.compile traces, with arrays as arguments and results."""
    leaves = tree.leaves((args, kwargs))
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return overload(*args, **kwargs)
    args, kwargs = tree.map_only(np.ndarray, torch.as_tensor, (args, kwargs))
    return tree.map_tensors(lambda tensor: tensor.numpy(), overload(*args, **kwargs))
