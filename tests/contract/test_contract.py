"""The contract as a record."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from opwright.contract.define import make_contract


def two(x: Float[Tensor, "n"], k: int = 2) -> tuple[Float[Tensor, "n"], Int[Tensor, ""]]:
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

    def one(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x + 1

    single = make_contract("demo::one", one, globals())
    assert isinstance(single.pack(single.reference([torch.ones(2)])), torch.Tensor)


def test_the_fingerprint_follows_name_schema_and_reference() -> None:
    def other(x: Float[Tensor, "n"], k: int = 3) -> tuple[Float[Tensor, "n"], Int[Tensor, ""]]:
        return x * k, x.argmax()

    first = make_contract("demo::two", two, globals()).fingerprint
    assert first == make_contract("demo::two", two, globals()).fingerprint
    assert first != make_contract("demo::three", two, globals()).fingerprint
    assert first != make_contract("demo::two", other, globals()).fingerprint


def test_which_arguments_are_floats_is_known_by_position() -> None:
    def f(x: Float[Tensor, "n"], i: int, a: float, s: list[float], o: float | None = None) -> Float[Tensor, "n"]:
        return x

    assert make_contract("demo::f", f, globals()).floats == (2, 3, 4)


def test_sizes_that_an_int_argument_states_match_where_the_reference_is_tried_on_its_definition() -> None:
    seen = []

    def padded(
        x: Float[Tensor, "n (k+1)**2"], y: Float[Tensor, "n*m"], w: Float[Tensor, "..."], k: int, m: int = 3, j: int = 5
    ) -> Float[Tensor, "n"]:
        seen.append((x.shape, y.shape, k, m, j))
        return x.sum(1)

    make_contract("demo::padded", padded, globals())
    assert ((4, 25), (12,), 4, 3, 5) in seen
