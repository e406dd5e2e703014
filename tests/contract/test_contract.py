"""The contract as a record."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from opwright.contract.definition.define import make_contract
from opwright.errors import ContractError


def two(x: Float[Tensor, " n"], k: int = 2) -> tuple[Float[Tensor, " n"], Int[Tensor, ""]]:
    """Scale, and where the largest is."""
    return x * k, x.argmax()


def test_names_and_documentation_come_from_the_function() -> None:
    contract = make_contract("demo::two", two, globals())
    assert (contract.namespace, contract.name) == ("demo", "two")
    assert contract.doc == "Scale, and where the largest is."
    assert contract.file == __file__
    assert contract.module == __name__


def test_packing_and_unpacking_are_inverse() -> None:
    contract = make_contract("demo::two", two, globals())
    outputs = contract.reference([torch.tensor([1.0, 3.0]), 2])
    assert contract.unpack(contract.pack(outputs)) == outputs

    def one(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + 1

    single = make_contract("demo::one", one, globals())
    assert isinstance(single.pack(single.reference([torch.ones(2)])), torch.Tensor)


def test_the_fingerprint_follows_name_schema_and_reference() -> None:
    def other(x: Float[Tensor, " n"], k: int = 3) -> tuple[Float[Tensor, " n"], Int[Tensor, ""]]:
        return x * k, x.argmax()

    first = make_contract("demo::two", two, globals()).fingerprint
    assert first == make_contract("demo::two", two, globals()).fingerprint
    assert first != make_contract("demo::three", two, globals()).fingerprint
    assert first != make_contract("demo::two", other, globals()).fingerprint


def test_sizes_that_an_int_argument_states_match_where_the_reference_is_tried_on_its_definition() -> None:
    seen = []

    def padded(
        x: Float[Tensor, " n (k+1)**2"],
        y: Float[Tensor, " n*m"],
        w: Float[Tensor, "..."],
        k: int,
        m: int = 3,
        j: int = 5,
    ) -> Float[Tensor, " n"]:
        seen.append((x.shape, y.shape, k, m, j))
        return x.sum(1)

    make_contract("demo::padded", padded, globals())
    assert ((4, 25), (12,), 4, 3, 5) in seen


# Sizes, a default with which there are none that a trial could have, and the sizes that it has.
UNFIT = [
    ("n-k+1", 7, ((1,), 4)),  # negative
    ("n//k", 0, ((1,), 4)),
    ("n**k", 40, ((256,), 4)),  # a tensor of more bytes than can be counted
    ("n**k", 10**9, ((256,), 4)),  # which takes long to compute
    ("2**2**k", 40, ((65_536,), 4)),
    ("n**k", 10**400, ((256,), 4)),
    ("n*k", 2**15, ((16,), 4)),
    ("n-k", 7, ((0,), 4)),
    ("n//(k-4)", 4, ((4,), 4)),  # also with 4: any size
    ("n-k-1", 9, ((4,), 9)),
]


@pytest.mark.parametrize(("sizes", "default", "tried"), UNFIT)
def test_defaults_that_fit_no_small_sizes_do_not_keep_a_reference_from_being_tried(sizes, default, tried) -> None:
    seen = []

    def right(x: Float[Tensor, " n"], w: Float[Tensor, sizes], k: int = default) -> Float[Tensor, " n"]:
        seen.append((tuple(w.shape), k))
        return x + w.sum()

    def wrong(x: Float[Tensor, " n"], w: Float[Tensor, sizes], k: int = default) -> Float[Tensor, " n"]:
        w.mul_(2)
        return x + w.sum()

    make_contract("demo::right", right, globals() | locals())
    assert set(seen) == {tried}
    with pytest.raises(ContractError, match="must leave its argument 'w' unchanged"):
        make_contract("demo::wrong", wrong, globals() | locals())


def test_sizes_that_no_memory_holds_together_do_not_keep_a_reference_from_being_tried() -> None:
    def wrong(x: Float[Tensor, "n n**k n**k n**k n**k"], k: int = 8) -> Float[Tensor, "n _ _ _ _"]:
        return x.mul_(2) * 2

    with pytest.raises(ContractError, match="must leave its argument 'x' unchanged"):
        make_contract("demo::wrong", wrong, globals())


def test_another_choice_is_tried_where_the_default_fits_no_sizes() -> None:
    seen = []

    def strided(x: Float[Tensor, " n"], w: Float[Tensor, " n-k"], k: Literal[7, 3] = 7) -> Float[Tensor, " n"]:
        seen.append((tuple(w.shape), k))
        return x + w.sum()

    make_contract("demo::strided", strided, globals())
    assert set(seen) == {((1,), 3)}
