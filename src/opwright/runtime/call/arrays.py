"""Calls of an operator on arrays, of NumPy or of a library that lends its memory."""

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
    """Whether arrays are among a call's arguments, or in a list among them."""
    return any(
        is_array(a) or (isinstance(a, list | tuple) and bool(a) and is_array(a[0]))
        for a in arguments
        if not isinstance(a, torch.Tensor)
    )


def call_on_arrays(call: Callable[..., Any], contract: Contract, arguments: Sequence[Any]) -> Any:
    """An operator's call on tensors that share the arrays' memory; results share theirs with the kernel's outputs."""
    leaves = tree.leaves(list(arguments))
    borrowed = borrow(leaves, None, contract.qualname, functional=True)
    on_tensors = tree.rebuild(list(arguments), borrowed.leaves)
    result = contract.signature.call(call, on_tensors)
    return tree.map_tensors(borrowed.give_back, result)


def traced_on_arrays(overload: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """An operator within a graph that torch.compile makes of NumPy code, which gives and takes arrays."""
    leaves = tree.leaves((args, kwargs))
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return overload(*args, **kwargs)
    args, kwargs = tree.map_only(np.ndarray, torch.as_tensor, (args, kwargs))
    return tree.map_tensors(lambda tensor: tensor.numpy(), overload(*args, **kwargs))
