"""The results of ``opwright bench --calls``: what a call costs the host, in each way to call an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opwright.results.bench import Estimate

__all__ = ["CallTime", "CallsReport", "OperatorCalls"]


@dataclass(frozen=True)
class CallTime:
    """The host time of one call, in microseconds.

    Attributes:
        way: how it was called: ``operator``, ``torch.ops``, ``kernel triton``, …
        ratio: the time divided by that of ``yardstick``, a call of ``torch.add`` of the same kind.
    """

    way: str
    us: Estimate
    yardstick: str
    ratio: float


@dataclass(frozen=True)
class OperatorCalls:
    """The ways to call one operator with one case.

    Attributes:
        case: dims by name, and ``dtype``.
        kernel: the kernel that a call runs.
        yardsticks: ``torch.add`` of 1,024 float32 elements: plain, with a recorded gradient, with its backward.
        steps: the parts of a call of the operator; empty if such calls have no guard, so that each is checked again.
    """

    op: str
    kernel: str
    device: str
    case: dict[str, Any]
    yardsticks: tuple[CallTime, ...]
    ways: tuple[CallTime, ...]
    steps: tuple[CallTime, ...]


@dataclass(frozen=True)
class CallsReport:
    """What ``ow.bench_calls`` returns; ``to_json`` is what ``--json`` writes."""

    machine: dict[str, Any]
    operators: tuple[OperatorCalls, ...]
    errors: tuple[str, ...] = ()
    schema: str = "opwright.calls/1"

    def to_json(self) -> dict[str, Any]:
        """The report as plain lists, dictionaries, strings and numbers."""
        from opwright.results.json_form import to_json

        return {"schema": self.schema, **to_json(self)}
