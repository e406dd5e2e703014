"""Relations of constants that tell the runs that a reference accepts from those that it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from opwright.contract.shapes.relations import parse_relation

__all__ = ["relations_of"]

_DIVISORS = (2, 3, 4, 8, 16, 32, 64)


def relations_of(own: Mapping[str, int], tried: Sequence[tuple[Mapping[str, int], bool]]) -> list[str]:
    """The relations that hold for every accepted run and the task's own, and that together reject the most of the
    others; the fewest that do. What the rest violates is not known: checks skip a case that the reference refuses."""
    accepted = [own, *(values for values, is_accepted in tried if is_accepted)]
    refused = [values for values, is_accepted in tried if not is_accepted]
    candidates = [text for text in _candidates(list(own)) if all(_holds(text, values) for values in accepted)]
    found = list[str]()
    while refused:
        rejected = {text: [v for v in refused if not _holds(text, v)] for text in candidates}
        best = max(rejected, key=lambda text: len(rejected[text]), default="")
        if not best or not rejected[best]:
            break
        found.append(best)
        refused = [values for values in refused if values not in rejected[best]]
    return found


def _candidates(names: Sequence[str]) -> Iterator[str]:
    for a, b in itertools.permutations(names, 2):
        yield f"{a} == {b}"
        yield f"{a} % {b} == 0"
        yield f"{a} <= {b}"
    for name, divisor in itertools.product(names, _DIVISORS):
        yield f"{name} % {divisor} == 0"
    for name, least in itertools.product(names, range(2, 34)):
        yield f"{name} >= {least}"


def _holds(text: str, values: Mapping[str, int]) -> bool:
    return bool(parse_relation(text).holds(values))
