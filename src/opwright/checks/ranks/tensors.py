"""An operator on DTensors, in one rank. Imported only there: ``torch.distributed.tensor`` takes a second, and processes
that others are forked from must not use what it may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from opwright.runtime.op import Op

__all__ = ["run_sharded"]


def run_sharded(
    operator: Op,
    mesh: DeviceMesh,
    arguments: Sequence[Any],
    axes: Sequence[int | None],
    tracked: Sequence[bool],
    incoming: Sequence[torch.Tensor | None],
) -> list[torch.Tensor | None]:
    """The results, and the gradients of tracked tensors, put together.

    Args:
        arguments: whole, the same on each rank.
        axes: along which each is sharded; None for those that are replicated.
        incoming: a gradient for each result that is differentiated.
    """
    remaining = iter(tracked)
    values = [
        _distributed(value, axis, mesh).requires_grad_(next(remaining)) if isinstance(value, torch.Tensor) else value
        for value, axis in zip(arguments, axes, strict=True)
    ]
    contract = operator.contract
    results = contract.unpack(contract.signature.call(operator.with_saved, values))[: contract.signature.visible]
    whole: list[torch.Tensor | None] = [_whole(result) for result in results]
    wanted = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
    pairs = [(o, g) for o, g in zip(whole, incoming, strict=False) if o is not None and g is not None]
    if not wanted:
        return whole
    found = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
    return [*whole, *(None if grad is None else _whole(grad) for grad in found)]


def _distributed(tensor: torch.Tensor, axis: int | None, mesh: DeviceMesh) -> DTensor:
    place = Replicate() if axis is None else Shard(axis % tensor.dim())
    return distribute_tensor(tensor, mesh, [place])


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
