"""DTensors for which torch has no placements: they are gathered, and every process computes the whole."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright import tree

__all__ = ["are_distributed", "has_no_placements", "on_whole_tensors"]


def are_distributed(values: Sequence[Any]) -> bool:
    """Whether there is a DTensor among some values."""
    tensor = sys.modules.get("torch.distributed.tensor")  # if it is not imported, there are none
    return tensor is not None and any(isinstance(v, tensor.DTensor) for v in tree.leaves(list(values)))


def has_no_placements(error: NotImplementedError) -> bool:
    """Whether DTensor raised it for an operation that it cannot place. A custom rule that accepts none of some
    placements raises something else."""
    return "does not have a sharding strategy registered" in str(error)


def on_whole_tensors(qualname: str, run: Callable[..., Any], values: Sequence[Any]) -> Any:
    """What ``run`` gives on gathered DTensors, as DTensors that every process has whole. No gradient flows through."""
    from torch.distributed.tensor import DTensor, Replicate

    warnings.warn(
        f"{qualname}: torch has no placements for it on DTensors, so they are gathered, and every process computes the "
        "whole; state placements with op.register_sharding",
        stacklevel=2,
    )
    mesh = next(v.device_mesh for v in tree.leaves(list(values)) if isinstance(v, DTensor))
    everywhere = [Replicate()] * mesh.ndim
    with torch.no_grad():
        whole = tree.map_only(DTensor, lambda t: t.redistribute(mesh, everywhere).to_local(), list(values))
        found = run(*whole)
        return tree.map_tensors(lambda t: DTensor.from_local(t, mesh, everywhere, run_check=False), found)
