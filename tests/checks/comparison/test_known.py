"""Results that a judge keeps for the next kernel: only those of the same arguments, and they decide as new ones do."""

from __future__ import annotations

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
    known, large = KnownResults(), torch.zeros(1 << 21)
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
