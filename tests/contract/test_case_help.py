"""Each word that a case may have is explained, and each that is explained is one of a case."""

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.contract.inputs import case_help
from opwright.contract.inputs.arguments import _NUMBERS
from opwright.contract.inputs.case import OF_TENSORS, SCALAR_BOUNDS, SCALARS
from opwright.contract.inputs.layouts import BROADCAST, FARS, LAYOUTS
from opwright.contract.inputs.text import parse_case
from tests import warm


def test_each_word_of_a_case_is_explained():
    assert set(case_help.VALUES) == set(OF_TENSORS)
    assert set(case_help.SCALARS) == {*SCALARS, *SCALAR_BOUNDS}
    assert set(case_help.LAYOUTS) == {*LAYOUTS, *FARS, BROADCAST, "sliced:x"}


def test_numbers_are_those_that_are_drawn():
    for word, (integer, real) in _NUMBERS.items():
        assert case_help.SCALARS[word] in (f"{integer}, or {real}", f"{integer}"), word


@ow.op("case_help::scaled")
def scaled(x: Float[Tensor, "*n"], bias: Float[Tensor, ""] | None, kind: bool = True) -> Float[Tensor, "*n"]:
    return (x if kind else -x) + (x.new_zeros(()) if bias is None else bias)


@pytest.mark.parametrize("part", [p for p in case_help.PARTS if p.split("=")[0] not in ("sample", "ranks", "kind")])
def test_the_example_of_each_part_is_read(part):
    assert part in str(parse_case(scaled.contract, part)) or part == "lists=2"


def test_the_command_explains_them_within_80_columns():
    shown = warm.run_module("opwright", "check", "--help-cases", env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    words = [word for group in (case_help.PARTS, *case_help.WORDS.values()) for word in group]
    assert [word for word in words if f"\n{word} " not in shown] == []
