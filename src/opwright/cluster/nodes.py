"""The machines of a cluster, and what a work item asks Ray for, so that it runs on the right one undisturbed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from opwright.machine import Machine
from opwright.sweep.work_item import Needs

__all__ = ["Node", "can_run", "cores_for", "options_for", "units_at_a_time"]

_TYPE = "accelerator_type:"


@dataclass(frozen=True)
class Node:
    """One machine.

    Attributes:
        id: Ray's name of it.
        cpus, gpus: how many Ray gives to tasks.
        gpu_type: the type of its GPUs, as Ray names it; empty without one.
    """

    id: str
    host: str
    machine: Machine
    cpus: int
    gpus: int
    gpu_type: str = ""

    @classmethod
    def of(cls, node: str, host: str, machine: Machine, resources: Mapping[str, float]) -> Node:
        """From the resources that Ray lists."""
        gpu_type = next((name.removeprefix(_TYPE) for name in sorted(resources) if name.startswith(_TYPE)), "")
        return cls(node, host, machine, int(resources.get("CPU", 0)), int(resources.get("GPU", 0)), gpu_type)


def can_run(needs: Needs, nodes: Sequence[Node]) -> bool:
    """Whether there is a machine for a work item, with as many GPUs as it asks for."""
    return any(_suits(node, needs) for node in nodes)


def options_for(needs: Needs, nodes: Sequence[Node], avoid: Set[str]) -> dict[str, Any]:
    """The options of a task of Ray.

    Args:
        avoid: names of nodes on which the item was lost before. They are taken again if there is no other.
    """
    if not can_run(needs, nodes):
        needs = dataclasses.replace(needs, gpus=1)
    options: dict[str, Any] = {"num_cpus": _cpus(needs, nodes), "num_gpus": needs.gpus if needs.gpu else 0}
    if needs.gpu_type:
        options["resources"] = {f"{_TYPE}{needs.gpu_type}": 0.001}
    suited = [node for node in nodes if _suits(node, needs)]
    if avoid and any(node.id not in avoid for node in suited):
        options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(avoid))})"}
    return options


def cores_for(needs: Needs, nodes: Sequence[Node]) -> int:
    """The cores that a work item may use while others run on the same machine: one, or those of its GPU."""
    shares = [node.cpus // node.gpus for node in nodes if _suits(node, needs)] if needs.gpu else []
    return max(1, min(shares, default=1))


def units_at_a_time(needs: Needs, nodes: Sequence[Node]) -> list[int]:
    """How many items each machine runs at a time that need not be alone."""
    return [(node.gpus // needs.gpus if needs.gpu else node.cpus) if _suits(node, needs) else 0 for node in nodes]


def _suits(node: Node, needs: Needs) -> bool:
    has_it = node.gpus >= needs.gpus if needs.gpu else node.cpus > 0
    return has_it and needs.gpu_type in ("", node.gpu_type)


def _cpus(needs: Needs, nodes: Sequence[Node]) -> int:
    """A work item that is timed gets what else would run beside it: all processors of a machine, or its GPU's share."""
    if not needs.gpu:
        return max(1, *(node.cpus for node in nodes)) if needs.alone else 1
    share = min((node.cpus // node.gpus for node in nodes if _suits(node, needs)), default=0)
    return share if needs.alone else min(1, share)
