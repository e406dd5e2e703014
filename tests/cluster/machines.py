"""A cluster of Ray on this machine that has two machines to run items on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from opwright.cluster import RayCluster

__all__ = ["two_machines"]


@contextlib.contextmanager
def two_machines(first: Path, second: Path) -> Iterator[RayCluster]:
    """Two machines with one processor and a cache folder each, one of them with a GPU that is none; and one that only
    leads them."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        resources = {"accelerator_type:FAKE": 1}
        made.add_node(num_cpus=1, num_gpus=1, resources=resources, env_vars={"OPWRIGHT_CACHE_DIR": str(first)})
        made.add_node(num_cpus=1, env_vars={"OPWRIGHT_CACHE_DIR": str(second)})
        made.wait_for_nodes()
        with RayCluster(made.address) as executor:
            yield executor
    finally:
        made.shutdown()
