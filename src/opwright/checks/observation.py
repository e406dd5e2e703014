"""A case with its arguments, and one run of the kernel: what checkers examine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import Call
from opwright.contract.inputs.case import Case

__all__ = ["Observation", "Prepared", "SkippedCase", "copy_of", "to_cpu"]


@dataclass(frozen=True)
class SkippedCase:
    """A case for which the reference or the kernel is not defined, so that there is nothing to compare.

    Attributes:
        is_too_large: whether the kernel cannot be built or launched for its sizes, but may be for smaller ones.
        is_overflow: whether a simulator has seen that an offset overflows.
    """

    why: str
    is_too_large: bool = False
    is_overflow: bool = False


@dataclass
class Prepared:
    """A case that can be run: the arguments, and what the reference returns for them, on the CPU.

    Attributes:
        compute: gives the reference's computation, the same each time. The process in which the kernel runs asks for it
            only where it compares.
    """

    case: Case
    arguments: tuple[Any, ...]
    compute: Callable[[], Computation]

    @property
    def reference(self) -> Computation:
        return self.compute()

    @property
    def expected(self) -> tuple[torch.Tensor, ...]:
        """The reference's results in the case's own dtypes."""
        return self.reference.rounded


@dataclass
class Observation(Prepared):
    """One run of the kernel: its arguments as they were before the run, its outputs, and the reference's outputs.

    Attributes:
        before: contiguous copies of the arguments.
        outputs: the kernel's outputs, followed by the mutated arguments; or the exception that it raised.
        call: what else the call did.
    """

    before: tuple[Any, ...]
    outputs: tuple[Any, ...] | Raised
    call: Call | None = None


def to_cpu(values: Any) -> Any:
    """Tensors copied to the CPU, with their layout."""
    return tree.map_tensors(lambda t: t.detach().cpu(), values)


def copy_of(values: Any) -> Any:
    """Tensors copied (contiguous), for comparison after the run."""
    return tree.map_tensors(lambda t: t.detach().clone(), values)
