"""How many ranks a check of an operator that communicates has."""

from __future__ import annotations

import os
from typing import Any

from opwright.checks.ranks import dtensor, gradients_of_ranks, ranks
from opwright.checks.scheduling.plan import Task
from opwright.checks.scheduling.verdict import Settings
from opwright.machine import this_machine

__all__ = ["count_of_ranks", "ranks_of"]

# The ranks of an operator that communicates, if no number is given: the fewest of which each has another one.
_USUAL_RANKS = 2


def count_of_ranks(task: Task, settings: Settings) -> int:
    """How many ranks check an operator: one that communicates, or any if ranks are asked for; 0 for none."""
    communicates = bool(task.op.contract.signature.groups)
    needed_by = {ranks.NAME, gradients_of_ranks.NAME} if communicates else {dtensor.NAME}
    if not (communicates or settings.ranks) or (settings.checks and not needed_by & set(settings.checks)):
        return 0
    return settings.ranks or _USUAL_RANKS


def ranks_of(task: Task, settings: Settings) -> dict[str, Any]:
    """How many ranks check an operator on this machine, or why there are none."""
    count, gpus = count_of_ranks(task, settings), _count_of_gpus()
    if task.target.device == "cuda" and gpus < count:
        return {"why_no_ranks": f"{count} ranks need {count} GPUs, and this machine has {gpus}"}
    return {"ranks": count} if count else {}


def _count_of_gpus() -> int:
    """Those that this item may use: a cluster gives others to each, and what is known of the machine is older."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(this_machine().gpus) if visible is None else len([name for name in visible.split(",") if name])
