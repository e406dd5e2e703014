"""The reference of all ranks as one computation, whose arguments and results are those of each rank in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from opwright.checks.comparison.difference import ErrorSizes
from opwright.checks.comparison.operations import Operations
from opwright.checks.comparison.rounding import to_double
from opwright.checks.comparison.tolerance import Computation

__all__ = ["Evaluation", "JointComputation", "OfRank", "Question"]


@dataclass(frozen=True)
class Question:
    """What the ranks of the reference compute.

    Attributes:
        how: ``rounded``, ``exact``, ``operations`` (what it consists of), ``perturbed`` or ``terms``.
        needs: by which tensors it is differentiated; None for the reference itself.
        number: the same for all questions about one computation.
    """

    how: str
    needs: tuple[bool, ...] | None = None
    number: int = 0
    coarsest: float = 0.0
    finest: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Evaluation:
    """The answer of one rank."""

    results: tuple[torch.Tensor, ...] = ()
    # Of "operations": for each result the eps of its last step, and whether torch ran any; and of "terms".
    ends: tuple[float, ...] = ()
    are_seen: bool = False
    terms: int = 1


class Ask(Protocol):
    def __call__(self, question: Question, arguments: Sequence[Any], /) -> list[Evaluation]:
        """The answer of each rank. Raises what the reference does."""


@dataclass
class JointComputation(Computation):
    """The reference, or its VJP, in every rank; ``arguments`` has those of each rank, ``run`` is not used."""

    ask: Ask = None  # type: ignore[assignment]  # always given
    question: Question = field(default_factory=lambda: Question(""))

    def _evaluate(self, how: str, **options: Any) -> list[Evaluation]:
        asked = Question(how, self.question.needs, self.question.number, **options)
        return self.ask(asked, self.arguments)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of results of each rank."""
        return tuple(len(each.results) for each in self._rounded)

    @cached_property
    def _rounded(self) -> list[Evaluation]:
        return self._evaluate("rounded")

    @cached_property
    def rounded(self) -> tuple[torch.Tensor, ...]:
        return tuple(t for each in self._rounded for t in each.results)

    @cached_property
    def exact(self) -> tuple[torch.Tensor, ...]:
        found = [t for each in self._evaluate("exact") for t in each.results]
        return tuple(e if e.shape == r.shape else to_double(r) for e, r in zip(found, self.rounded, strict=True))

    @cached_property
    def _operations(self) -> Operations:
        found = self._evaluate("operations")
        ends = tuple(end for each in found for end in each.ends)
        return Operations(ends=ends, are_seen=any(each.are_seen for each in found))

    def _results_with_errors(self, finest: float, seed: int) -> tuple[torch.Tensor, ...]:
        _ = self._operations  # which the ranks keep
        found = self._evaluate("perturbed", coarsest=self._coarsest, finest=finest, seed=seed)
        return tuple(t for each in found for t in each.results)

    @classmethod
    def of(cls, ask: Ask, question: Question, arguments: Sequence[Any]) -> JointComputation:
        def terms(i: int) -> int:
            return found._terms

        def run(_: Any) -> Sequence[torch.Tensor]:
            raise NotImplementedError("only the ranks together compute it")

        found = cls(run, list(arguments), terms, ask=ask, question=question)
        return found

    @cached_property
    def _terms(self) -> int:
        ranks = len(self.arguments)
        return ranks + max(each.terms for each in self._evaluate("terms"))


@dataclass
class OfRank:
    """The part of one rank in a joint computation, as comparisons of one process take it."""

    joint: JointComputation
    rank: int
    is_hasty: bool = False

    @cached_property
    def _first(self) -> int:
        return sum(self.joint.counts[: self.rank])

    @property
    def rounded(self) -> tuple[torch.Tensor, ...]:
        return self.joint.rounded[self._first : self._first + self.joint.counts[self.rank]]

    @property
    def exact(self) -> tuple[torch.Tensor, ...]:
        return self.joint.exact[self._first : self._first + self.joint.counts[self.rank]]

    @property
    def defines_infinities(self) -> bool:
        return self.joint.defines_infinities

    def wrong(self, i: int, got: torch.Tensor, sizes: ErrorSizes | None = None) -> torch.Tensor:
        return self.joint.wrong(self._first + i, got, sizes)

    def allowed(self, i: int) -> torch.Tensor:
        return self.joint.allowed(self._first + i)

    def all_allowed(self, i: int) -> torch.Tensor:
        return self.joint.all_allowed(self._first + i)
