"""Prepares a kernel's function for calls: sets the current GPU, and converts a list to a tuple."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch.autograd.graph import increment_version

from opwright.contract.contract import Contract
from opwright.contract.signature import Kind, Signature
from opwright.errors import KernelError
from opwright.internals.cuda import current_device

__all__ = ["prepare_launch", "prepare_visible"]

Launch = Callable[..., Any]


def prepare_launch(launch: Launch, device: int | None, signature: Signature) -> Launch:
    """The function of a kernel in the form that an operator calls.

    Args:
        device: the GPU of a call's tensors; None if they are on another device.
        signature: the operator's.
    """
    if device is not None:
        launch = _on_device(launch, device)
    elif signature.returns_tuple:
        launch = _tuple_for_list(launch)
    return _counting_writes(launch, signature) if signature.mutated else launch


def prepare_visible(launch: Launch, contract: Contract) -> Launch:
    """``launch`` without outputs that are saved for the backward."""
    if contract.signature.visible >= len(contract.signature.returns):
        return launch
    return lambda *arguments: contract.visible(launch(*arguments))


def _counting_writes(launch: Launch, signature: Signature) -> Launch:
    """Count what the kernel writes in the tensors' versions: a backward that has saved one of them then says that it
    was modified, rather than use the new values."""
    written, returns_nothing = _picking_written(signature), not signature.returns

    def launch_and_count(*arguments: Any) -> Any:
        result = launch(*arguments)
        if returns_nothing and result is not None:
            raise KernelError(
                f"the kernel returned {type(result).__name__}, but the operator only writes its arguments",
                fix="return nothing",
            )
        increment_version([t for t in written(arguments) if not t.is_inference()])
        return result

    return launch_and_count


def _picking_written(signature: Signature) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
    """``signature.written``, at a fraction of its time where every mutated argument is one tensor."""
    mutated = signature.mutated
    if any(signature.arguments[i].kind is not Kind.TENSOR or signature.arguments[i].optional for i in mutated):
        return signature.written
    if len(mutated) == 1:
        return lambda arguments: (arguments[mutated[0]],)
    return itemgetter(*mutated)


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
