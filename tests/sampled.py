"""Families of tests that are too many for each run: some of them run with the slow tests, all of them on request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

__all__ = ["quick", "sampled"]


def sampled(values: Sequence[Any], every: int, also: Collection[Any] = ()) -> list[Any]:
    """Parameters of which each of ``every`` runs, and those in ``also``; ``pytest -m exhaustive`` runs the others."""
    return [
        value if i % every == 0 or value in also else pytest.param(value, marks=pytest.mark.exhaustive)
        for i, value in enumerate(values)
    ]


def quick(values: Sequence[Any], *at: int) -> list[Any]:
    """Parameters of which those at these places run by default, and the others with the slow tests.

    For families of which each takes about a second, and some ask the same as the others: one wrong kernel and one right
    one, say.
    """
    places = {place % len(values) for place in at}
    return [value if i in places else _slow(value) for i, value in enumerate(values)]


def _slow(value: Any) -> Any:
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, marks=[*value.marks, pytest.mark.slow], id=value.id)
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)
