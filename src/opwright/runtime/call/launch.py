"""A kernel's function made ready for calls: with the right GPU as the current one, and a tuple for a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opwright.internals.cuda import current_device

__all__ = ["prepare_launch"]

Launch = Callable[..., Any]


def prepare_launch(launch: Launch, device: int | None, *, returns_tuple: bool) -> Launch:
    """The function of a kernel as an operator calls it.

    Args:
        device: the GPU of a call's tensors; None where they are elsewhere.
        returns_tuple: whether the operator has several outputs.
    """
    if device is not None:
        return _on_device(launch, device)
    return _tuple_for_list(launch) if returns_tuple else launch


def _on_device(launch: Launch, device: int) -> Launch:
    """With a GPU as the current one, as a launcher launches on the current device's current stream; and with a tuple
    for a list, in the same frame."""

    def launch_there(*arguments: Any) -> Any:
        if current_device() == device:
            result = launch(*arguments)
        else:
            with torch.cuda.device(device):
                result = launch(*arguments)
        return tuple(result) if isinstance(result, list) else result

    return launch_there


def _tuple_for_list(launch: Launch) -> Launch:
    """A list would pass through a direct call, and torch.ops gives a tuple."""

    def launch_for_tuple(*arguments: Any) -> Any:
        result = launch(*arguments)
        return tuple(result) if isinstance(result, list) else result

    return launch_for_tuple
