"""Results that a checker keeps for the next kernel: only those of the same arguments, which decide as new ones do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from opwright.checks.comparison.known import KnownResults
from opwright.checks.comparison.tolerance import Computation


def _sliced(around: float = 0.0) -> torch.Tensor:
    whole = torch.full((8,), around)
    whole[::2] = torch.arange(4.0)
    return whole[::2]


X = (torch.tensor([1.0, 0.0, torch.nan]), [torch.tensor([1, 2])], 2, None)


@pytest.mark.parametrize(
    "others",
    [
        (torch.tensor([1.0, 0.0, 1.0]), [torch.tensor([1, 2])], 2, None),
        (torch.tensor([1.0, -0.0, torch.nan]), [torch.tensor([1, 2])], 2, None),
        (torch.tensor([1.0, 0.0, torch.nan]).double(), [torch.tensor([1, 2])], 2, None),
        (torch.tensor([1.0, 0.0, torch.nan]), [torch.tensor([1, 3])], 2, None),
        (torch.tensor([1.0, 0.0, torch.nan]), (torch.tensor([1, 2]),), 2, None),
        (torch.tensor([1.0, 0.0, torch.nan]), [torch.tensor([1, 2])], 2.0, None),
        (torch.tensor([1.0, 0.0, torch.nan]), [torch.tensor([1, 2])], True, None),
        (torch.tensor([1.0, 0.0, torch.nan]), [torch.tensor([1, 2])], 2),
    ],
    ids=["value", "sign of zero", "dtype", "in a list", "tuple", "float", "bool", "fewer"],
)
def test_results_are_those_of_the_same_arguments(others: tuple[object, ...]) -> None:
    known = KnownResults()
    known.of("case", X)["exact"] = "of X"
    again = (torch.tensor([1.0, 0.0, torch.nan]), [torch.tensor([1, 2])], 2, None)
    assert known.of("case", again) == {"exact": "of X"}
    assert known.of("another case", again) == {}
    known.of("case", others)["exact"] = "of others"
    assert known.of("case", X) == {"exact": "of X"}


def test_layouts_and_what_lies_around_elements_are_compared() -> None:
    known = KnownResults()
    known.of("case", (_sliced(),))["exact"] = 1
    assert known.of("case", (_sliced(),))
    assert not known.of("case", (_sliced(3.0),))
    assert not known.of("case", (_sliced().contiguous(),))


def test_arguments_that_are_written_later_are_others() -> None:
    known, x = KnownResults(), torch.ones(3)
    known.of("case", (x,))["exact"] = 1
    x += 1
    assert not known.of("case", (x,))
    assert known.of("case", (torch.ones(3),))


def test_results_of_large_arguments_are_not_kept() -> None:
    known, large = KnownResults(), torch.zeros(1 << 22)
    known.of("case", (large,))["exact"] = 1
    assert known.of("case", (large,)) == {}


def _computation(given: dict[str, object], calls: list[int]) -> Computation:
    x = torch.linspace(-3, 3, 50)

    def run(values):  # type: ignore[no-untyped-def]
        calls.append(1)
        return ((values[0].exp() - values[0].cosh()) * 1e3,)

    return Computation(run, [x], lambda i: 1, given=given)


def test_a_second_comparison_decides_as_the_first_and_runs_nothing_again() -> None:
    given: dict[str, object] = {}
    calls: list[int] = []
    first = _computation(given, calls)
    right, wrong = first.rounded[0].clone(), first.rounded[0] * 1.0001
    expected = [first.wrong(0, t).tolist() for t in (right, wrong)]
    ran = len(calls)
    second = _computation(given, calls)
    assert [second.wrong(0, t).tolist() for t in (right, wrong)] == expected
    assert len(calls) == ran > 2
    assert any(expected[1])
    assert not any(expected[0])
    alone = _computation({}, [])
    assert torch.equal(_computation(given, calls).allowed(0), alone.allowed(0))  # no errors of the first one's runs


def test_a_form_is_shapes_and_dtypes_of_floating_tensors_and_the_numbers() -> None:
    known, x = KnownResults(), torch.ones(3, 4)
    known.of_form("reference", (x, 2))["terms"] = 5
    assert known.of_form("reference", (torch.zeros(4, 3).T, 2)) == {"terms": 5}
    for others in ((x, 3), (x, 2.0), (x.double(), 2), (x.T, 2), (x,), ([x], 2), (x, x)):
        assert known.of_form("reference", others) == {}
    assert known.of_form("vjp", (x, 2)) == {}
    known.of_form("reference", (x, torch.tensor([2])))["terms"] = 7
    assert known.of_form("reference", (x, torch.tensor([2]))) == {}  # as many rows, say, as it says


def _by_sign(values: list[torch.Tensor]) -> tuple[torch.Tensor]:
    (x,) = values
    scaled = (x.float() if bool(x[0] < 0) else x) * 3
    return (scaled.exp().to(x.dtype) + 1,)


def _by_where(values: list[torch.Tensor]) -> tuple[torch.Tensor]:
    (x,) = values
    return (torch.where(x < 0, x, 3 * x).exp() + 1,)


@pytest.mark.parametrize("first", [1.0, -1.0])
@pytest.mark.parametrize(("reference", "is_shared"), [(_by_sign, False), (_by_where, True)])
def test_operations_are_taken_for_other_values_unless_they_follow_from_values(
    first: float, reference: Callable[[list[torch.Tensor]], tuple[torch.Tensor]], is_shared: bool
) -> None:
    def computation(start: float, of_form: dict[str, object]) -> Computation:
        x = torch.linspace(start, start / 2, 9, dtype=torch.float16)
        return Computation(reference, [x], lambda i: 1, of_form=of_form)

    of_form: dict[str, object] = {}
    computation(first, of_form).all_allowed(0)
    shared, alone = computation(-first, of_form), computation(-first, {})
    assert torch.equal(shared.all_allowed(0), alone.all_allowed(0))
    assert ("operations" not in shared.given) == is_shared


def test_operations_of_another_layout_are_not_taken_where_this_one_has_others() -> None:
    def by_layout(values: list[torch.Tensor]) -> tuple[torch.Tensor]:
        (x,) = values
        return (x.exp() * 3 if x.is_contiguous() else x.float().exp().half().sinh(),)

    of_form: dict[str, object] = {}
    x = torch.linspace(-2, 2, 12, dtype=torch.float16)
    Computation(by_layout, [x.reshape(3, 4)], lambda i: 1, of_form=of_form).all_allowed(0)
    other = x.reshape(4, 3).T
    shared = Computation(by_layout, [other], lambda i: 1, of_form=of_form)
    assert torch.equal(shared.all_allowed(0), Computation(by_layout, [other], lambda i: 1).all_allowed(0))
