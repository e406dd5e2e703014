"""Prepares a kernel's function for calls: sets the current GPU, and converts a list to a tuple."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opwright.internals.cuda import current_device

__all__ = ["prepare_launch"]

Launch = Callable[..., Any]


def prepare_launch(launch: Launch, device: int | None, *, returns_tuple: bool) -> Launch:
    """The function of a kernel in the form that an operator calls.

    Args:
        device: the GPU of a call's tensors; None if they are on another device.
        returns_tuple: whether the operator has several outputs.
    """
    if device is not None:
        return _on_device(launch, device)
    return _tuple_for_list(launch) if returns_tuple else launch


def _on_device(launch: Launch, device: int) -> Launch:
    """Set the current GPU, because a launcher launches on the current device's current stream, and convert a list to a
    tuple in the same frame."""

    def launch_there(*arguments: Any) -> Any:
        if current_device() == device:
            result = launch(*arguments)
        else:
            with torch.cuda.device(device):
                result = launch(*arguments)
        return tuple(result) if isinstance(result, list) else result

    return launch_there


def _tuple_for_list(launch: Launch) -> Launch:
    """Convert a list to a tuple, as torch.ops does."""

    def launch_for_tuple(*arguments: Any) -> Any:
        result = launch(*arguments)
        return tuple(result) if isinstance(result, list) else result

    return launch_for_tuple
