"""Sizes as expressions of constants: what fits every observation, the simplest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from opwright.contract.shapes.dims import evaluate

__all__ = ["Observation", "fit", "fit_alone"]

# The values of constants, and the size that was observed with them.
Observation = tuple[Mapping[str, int], int]


def fit(observations: Sequence[Observation]) -> str | None:
    """The simplest expression that gives each observed size from its constants: a number if they are all equal.

    None if no expression of at most two constants and two numbers does.
    """
    sizes = {size for _, size in observations}
    if len(sizes) == 1:
        return str(sizes.pop())
    if found := _first_that_fits(observations):
        return found
    least = min(sizes)  # perhaps sizes below it are raised to it
    above = [each for each in observations if each[1] > least]
    text = _first_that_fits(above) if len({size for _, size in above}) > 1 else None
    raised = f"max({text},{least})"
    return raised if text is not None and _fits(raised, observations) else None


def fit_alone(observations: Sequence[Observation], name: str) -> str | None:
    """The simplest expression of one constant, which does not decrease with it, and is not the same for all values."""
    alone = [({name: constants[name]}, size) for constants, size in observations]
    if len({size for _, size in alone}) == 1:
        return None
    return _first_that_fits(alone)


def _first_that_fits(observations: Sequence[Observation]) -> str | None:
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
        if size != value:
            yield _plus(name, size - value)
        if value and size % value == 0:
            yield f"{size // value}*{name}"
        yield from (f"{name}//{divisor}" for divisor in range(2, 65) if size == value // divisor)
        yield from (f"({name}+{d - 1})//{d}" for d in range(2, 65) if size == -(-value // d))
        yield from _line(observations, name)
    for a, b in itertools.permutations(constants, 2):
        yield from (f"{a}*{b}", f"{a}+{b}", f"{a}//{b}", f"{a}-{b}")
        product = constants[a] * constants[b]
        if product and size % product == 0:
            yield f"{size // product}*{a}*{b}"
        yield _plus(f"{a}*{b}", size - product)


def _line(observations: Sequence[Observation], name: str) -> Iterator[str]:
    """A multiple of a constant plus a number, through two observations."""
    constants, size = observations[0]
    value = constants[name]
    other = next((each for each in observations if each[0][name] != value and each[1] != size), None)
    if other is not None and (other[1] - size) % (other[0][name] - value) == 0:
        slope = (other[1] - size) // (other[0][name] - value)
        if slope > 0:
            yield _plus(f"{slope}*{name}", size - slope * value)


def _plus(text: str, number: int) -> str:
    return f"{text}+{number}" if number >= 0 else f"{text}-{-number}"
