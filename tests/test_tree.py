"""Nests of lists, tuples, named tuples and dictionaries, and their leaves."""

from typing import NamedTuple

import pytest
import torch

from opwright.tree import form, leaves, map_leaves, map_only, map_tensors, rebuild, tensors


class Pair(NamedTuple):
    first: object
    second: object


class ListOfItsOwn(list):
    pass


class DictOfItsOwn(dict):
    pass


NESTS = {
    "leaf": 1,
    "none": None,
    "empty list": [],
    "empty tuple": (),
    "empty dictionary": {},
    "list": [1, 2, 3],
    "tuple": (1, "text", None),
    "dictionary": {"b": 1, "a": [2, (3,)]},
    "named tuple": Pair(1, [2, Pair(3, {"x": 4})]),
    "deep": [[[[(1,)]]]],
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())
def test_a_nest_is_rebuilt_from_its_leaves(nest):
    again = rebuild(nest, leaves(nest))
    assert again == nest
    assert type(again) is type(nest)
    assert form(again) == form(nest)


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())
def test_mapping_replaces_every_leaf_in_order(nest):
    seen = []
    mapped = map_leaves(lambda leaf: seen.append(leaf) or len(seen), nest)
    assert seen == leaves(nest)
    assert leaves(mapped) == list(range(1, len(seen) + 1))
    assert form(mapped) == form(nest)


def test_leaves_are_in_order_of_insertion():
    assert leaves({"b": 1, "a": (2, [3]), "c": None}) == [1, 2, 3, None]


def test_only_these_containers_are_nests():
    """Subclasses without fields, sets and strings are leaves: they cannot be rebuilt from their items alone."""
    for leaf in ("text", {1, 2}, ListOfItsOwn([1]), DictOfItsOwn(a=1), torch.Size([2, 3]), range(3)):
        assert leaves(leaf) == [leaf]
        assert leaves([leaf]) == [leaf]
        assert map_leaves(lambda value: value, leaf) is leaf


def test_named_tuples_keep_their_type():
    mapped = map_leaves(str, [Pair(1, 2)])
    assert mapped == [Pair("1", "2")]
    assert isinstance(mapped[0], Pair)


def test_a_tuple_and_a_named_tuple_have_different_forms():
    assert form((1, 2)) != form(Pair(1, 2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], (1,)),
        ([1], [[1]]),
        ([1], [1, 2]),
        ([1, [2]], [[1], 2]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([], None),
        ([], ()),
        ([], {}),
        ({}, None),
    ],
)
def test_different_structures_have_different_forms(one, other):
    assert form(one) != form(other)


def test_forms_are_equal_and_hashable_whatever_the_leaves_are():
    assert form([1, {"a": torch.ones(2)}]) == form([None, {"a": "text"}])
    assert hash(form([1, {"a": [2]}])) == hash(form([torch.ones(1), {"a": [set()]}]))


def test_tensors_are_selected_and_mapped_and_others_are_not():
    a, b = torch.ones(2), torch.zeros(3)
    nest = [a, 1, {"x": (b, None)}]
    assert [id(t) for t in tensors(nest)] == [id(a), id(b)]
    mapped = map_tensors(lambda t: t.numel(), nest)
    assert mapped == [2, 1, {"x": (3, None)}]


def test_mapping_one_kind_leaves_the_others_as_they_are():
    assert map_only(int, lambda leaf: -leaf, [1, 2.0, "3", (4,)]) == [-1, 2.0, "3", (-4,)]
    assert map_only((int, float), lambda leaf: -leaf, [1, 2.0, "3"]) == [-1, -2.0, "3"]
    parameter = torch.nn.Parameter(torch.ones(1))
    assert map_tensors(lambda t: "tensor", [parameter]) == ["tensor"]


def test_mapping_makes_new_containers():
    inner = [1]
    mapped = map_leaves(lambda leaf: leaf, {"a": inner})
    assert mapped == {"a": [1]}
    assert mapped["a"] is not inner


def test_rebuilding_with_too_few_leaves_raises():
    with pytest.raises((StopIteration, RuntimeError)):
        rebuild([1, 2], [1])
