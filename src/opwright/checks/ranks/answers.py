"""What the ranks of a group answer, and how they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from opwright.checks.exceptions import Raised
from opwright.checks.ranks.joint import Evaluation, Question
from opwright.workers.wire import NotATensor

__all__ = ["RankAnswer", "RankError", "Ranks"]


class RankError(Exception):
    """The ranks cannot be asked. ``of_kernel``: because of what the kernel did."""

    def __init__(self, message: str, *, of_kernel: bool = False) -> None:
        super().__init__(message)
        self.of_kernel = of_kernel


@dataclass(frozen=True)
class RankAnswer:
    """What one call of the kernel gave on one rank.

    Attributes:
        outputs: the results, or gradients, on the CPU; or the exception that was raised.
        wrong: what is wrong with gradients; ``undefined`` if that is the reference's.
        fence: torch's words, if another rank was in a collective when this one had returned.
        unwaited: the number of collectives that nothing has waited for.
        hung: where the rank was when its time was over; ``communicates``: in a collective.
        ended: how its process ended.
    """

    outputs: tuple[torch.Tensor | NotATensor | None, ...] | Raised = ()
    wrong: str = ""
    undefined: bool = False
    fence: str = ""
    unwaited: int = 0
    hung: str | None = None
    communicates: bool = False
    ended: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the rank answers no more."""
        return bool(self.ended) or self.hung is not None


class Ranks(Protocol):
    """The processes of a group. Arguments, and answers, are listed by rank."""

    size: int

    def groups(self) -> list[str]:
        """Start them, if they have not been started; the name of the group in each. Raises RankError."""

    def chosen(self, arguments: Sequence[Any]) -> list[str]:
        """The name of the kernel that each would run."""

    def results(self, arguments: Sequence[Any]) -> list[RankAnswer]:
        """What the kernel returns on each rank, followed by the arguments that it has written."""

    def gradients(
        self, arguments: Sequence[Any], tracked: Sequence[bool], incoming: Sequence[Sequence[torch.Tensor | None]]
    ) -> list[RankAnswer]:
        """The gradients of tracked tensors on each rank."""

    def start(self) -> None:
        """Start those of the kernel, which need no reference. Raises RankError."""

    def sharded(
        self,
        arguments: Sequence[Any],
        axes: Sequence[int | None],
        tracked: Sequence[bool],
        incoming: Sequence[torch.Tensor | None],
    ) -> list[RankAnswer]:
        """What the operator gives if its arguments are sharded along some axes, put together on each rank: results and
        then gradients of tracked tensors."""

    def evaluate(self, question: Question, arguments: Sequence[Any]) -> list[Evaluation]:
        """What the reference gives on each rank. Raises what it raises on one of them."""
