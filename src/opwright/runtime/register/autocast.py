"""An operator's behaviour under ``torch.autocast``: a policy, as in torch's own lists of operators.

Without a policy the arguments are unchanged. ``lower`` casts floating arguments to autocast's own dtype, as
for a matrix product; ``float32`` casts those of a lower precision up, as for a loss; ``promote`` casts all to the
widest among them. float64 is not changed, except that ``promote`` may widen to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from opwright import tree
from opwright.contract.contract import Contract
from opwright.internals.autograd import without_autocast

__all__ = ["KEYS", "kernel_for_autocast"]

# The dispatch key of each type of device.
KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def kernel_for_autocast(contract: Contract, overload: Any, device_type: str) -> Callable[..., Any]:
    """The kernel for a dispatch key of ``KEYS``: casts by the contract's policy, and continues without autocast."""
    policy = _POLICIES[contract.autocast or ""]

    def cast(*args: Any, **keywords: Any) -> Any:
        floating = [t for t in tree.leaves(args) if _is_floating(t, device_type)]
        dtype = policy(floating, device_type)
        one = functools.partial(_cast, dtype=dtype, device_type=device_type, widen=contract.autocast == "promote")
        with without_autocast(device_type):
            return overload(*tree.map_leaves(one, args), **keywords)

    return cast


def _cast(value: Any, *, dtype: torch.dtype, device_type: str, widen: bool) -> Any:
    if not _is_floating(value, device_type) or (value.dtype == torch.float64 and not widen):
        return value
    return value.to(dtype)


def _is_floating(value: Any, device_type: str) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.device.type == device_type


def _lower(tensors: list[torch.Tensor], device_type: str) -> torch.dtype:
    return torch.get_autocast_dtype(device_type)


def _float32(tensors: list[torch.Tensor], device_type: str) -> torch.dtype:
    return torch.float32


def _widest(tensors: list[torch.Tensor], device_type: str) -> torch.dtype:
    return functools.reduce(torch.promote_types, (t.dtype for t in tensors), torch.get_autocast_dtype(device_type))


_POLICIES = {"lower": _lower, "float32": _float32, "promote": _widest}
