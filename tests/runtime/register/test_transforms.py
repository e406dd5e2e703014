"""docs/transforms.md lists what works with what: every row is tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runtime.register import transforms_of_forms as forms
from tests.runtime.register.transforms import OPERATORS, ROWS, Row, outcome, recorded, render


def test_the_page_has_every_row() -> None:
    assert list(recorded()) == [row.what for row in ROWS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("row", [pytest.param(r, id=r.run.__name__, marks=[pytest.mark.slow] * r.slow) for r in ROWS])
def test_a_row_is_as_the_page_says(row: Row, name: str) -> None:
    assert outcome(row, name) == recorded()[row.what][name]


def test_the_page_has_every_row_of_the_other_forms() -> None:
    assert list(forms.recorded()) == list(forms.ROWS)


def row_of_forms(what: str) -> Any:
    """A row, slow if Inductor compiles in it."""
    run = forms.ROWS[what].__name__
    return pytest.param(what, id=run, marks=[pytest.mark.slow] * (run == "compiled"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", forms.FORMS)
@pytest.mark.parametrize("what", [row_of_forms(what) for what in forms.ROWS])
def test_a_row_of_another_form_is_as_the_page_says(what: str, name: str) -> None:
    assert forms.outcome(what, name) == forms.recorded()[what][name]


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("row", [pytest.param(r, id=r.run.__name__) for r in ROWS if r.processes == 1])
def test_a_row_is_the_same_on_a_gpu(row: Row, name: str, needs_aot_packages: Callable[[str], None]) -> None:
    if row.run.__name__ == "aot_inductor":
        needs_aot_packages("cuda")
    found, expected = outcome(row, name, "cuda"), recorded()[row.what][name]
    # torch's refusals name devices.
    assert found == expected or (found.startswith("refused") and expected.startswith("refused")), found


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", forms.FORMS)
@pytest.mark.parametrize("what", forms.ROWS, ids=lambda what: forms.ROWS[what].__name__)
def test_a_row_of_another_form_is_the_same_on_a_gpu(what: str, name: str) -> None:
    found, expected = forms.outcome(what, name, on="cuda"), forms.recorded()[what][name]
    assert found == expected or (found.startswith("refused") and expected.startswith("refused")), found


def test_what_does_not_work_is_seen() -> None:
    def wrong(op: object) -> None:
        torch.testing.assert_close(torch.zeros(1), torch.ones(1))

    found = outcome(Row("wrong", wrong), "derived")
    assert found.startswith("refused: AssertionError")
    assert "| wrong | refused: AssertionError" in render({"wrong": {"derived": found}})
