"""The runs of a kernel that are kept for the checks after the one that made them."""

from __future__ import annotations

from opwright import tree
from opwright.checks.observation import Observation, SkippedCase
from opwright.contract.inputs.case import Case

__all__ = ["KeptRuns"]

# The maximum number of elements in the observations that are kept.
_MOST_KEPT = 1 << 23


class KeptRuns:
    """The latest runs, as many as have so many elements."""

    def __init__(self) -> None:
        self._runs: dict[Case, Observation | SkippedCase] = {}
        self._weights: dict[Case, int] = {}

    def get(self, case: Case) -> Observation | SkippedCase | None:
        return self._runs.get(case)

    def named(self, case: str) -> Observation | SkippedCase | None:
        """The run of a case by its text."""
        return next((run for one, run in self._runs.items() if str(one) == case), None)

    def keep(self, case: Case, run: Observation | SkippedCase) -> None:
        self._runs[case], self._weights[case] = run, _weight(run)
        while len(self._runs) > 1 and sum(self._weights.values()) > _MOST_KEPT:
            oldest = next(iter(self._runs))
            del self._runs[oldest], self._weights[oldest]


def _weight(found: Observation | SkippedCase) -> int:
    """The number of elements of arguments and results that an observation keeps."""
    if isinstance(found, SkippedCase):
        return 0
    return sum(t.numel() for t in tree.tensors([list(found.arguments), list(found.expected)]))
