"""Integers that are places in a row of scores, such as the classes of logits; and scores of a model that is right.

There, what is left of a sum or a difference is small (the gradient of the class that is right: its probability less 1),
and a step that is rounded too early loses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.contract.shapes.dims import NamedDim, VariadicDim
from opwright.contract.signature import Argument, Kind

__all__ = ["Target", "point_at_largest", "targets"]

# The share of rows whose largest score is where the integer points.
_RIGHT = 0.75


@dataclass(frozen=True)
class Target:
    """An argument of integers, each a place in a row of another's scores.

    Attributes:
        places, scores: their positions in the signature.
        axis: that of the scores' rows.
    """

    places: int
    scores: int
    axis: int


def targets(contract: Contract) -> list[Target]:
    """Integers that are stated to be from 0 up to a dim less 1, beside floats of their shape and this dim."""
    arguments = contract.signature.arguments
    return [
        Target(places, scores, axis)
        for places, integers in enumerate(arguments)
        for dim in _dims_pointed_at(integers)
        for scores, floats in enumerate(arguments)
        if _is_free_of_stated_values(floats)
        for axis in _axes(integers, floats, dim)
    ]


def point_at_largest(arguments: Sequence[Any], found: Sequence[Target], generator: torch.Generator) -> None:
    """Let most integers point at the largest score of their row."""
    for target in found:
        places, scores = arguments[target.places], arguments[target.scores]
        if places is None or scores is None or scores.is_meta or not scores.numel():
            continue
        largest = scores.argmax(target.axis).to(places.dtype)
        is_right = torch.rand(places.shape, generator=generator) < _RIGHT
        places.copy_(torch.where(is_right.to(places.device), largest, places))


def _dims_pointed_at(argument: Argument) -> Iterator[str]:
    stated = argument.values
    if argument.kind is not Kind.TENSOR or stated is None or stated.is_arranged or argument.mutated:
        return
    assert argument.tensor is not None
    are_integers = all(not d.is_floating_point and not d.is_complex for d in argument.tensor.dtypes)
    if are_integers and stated.low == 0 and isinstance(stated.high, str):
        name, minus, one = stated.high.replace(" ", "").partition("-")
        if (minus, one) == ("-", "1"):
            yield name


def _is_free_of_stated_values(argument: Argument) -> bool:
    if argument.kind is not Kind.TENSOR or not (argument.values is None or argument.values.is_free):
        return False
    assert argument.tensor is not None
    return any(d.is_floating_point and d.itemsize > 1 for d in argument.tensor.dtypes)


def _axes(integers: Argument, floats: Argument, name: str) -> Iterator[int]:
    """The axis of a dim, if the other dims of the floats are those of the integers."""
    assert integers.tensor is not None
    assert floats.tensor is not None
    dims, others = floats.tensor.dims, integers.tensor.dims
    for i, dim in enumerate(dims):
        if isinstance(dim, NamedDim) and dim.name == name and (*dims[:i], *dims[i + 1 :]) == tuple(others):
            yield i - len(dims) if any(isinstance(d, VariadicDim) for d in dims[:i]) else i
