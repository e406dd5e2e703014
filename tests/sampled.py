"""Families of tests that are too many for each run: some of them run with the slow tests, all of them on request."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import Any

import pytest

__all__ = ["half_of", "quick", "sampled"]

_PARAM = type(pytest.param())


def sampled(values: Sequence[Any], every: int, also: Collection[Any] = ()) -> list[Any]:
    """Values of one parameter of which each of ``every`` runs, and those in ``also``; ``pytest -m exhaustive`` runs the
    others. Those of several parameters are each a ``pytest.param``.
    """
    return [
        value
        if i % every == 0 or value in also
        else _marked(value if isinstance(value, _PARAM) else (value,), pytest.mark.exhaustive)
        for i, value in enumerate(values)
    ]


def quick(values: Collection[Any], *at: int, every: int = 0) -> list[Any]:
    """Parameters of which those at these places, and each of ``every``, run by default, and the others with the slow
    tests.

    For families of which each takes about a second, and some ask the same as the others: one wrong kernel and one right
    one, say.
    """
    places = {place % len(values) for place in at} | {i for i in range(len(values)) if every and i % every == 0}
    return [value if i in places else _marked(value, pytest.mark.slow) for i, value in enumerate(values)]


def half_of(test: str) -> int:
    """The half, 0 or 1, in which a test runs: that of its file, as the tests of one share what takes long to make."""
    return zlib.crc32(test.partition("::")[0].encode()) % 2


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    if isinstance(value, _PARAM):
        return pytest.param(*value.values, marks=[*value.marks, mark], id=value.id)
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
