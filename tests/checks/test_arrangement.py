"""What is longest is given out first, and kernels are cut where machines would wait for one of them."""

from __future__ import annotations

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks import arrangement
from opwright.checks.arrangement import Held, arranged, name_of, seconds_by_slice
from opwright.checks.plan import plan
from opwright.checks.slices import SliceUnit
from opwright.checks.table import SLICES
from opwright.checks.unit import CheckUnit
from opwright.checks.verdict import Settings
from opwright.machine import this_machine
from opwright.results import Status, Verdict
from opwright.sweep.lengths import Lengths


@ow.op("arranged::copy")
def copy(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x.clone()


for number in range(40):
    copy.python(lambda x: x.clone(), name=f"kernel{number}")


@ow.op("arranged::fill")
def fill(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x * 0 + 1


for number in range(2):
    fill.python(lambda x: x * 0 + 1, name=f"kernel{number}")


def units(count, **settings):
    return [CheckUnit.of(task, Settings(**settings)) for task in plan(copy, this_machine(), None, "cpu")[:count]]


def parts(total):
    return {"start": 0.1 * total, "values": 0.5 * total, "memory": 0.1 * total, "derivatives": 0.3 * total}


def pieces(lengths, slots, held=lambda unit: Held.NOTHING):
    made = units(len(lengths))
    known = {name_of(unit): parts(s) for unit, s in zip(made, lengths, strict=True) if s}
    return arranged(made, known, lambda unit: slots, held)


def end(found, slots):
    """When the last of them ends, if each begins on the first machine that is free."""
    free = [0.0] * slots
    for piece in found:
        free.sort()
        free[0] += piece.seconds
    return max(free)


def test_on_one_machine_units_stay_whole_and_the_longest_are_first():
    found = pieces([1, 9, 3], 1)
    assert [piece.kernel for piece in found] == [1, 2, 0]
    assert all(isinstance(piece.unit, CheckUnit) for piece in found)
    assert [piece.kernel for piece in pieces([None] * 5, 1)] == [0, 1, 2, 3, 4]


def test_on_one_machine_the_kernels_of_an_operator_stay_together():
    made = [CheckUnit.of(task, Settings()) for op in (copy, fill) for task in plan(op, this_machine(), None, "cpu")[:2]]
    known = {name_of(unit): parts(s) for unit, s in zip(made, [1, 2, 3, 9], strict=True)}
    found = arranged(made, known, lambda unit: 1, lambda unit: Held.NOTHING)
    assert [piece.kernel for piece in found] == [1, 0, 3, 2]


def test_one_after_the_other_they_go_in_their_order(monkeypatch):
    known = {
        name_of(unit): parts(s) for unit, s in zip(units(2, level="smoke", checks=("values",)), [1, 9], strict=True)
    }
    monkeypatch.setattr(Lengths, "read", lambda self: known)
    order = []
    ow.check(
        copy, kernels=["kernel0", "kernel1"], device="cpu", jobs=1, level="smoke", checks=["values"],
        on_verdict=lambda verdict: order.append(verdict.kernel),
    )  # fmt: skip
    assert order == ["kernel0", "kernel1"]


def test_the_longest_are_first():
    found = pieces([1, 9, 3] * 10, 2)
    assert [piece.seconds for piece in found] == sorted((piece.seconds for piece in found), reverse=True)
    assert found[0].kernel == 1


def test_a_kernel_for_which_all_others_would_wait_is_cut():
    found = pieces([40, 4, 4, 4, 4], 4)
    cut = [piece for piece in found if piece.kernel == 0]
    assert [type(piece.unit) for piece in cut] == [SliceUnit] * 4
    assert sum(piece.seconds for piece in cut) == pytest.approx(40 + 3 * 4)  # each starts anew
    assert end(found, 4) < 20


def test_many_equal_kernels_are_not_cut():
    assert all(isinstance(piece.unit, CheckUnit) for piece in pieces([4] * 40, 4))


def test_of_equal_kernels_of_unknown_length_the_last_ones_are_cut():
    found = pieces([None] * 14, 4)
    whole = [piece for piece in found if isinstance(piece.unit, CheckUnit)]
    assert 8 <= len(whole) < 14
    ideal = sum(arrangement.USUAL.values()) * 14 / 4
    assert end(found, 4) < 1.12 * ideal


def test_kernels_that_were_measured_stand_for_others_of_their_operator():
    found = pieces([30, None, 10, 20], 2)
    assert {piece.kernel: piece.seconds for piece in found if isinstance(piece.unit, CheckUnit)}.get(1, 20) == 20
    assert sum(piece.seconds for piece in found) >= 80


@pytest.mark.parametrize("slots", [1, 2])
def test_what_an_earlier_run_has_finished_is_taken_in_that_form(slots):
    held = {"kernel7": Held.SLICES, "kernel0": Held.VERDICT}
    found = pieces([9] + [1] * 39, slots, held=lambda unit: held.get(unit.task.kernel, Held.NOTHING))
    assert {piece.kernel for piece in found if isinstance(piece.unit, SliceUnit)} == {7}
    assert [piece.seconds for piece in found if piece.kernel == 0] == [0.0]


def test_one_case_is_not_cut():
    made = units(1, case="n=3")
    assert [piece.unit for piece in arranged(made, {}, lambda unit: 4, lambda unit: Held.NOTHING)] == made


def test_the_seconds_of_slices_are_those_of_their_checks():
    steps = {"start": 1.0, "build": 30.0, "values": 4.0, "metadata": 0.5, "gradients": 2.0}
    verdict = Verdict("o", "k", "cpp", "cpu", Status.PASS, step_seconds=steps)
    assert seconds_by_slice(verdict) == {"start": 1.0, "values": 4.5, "memory": 0.0, "derivatives": 2.0}
    assert set(parts(1)) == {"start", *SLICES}


def test_lengths_are_kept_and_a_broken_file_is_none(tmp_path, monkeypatch):
    lengths = Lengths(tmp_path / "cache")
    assert lengths.read() == {}
    lengths.add({"a": {"values": 1.234}, "b": {"values": 2.0}})
    lengths.add({"a": {"values": 3.0}})
    assert lengths.read() == {"b": {"values": 2.0}, "a": {"values": 3.0}}
    monkeypatch.setattr("opwright.sweep.lengths._MOST", 1)
    lengths.add({"c": {"values": 4.0}})
    assert lengths.read() == {"c": {"values": 4.0}}
    (file,) = (tmp_path / "cache").iterdir()
    for text in ("[1]", "no JSON", '{"a": 3}', '{"a": {"values": "x"}}'):
        file.write_text(text)
        assert lengths.read() == {}
    Lengths(file / "no folder").add({"a": {}})  # is no error
