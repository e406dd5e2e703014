"""Sweeps on several machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opwright.cluster.ray_cluster import RayCluster

__all__ = ["RayCluster"]


def __getattr__(name: str) -> Any:
    # Lazily, as Ray's actors import this package, and need no torch.
    if name == "RayCluster":
        from opwright.cluster.ray_cluster import RayCluster

        return RayCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
