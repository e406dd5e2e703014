"""Sizes as expressions of constants: what fits every observation, the simplest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from opwright.contract.shapes.dims import evaluate

__all__ = ["Observation", "fit"]

# The values of constants, and the size that was observed with them.
Observation = tuple[Mapping[str, int], int]


def fit(observations: Sequence[Observation]) -> str | None:
    """The simplest expression that gives each observed size from its constants: a number if they are all equal.

    None if no expression of at most two constants and one number does.
    """
    sizes = {size for _, size in observations}
    if len(sizes) == 1:
        return str(sizes.pop())
    return next((text for text in _expressions(observations) if _fits(text, observations)), None)


def _fits(text: str, observations: Sequence[Observation]) -> bool:
    try:
        return all(evaluate(text, dict(constants)) == size for constants, size in observations)
    except ZeroDivisionError:
        return False


def _expressions(observations: Sequence[Observation]) -> Iterator[str]:
    """Candidates, the simplest first. Numbers are taken from the first observation, which must fit as well."""
    constants, size = observations[0]
    yield from constants
    for name, value in constants.items():
        if size > value:
            yield f"{name}+{size - value}"
        if size < value:
            yield f"{name}-{value - size}"
        if value and size % value == 0:
            yield f"{size // value}*{name}"
        for divisor in range(2, 65):
            if size == value // divisor:
                yield f"{name}//{divisor}"
    for a, b in itertools.permutations(constants, 2):
        yield from (f"{a}*{b}", f"{a}+{b}", f"{a}//{b}", f"{a}-{b}")
        product = constants[a] * constants[b]
        if product and size % product == 0:
            yield f"{size // product}*{a}*{b}"
