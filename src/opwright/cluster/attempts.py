"""Counts how often a work item was lost and where, and says when to try again and what stands in place of a result.

It knows nothing of Ray, so that its rules are tested without a cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["RETRIES", "Attempts", "Loss", "LossKind"]

# A work item that was lost is tried again so many times.
RETRIES = 3
# A work item under which so many machines have died is not tried on another one.
_MOST_MACHINES = 2


class LossKind(Enum):
    """What was lost with a work item: the worker that ran it, the whole machine; or the machine was unfit to run it."""

    WORKER = "its worker died"
    MACHINE = "the machine died"
    UNFIT = "the machine was unfit"


@dataclass(frozen=True)
class Loss:
    """One attempt that gave no result.

    Attributes:
        host, step: where it ran and what it did then, as far as that is known.
        node: Ray's name of the node.
    """

    kind: LossKind
    why: str
    node: str = ""
    host: str = ""
    step: str = ""

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host else ""
        step = f" at {self.step!r}" if self.step and self.kind is not LossKind.UNFIT else ""
        return f"{self.kind.value}{where}{step}: {self.why}"


@dataclass
class Attempts:
    """The attempts to run one item, or those of all parts of one."""

    losses: list[Loss] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Of the present attempt, from 0."""
        return len(self.losses)

    @property
    def nodes_to_avoid(self) -> set[str]:
        """Where it was lost before."""
        return {loss.node for loss in self.losses if loss.node}

    def see_dead_machines(self, alive: Set[str]) -> None:
        """A worker whose machine is gone died with it. The cluster notices that some seconds later."""
        for number, loss in enumerate(self.losses):
            if loss.kind is LossKind.WORKER and loss.node and loss.node not in alive:
                self.losses[number] = dataclasses.replace(loss, kind=LossKind.MACHINE)

    @property
    def is_over(self) -> bool:
        """Whether it is not tried again."""
        return self.has_ended_machines or len(self.losses) > RETRIES

    @property
    def has_ended_machines(self) -> bool:
        """Whether so many died that no other one is to be tried."""
        return len(self._dead_machines) >= _MOST_MACHINES

    @property
    def _dead_machines(self) -> set[str | int]:
        """Each once, also if several parts of one item ran on it."""
        return {loss.node or number for number, loss in enumerate(self.losses) if loss.kind is LossKind.MACHINE}

    def describe(self) -> str:
        """The losses in words, for the item's verdict."""
        deaths = [loss for loss in self.losses if loss.kind is not LossKind.UNFIT]
        if self.has_ended_machines:
            text = f"{len(self._dead_machines)} machines died while they ran it, so it is tried on no other one"
        elif len(deaths) >= 2:
            text = f"the workers or machines that ran it died {len(deaths)} times"
        else:
            text = f"it was tried {len(self.losses)} times without a result"
        return text + "".join(f"\n  {loss}" for loss in self.losses)

    def remedy(self) -> str:
        """What to do about them."""
        if all(loss.kind is LossKind.UNFIT for loss in self.losses):
            return "repair these machines, or take them out of the cluster"
        return "run it on this machine, without --ray, to see what it does"
