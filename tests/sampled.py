"""Families of tests that are too many for each run: some of them run with the slow tests, all of them on request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

__all__ = ["sampled"]


def sampled(values: Sequence[Any], every: int, also: Collection[Any] = ()) -> list[Any]:
    """Parameters of which each of ``every`` runs, and those in ``also``; ``pytest -m exhaustive`` runs the others."""
    return [
        value if i % every == 0 or value in also else pytest.param(value, marks=pytest.mark.exhaustive)
        for i, value in enumerate(values)
    ]
