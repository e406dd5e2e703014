"""What the passes of Numba's compiler find in a function, and the error by which compiled code stops."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba.core import errors

__all__ = ["DoesNotFit", "Found", "bare", "note_mixture", "note_write", "noting", "refused"]


class DoesNotFit(OverflowError):
    """Compiled code met an integer that does not fit into the dtype that NumPy computes with."""


class _Refused(errors.NumbaError):
    """Narrow integers are used in a way that Numba computes otherwise than NumPy."""


@dataclass
class Found:
    """What the passes have noticed in a function and those that it calls.

    Attributes:
        reasons: where narrow integers are used otherwise than in NumPy, each with its line.
        writes: whether operations were replaced, which may stop, in one that may write to what it was given.
        mixes: whether one returns an integer on one way and a float on another.
    """

    reasons: list[str]
    writes: bool = False
    mixes: bool = False


_found: contextvars.ContextVar[Found | None] = contextvars.ContextVar("opwright_narrow_integers", default=None)


@contextlib.contextmanager
def noting() -> Iterator[Found]:
    """Note what functions that are compiled in this thread do with narrow integers."""
    found = Found([])
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


def refused(reason: str) -> _Refused:
    """The error of a use of narrow integers that differs in Numba, which is noted."""
    found = _found.get()
    if found is not None:
        found.reasons.append(reason)
    return _Refused(reason)


def note_mixture() -> None:
    """Note that a function returns an integer on one way and a float on another."""
    found = _found.get()
    if found is not None:
        found.mixes = True


def note_write() -> None:
    """Note that compiled code may write to what it was given."""
    found = _found.get()
    if found is not None:
        found.writes = True


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function without annotations: Numba compares those of an overload and of what implements it."""
    function.__annotations__ = {}
    return function
