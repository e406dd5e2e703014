"""A work item of a sweep: work that can be run by itself, on this machine or on another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

__all__ = ["Done", "Needs", "OnStep", "Result", "WorkItem", "no_step"]

Result = TypeVar("Result", covariant=True)
# Called with a work item and what it does now.
OnStep = Callable[[Any, str], None]


@dataclass(frozen=True)
class Needs:
    """What a work item takes of a machine.

    Attributes:
        here: nothing; it is run where the sweep was planned.
        gpu: one GPU, or several of one machine; else one processor.
        gpus: how many. Where no machine has so many, it gets one.
        gpu_type: only a GPU of this type, by the name that the executor lists; empty for any.
        alone: nothing else runs on that GPU meanwhile; without ``gpu``, nothing else on that machine. For times.
        whole: the item of which several are parts. If machines die under one of them, none of them runs on others.
    """

    here: bool = False
    gpu: bool = False
    gpus: int = 1
    gpu_type: str = ""
    alone: bool = False
    whole: str = ""


class WorkItem(Protocol[Result]):
    """One item of a sweep. It can be pickled; the operators in it are sent as ``cluster`` sends them.

    Attributes:
        name: what progress shows.
        key: a digest of all that the result follows from, but for versions and machine: sources, settings, which part.
        kind: the type of the result, a plain record.
    """

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def needs(self) -> Needs: ...

    @property
    def kind(self) -> type[Result]: ...

    def run(self, on_step: Callable[[str], None]) -> Result:
        """The result. What a kernel does wrong is part of it, and raises nothing."""
        ...

    def without_result(self, why: str, remedy: str) -> Result:
        """What stands in its place when no machine could finish the item."""
        ...


@dataclass(frozen=True)
class Done:
    """A work item that is over.

    Attributes:
        number: its place among the items of the sweep.
        result: of the item's ``kind``.
        lost: whether it is what stands in place of a result.
    """

    number: int
    result: Any
    lost: bool = False


def no_step(item: Any, what: str) -> None:
    """Show nothing."""
