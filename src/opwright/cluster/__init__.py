"""Sweeps on several machines."""

from opwright.cluster.ray_cluster import RayCluster

__all__ = ["RayCluster"]
