"""What a call may change is saved and put back in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opwright.backends.numpy.state import State, outer_values, refuse_subclasses
from opwright.errors import ArgumentError

TABLE = np.arange(3.0)


def test_everything_is_put_back_where_it_was() -> None:
    array, tensor, numbers = np.arange(4.0), torch.arange(3.0), [1, 2]
    generator = np.random.default_rng(0)

    class Holder:
        value = 0

    holder = Holder()
    holder.inner = {"x": array[1:]}  # type: ignore[attr-defined]
    state = State([array, tensor, numbers], holder, generator)
    assert state.changed() == []
    array[0], tensor[0] = 9, 9
    numbers.append(3)
    holder.inner["y"] = 1  # type: ignore[attr-defined]
    holder.value = 5
    drawn = generator.random()
    assert len(state.changed()) == 6  # the Holder's dictionary is one of them
    state.restore()
    assert (array[0], tensor[0].item(), numbers, list(holder.inner), holder.value) == (0, 0, [1, 2], ["x"], 0)  # type: ignore[attr-defined]
    assert generator.random() == drawn
    assert np.shares_memory(holder.inner["x"], array)  # type: ignore[attr-defined]


def test_what_a_function_reads_by_name_belongs_to_it() -> None:
    around = [1]

    def helper(x):  # type: ignore[no-untyped-def]
        return x + TABLE

    def function(x):  # type: ignore[no-untyped-def]
        around.append(2)
        return helper(x)

    state = State(outer_values(function))
    function(np.ones(3))
    TABLE[0] = 7
    state.restore()
    assert around == [1]
    assert TABLE[0] == 0


def test_subclasses_of_arrays_are_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match=r"(?s)given a matrix.*np\.asarray"):
        refuse_subclasses([np.matrix([[1]])], "f")
    with pytest.raises(ArgumentError, match=r"(?s)given a MaskedArray.*filled"):
        refuse_subclasses([np.ma.masked_array([1])], "f")
    refuse_subclasses([np.ones(2), 3, None], "f")
