"""Integers that are places in a row of scores: which arguments are recognised, and where they point."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float, Int64
from torch import Tensor

import opwright as ow
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.targets import Target, targets

Class = Annotated[Int64[Tensor, " b *n"], ow.values(0, "c-1")]


def made(namespace, function):
    return ow.op(f"{namespace}::{function.__name__}")(function).contract


def in_the_middle(x: Float[Tensor, "b c *n"], place: Class) -> Float[Tensor, " b *n"]:
    return x.gather(1, place.unsqueeze(1)).squeeze(1)


def at_the_end(place: Class, x: Float[Tensor, "b *n c"]) -> Float[Tensor, " b *n"]:
    return x.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def of_a_table(table: Float[Tensor, "c d"], place: Class) -> Float[Tensor, "b *n d"]:
    return table[place]


def stated(x: Annotated[Float[Tensor, "b *n c"], ow.inputs.probabilities()], place: Class) -> Float[Tensor, " b *n"]:
    return x.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def other_places(
    x: Float[Tensor, "b c"], place: Annotated[Int64[Tensor, " b"], ow.values(0, "c")]
) -> Float[Tensor, " b"]:
    return x.sum(1) + place


def test_places_are_integers_up_to_a_dim_beside_scores_of_their_shape_and_this_dim(namespace):
    assert targets(made(namespace, in_the_middle)) == [Target(places=1, scores=0, axis=1)]
    assert targets(made(namespace, at_the_end)) == [Target(places=0, scores=1, axis=-1)]
    for function in (of_a_table, stated, other_places):
        contract = made(namespace, function)
        assert targets(contract) == []
        assert not [case for case in cases(contract, "quick") if case.values == "peak_targets"]


def test_most_places_are_those_of_the_largest_score_in_each_dtype(namespace):
    for function, place, axis in ((in_the_middle, 1, 1), (at_the_end, 0, -1)):
        contract = made(namespace, function)
        found = [case for case in cases(contract, "quick") if case.values == "peak_targets"]
        assert {case.dtype for case in found} == {case.dtype for case in cases(contract, "quick")}
        for case in found:
            arguments = arguments_of(contract, case, "cpu")
            places, scores = arguments[place], arguments[1 - place]
            right = (scores.argmax(axis) == places).double().mean()
            assert int(places.min()) >= 0
            assert int(places.max()) < scores.shape[axis]
            assert places.numel() < 100 or 0.6 < right < 0.95
            again = arguments_of(contract, case, "cpu")
            assert all(map(torch.equal, arguments, again)), "the same text gives the same values"
