"""Makes workers ready for checks before their first item: a task of Ray, which imports no torch before it has begun.

The first check in a worker waits for torch twice, in the worker and in the process that kernels' processes are forked
from. A task for each worker does both at the same time, while the command still plans.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from opwright.cluster.artifacts import serve_artifacts
from opwright.workers import pool
from opwright.workers.spawn import prestart

__all__ = ["warm", "warm_tasks"]

# Workers of a machine without GPUs that are made ready; a sweep of more items makes the others so itself.
_MOST = 8


def warm(store: Any) -> None:
    """What a worker does once: it imports what items need, starts its fork server, and lets it use its GPU."""
    serve_artifacts(store)  # sets a variable that is part of the server's environment
    prestart()
    importlib.import_module("opwright.cluster.worker")
    pool.warm_up()


def warm_tasks(resources: Mapping[str, float]) -> list[dict[str, Any]]:
    """The options of such tasks on a machine with these resources: together, they take all its places for items."""
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    if gpus:
        return [{"num_gpus": 1, "num_cpus": int(cpus >= gpus)}] * gpus
    return [{"num_gpus": 0, "num_cpus": 1}] * min(cpus, _MOST)
