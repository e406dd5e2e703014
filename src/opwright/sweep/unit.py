"""A unit of a sweep: one piece of work that can be run by itself, on this machine or on another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

__all__ = ["Done", "Needs", "OnStep", "Result", "Unit", "no_step"]

Result = TypeVar("Result", covariant=True)
# Called with a unit and what it does now.
OnStep = Callable[[Any, str], None]


@dataclass(frozen=True)
class Needs:
    """What a unit takes of a machine.

    Attributes:
        here: nothing; it is run where the sweep was planned.
        gpu: one GPU, or several of one machine; else one processor.
        gpus: how many. Where no machine has so many, it gets one.
        gpu_type: only a GPU of this type, by the name that the executor lists; empty for any.
        alone: nothing else runs on that GPU meanwhile; without ``gpu``, nothing else on that machine. For times.
        subject: of which several units are parts. If machines die under one of them, none of them runs on others.
    """

    here: bool = False
    gpu: bool = False
    gpus: int = 1
    gpu_type: str = ""
    alone: bool = False
    subject: str = ""


class Unit(Protocol[Result]):
    """One piece of a sweep. It can be pickled; the operators in it are sent as ``cluster`` sends them.

    Attributes:
        name: what progress shows.
        key: a digest of all that the result follows from, but for versions and machine: sources, settings, which piece.
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
        """What stands in its place when no machine could finish the unit."""
        ...


@dataclass(frozen=True)
class Done:
    """A unit that is over.

    Attributes:
        number: its place among the units of the sweep.
        result: of the unit's ``kind``.
        lost: whether it is what stands in place of a result.
    """

    number: int
    result: Any
    lost: bool = False


def no_step(unit: Any, what: str) -> None:
    """Show nothing."""
