"""What tests of recorded gradients share: the recorders that are made, and what they have recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from opwright.fast_path import recorded_gradient
from opwright.fast_path.extension import fast_calls_extension
from opwright.fast_path.recorded_gradient import GradientRecorder

__all__ = ["noted_recorders", "nothing_in_python", "recordings"]


def noted_recorders(monkeypatch: pytest.MonkeyPatch) -> list[GradientRecorder]:
    """The recorders that are made from now on, which record the first gradient that they see."""
    monkeypatch.setattr(recorded_gradient, "_GRADIENTS_BEFORE", 1)
    made: list[GradientRecorder] = []
    original = GradientRecorder.__init__

    def noted(self: GradientRecorder, *arguments: Any) -> None:
        original(self, *arguments)
        made.append(self)

    monkeypatch.setattr(GradientRecorder, "__init__", noted)
    return made


def recordings(recorders: Sequence[GradientRecorder]) -> int:
    return sum(len(each.recordings) for each in recorders)


def nothing_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a gradient that Python computes is an error."""
    assert fast_calls_extension.loaded is not None
    fast_calls_extension.loaded.verify(first=0)
    monkeypatch.setattr(GradientRecorder, "see", None)
