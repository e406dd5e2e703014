"""What is longest is given out first, and kernels are cut where machines would wait for one of them."""

from __future__ import annotations

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks.scheduling import arrangement
from opwright.checks.scheduling.arrangement import Finished, arranged, name_of, seconds_by_group
from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.partial_items import PartialItem
from opwright.checks.scheduling.plan import plan
from opwright.checks.scheduling.verdict import Settings
from opwright.checks.table import GROUPS
from opwright.machine import this_machine
from opwright.results import Status, Verdict
from opwright.sweep.lengths import Lengths


@ow.op("arranged::copy")
def copy(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x.clone()


for number in range(40):
    copy.python(lambda x: x.clone(), name=f"kernel{number}")


@ow.op("arranged::fill")
def fill(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x * 0 + 1


for number in range(2):
    fill.python(lambda x: x * 0 + 1, name=f"kernel{number}")


def items(count, **settings):
    return [CheckItem.of(task, Settings(**settings)) for task in plan(copy, this_machine(), None, "cpu")[:count]]


def parts(total):
    return {"start": 0.1 * total, "values": 0.5 * total, "memory": 0.1 * total, "derivatives": 0.3 * total}


def scheduled(lengths, slots, held=lambda item: Finished.NOTHING):
    made = items(len(lengths))
    known = {name_of(item): parts(s) for item, s in zip(made, lengths, strict=True) if s}
    return arranged(made, known, lambda item: slots, held)


def end(found, slots):
    """When the last of them ends, if each begins on the first machine that is free."""
    free = [0.0] * slots
    for one in found:
        free.sort()
        free[0] += one.seconds
    return max(free)


def test_on_one_machine_units_stay_whole_and_the_longest_are_first():
    found = scheduled([1, 9, 3], 1)
    assert [one.kernel for one in found] == [1, 2, 0]
    assert all(isinstance(one.item, CheckItem) for one in found)
    assert [one.kernel for one in scheduled([None] * 5, 1)] == [0, 1, 2, 3, 4]


def test_on_one_machine_the_kernels_of_an_operator_stay_together():
    made = [CheckItem.of(task, Settings()) for op in (copy, fill) for task in plan(op, this_machine(), None, "cpu")[:2]]
    known = {name_of(item): parts(s) for item, s in zip(made, [1, 2, 3, 9], strict=True)}
    found = arranged(made, known, lambda item: 1, lambda item: Finished.NOTHING)
    assert [one.kernel for one in found] == [1, 0, 3, 2]


def test_one_after_the_other_they_go_in_their_order(monkeypatch):
    known = {
        name_of(item): parts(s) for item, s in zip(items(2, level="smoke", checks=("values",)), [1, 9], strict=True)
    }
    monkeypatch.setattr(Lengths, "read", lambda self: known)
    order = []
    ow.check(
        copy, kernels=["kernel0", "kernel1"], device="cpu", jobs=1, level="smoke", checks=["values"],
        events=ow.Events(finished=lambda verdict: order.append(verdict.kernel)),
    )  # fmt: skip
    assert order == ["kernel0", "kernel1"]


def test_the_longest_are_first():
    found = scheduled([1, 9, 3] * 10, 2)
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    assert found[0].kernel == 1


def test_a_kernel_for_which_all_others_would_wait_is_cut():
    found = scheduled([40, 4, 4, 4, 4], 4)
    cut = [one for one in found if one.kernel == 0]
    assert [type(one.item) for one in cut] == [PartialItem] * 4
    assert sum(one.seconds for one in cut) == pytest.approx(40 + 3 * 4)  # each starts anew
    assert end(found, 4) < 20


def test_many_equal_kernels_are_not_cut():
    assert all(isinstance(one.item, CheckItem) for one in scheduled([4] * 40, 4))


def test_of_equal_kernels_of_unknown_length_the_last_ones_are_cut():
    found = scheduled([None] * 14, 4)
    whole = [one for one in found if isinstance(one.item, CheckItem)]
    assert 8 <= len(whole) < 14
    ideal = sum(arrangement.USUAL.values()) * 14 / 4
    assert end(found, 4) < 1.12 * ideal


def test_kernels_that_were_measured_stand_for_others_of_their_operator():
    found = scheduled([30, None, 10, 20], 2)
    assert {one.kernel: one.seconds for one in found if isinstance(one.item, CheckItem)}.get(1, 20) == 20
    assert sum(one.seconds for one in found) >= 80


@pytest.mark.parametrize("slots", [1, 2])
def test_what_an_earlier_run_has_finished_is_taken_in_that_form(slots):
    held = {"kernel7": Finished.SOME, "kernel0": Finished.ALL}
    found = scheduled([9] + [1] * 39, slots, held=lambda item: held.get(item.task.kernel, Finished.NOTHING))
    assert {one.kernel for one in found if isinstance(one.item, PartialItem)} == {7}
    assert [one.seconds for one in found if one.kernel == 0] == [0.0]


def test_one_case_is_not_cut():
    made = items(1, case="n=3")
    assert [one.item for one in arranged(made, {}, lambda item: 4, lambda item: Finished.NOTHING)] == made


def test_the_seconds_of_groups_are_those_of_their_checks():
    steps = {"start": 1.0, "build": 30.0, "values": 4.0, "metadata": 0.5, "gradients": 2.0}
    verdict = Verdict("o", "k", "cpp", "cpu", Status.PASS, step_seconds=steps)
    assert seconds_by_group(verdict) == {"start": 1.0, "values": 4.5, "memory": 0.0, "derivatives": 2.0}
    assert set(parts(1)) == {"start", *GROUPS}


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
