"""The results of mutation testing: which small faults in a kernel a check finds, and which it lets live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Fate", "KernelMutation", "Killer", "Mutant", "MutationReport"]


class Fate(StrEnum):
    """What became of a mutant.

    ``KILLED``: a check failed. ``TIMEOUT``: it did not end in time, which counts as killed. ``SURVIVED``: every check
    passed. ``INVALID``: it does not compile. ``EQUIVALENT``: it compiles to the same code as the kernel. ``UNKNOWN``:
    no machine of a cluster could finish its checks.
    """

    KILLED = "killed"
    TIMEOUT = "time-out"
    SURVIVED = "survived"
    INVALID = "invalid"
    EQUIVALENT = "equivalent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Killer:
    """Inputs that tell a survivor from the kernel: the kernel passes on them, and the mutant fails.

    Attributes:
        check: the check that fails.
        case: the case, or a description of the arguments.
        add: how to have such inputs checked from now on.
    """

    check: str
    case: str
    message: str
    add: str


@dataclass(frozen=True)
class Mutant:
    """One changed kernel.

    Attributes:
        operator: the kind of change.
        diff: the changed lines before (``-``) and after (``+``).
        check, case, message: the failure that killed it.
        killer: of a survivor, the inputs that would kill it, if some were found.
    """

    file: str
    line: int
    operator: str
    diff: str
    fate: Fate
    check: str = ""
    case: str = ""
    message: str = ""
    killer: Killer | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class KernelMutation:
    """The mutants of one kernel on one device.

    Attributes:
        possible: how many mutants there are, of which ``mutants`` are a sample.
        not_mutated: code of the kernel that was not changed, and why.
        refused: why there are none: the kernel cannot run here, or does not pass itself.
    """

    op: str
    kernel: str
    backend: str
    device: str
    possible: int = 0
    mutants: tuple[Mutant, ...] = ()
    not_mutated: tuple[str, ...] = ()
    refused: str = ""
    seconds: float = 0.0

    def count(self, *fates: Fate) -> int:
        return sum(m.fate in fates for m in self.mutants)

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        return tuple(m for m in self.mutants if m.fate is Fate.SURVIVED)

    @property
    def score(self) -> float | None:
        """killed / (killed + survived); None if no mutant ran."""
        killed, survived = self.count(Fate.KILLED, Fate.TIMEOUT), self.count(Fate.SURVIVED)
        return killed / (killed + survived) if killed + survived else None


@dataclass(frozen=True)
class MutationReport:
    """The mutants of some kernels; ``to_json`` is what ``--json`` writes.

    Attributes:
        seed: of the sample of mutants.
        partial: why it holds a part of the kernels only; empty if it holds all.
    """

    machine: dict[str, Any]
    kernels: tuple[KernelMutation, ...]
    seed: int = 0
    schema: str = "opwright.mutation/1"
    partial: str = ""

    def __repr__(self) -> str:
        mutants = sum(len(k.mutants) for k in self.kernels)
        return f"<MutationReport: {mutants} mutants of {len(self.kernels)} kernels, {len(self.survivors)} survive>"

    @property
    def ran_anything(self) -> bool:
        return any(k.score is not None for k in self.kernels)

    @property
    def survivors(self) -> tuple[Mutant, ...]:
        return tuple(m for k in self.kernels for m in k.survivors)

    @property
    def unknown(self) -> tuple[Mutant, ...]:
        """Those whose checks were not finished."""
        return tuple(m for k in self.kernels for m in k.mutants if m.fate is Fate.UNKNOWN)

    def __iter__(self) -> Iterator[KernelMutation]:
        return iter(self.kernels)

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists, dictionaries, strings and numbers, with each kernel's score."""
        from opwright.results.json_form import to_json

        scores = [{"score": k.score} for k in self.kernels]
        kernels = [{**to_json(k), **score} for k, score in zip(self.kernels, scores, strict=True)]
        return {"schema": self.schema, **to_json(self), "kernels": kernels}
