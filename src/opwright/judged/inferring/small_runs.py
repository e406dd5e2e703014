"""Smaller constants for references that must run for real, or that run for long."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping

from opwright.judged.inferring.reference_run import Reference, Run

__all__ = ["fits", "is_slow", "small_run", "timed_run"]

# Elements of the arguments of a real run: as few as these, if constants can be halved so far, and at most so many.
_FEW, _MOST = 1 << 16, 1 << 22
# The reference may refuse the smallest; so many are tried.
_MOST_TRIED = 8
# A run that takes longer is repeated with smaller constants.
_SLOW_S = 0.25


def timed_run(reference: Reference) -> tuple[Run | None, float]:
    """The run with the constants as they are, and how long it took."""
    began = time.monotonic()
    return reference.run({}), time.monotonic() - began


def fits(reference: Reference, constants: Mapping[str, int]) -> bool:
    """Whether a run with these constants is small enough. One that the task does not make is: it ends at once."""
    if not reference.base:
        return True
    elements = reference.elements(constants)
    return elements is None or elements <= _MOST


def is_slow(seconds: float) -> bool:
    return seconds > _SLOW_S


def small_run(reference: Reference, own: Mapping[str, int], held: Collection[str]) -> Run | None:
    """A run with smaller constants, which are then those of further runs: with the smallest that it takes; None if it
    takes none.

    Args:
        held: the constants that keep their values.
    """
    for values in reversed([*_halved(reference, own, held)][-_MOST_TRIED:]):
        reference.base = values
        if fits(reference, {}) and (run := reference.run({})) is not None:
            return run
        if not reference.has_time:
            break
    reference.base = {}
    return None


def _halved(reference: Reference, own: Mapping[str, int], held: Collection[str]) -> Iterator[dict[str, int]]:
    """The constants, halved one after another until the arguments have few elements: always the largest one that makes
    them fewer."""
    values, elements = dict(own), reference.elements(own)
    while elements is not None:
        yield values
        if elements <= _FEW:
            return
        for name in sorted(values.keys() - held, key=lambda name: (-values[name], name)):
            count = reference.elements({**values, name: values[name] // 2}) if values[name] > 1 else None
            if count is not None and count < elements:
                values, elements = {**values, name: values[name] // 2}, count
                break
        else:
            return
