"""Options of an operator: flags and choices on which its kernels branch, each of which gets cases of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from opwright.contract.contract import Contract
from opwright.contract.signature import Argument

__all__ = ["choice_of", "choices_of", "option_sets"]

Options = tuple[tuple[str, str], ...]
# Of more choices, as of a list of numbers, each draws its own anyway.
_MOST_CHOICES = 6
# So many sets of options get cases of their own.
_MOST_SETS = 8


def choices_of(argument: Argument) -> tuple[Any, ...]:
    """The few values that a number, a flag or a text may have; none if it may have others."""
    if argument.is_tensor or argument.is_group or argument.length is not None:
        return ()
    stated = argument.values.one_of if argument.values is not None else ()
    found = stated or argument.choices or ((False, True) if argument.scalar_type is bool else ())
    return tuple(found) if len(found) <= _MOST_CHOICES and all(map(_is_one_word, found)) else ()


def choice_of(argument: Argument, text: str) -> Any:
    """The choice that a text means; raises KeyError."""
    return {str(c): c for c in choices_of(argument)}[text]


def option_sets(contract: Contract) -> list[Options]:
    """A value for each option: all combinations, or if there are many, a few in which each value occurs."""
    options = [(a.name, choices) for a in contract.signature.arguments if len(choices := choices_of(a)) > 1]
    if not options:
        return []
    if math.prod(len(choices) for _, choices in options) <= _MOST_SETS:
        every: Iterator[Sequence[Any]] = itertools.product(*(choices for _, choices in options))
    else:
        most = min(_MOST_SETS, max(4, *(len(choices) for _, choices in options)))
        every = ([c[(i + i // len(c) * place) % len(c)] for place, (_, c) in enumerate(options)] for i in range(most))
    return [tuple((name, str(v)) for (name, _), v in zip(options, values, strict=True)) for values in every]


def _is_one_word(value: Any) -> bool:
    text = str(value)
    return bool(text) and not any(c.isspace() or c in ",=" for c in text)
