"""Work items run here: in threads, those that have to be alone one after the other; Ctrl-C ends what runs."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from opwright.machine import Gpu, this_machine
from opwright.sweep.executor import LocalExecutor, run_items, usual_slots
from opwright.sweep.journal import Journal
from opwright.sweep.work_item import Done, Needs
from tests.sweep.work_items import Square, Squared

VERSIONS = {"torch": "2.14"}


def results(items, executor=None, **options):
    with run_items(items, executor or LocalExecutor(2), **options) as done:
        return {one.number: one.result.value for one in done}


def test_each_unit_gives_its_result():
    steps = []
    found = results([Square(n) for n in range(5)], on_step=lambda item, what: steps.append((item.number, what)))
    assert found == {n: n**2 for n in range(5)}
    assert sorted(steps) == [(n, "multiplies") for n in range(5)]


def test_what_has_to_be_alone_runs_in_this_thread_after_the_others():
    order = []

    class Noted(Square):
        def run(self, on_step):
            order.append(self.number)
            return super().run(on_step)

    items = [Noted(0, Needs(alone=True)), Noted(1), Noted(2, Needs(alone=True)), Noted(3)]
    results(items)
    assert order[2:] == [0, 2]
    assert items[0].thread == items[2].thread == threading.get_ident() != items[1].thread


def test_an_interrupt_ends_what_runs_and_passes_on():
    ended = []
    with pytest.raises(KeyboardInterrupt):
        results([Square(1, raises=KeyboardInterrupt), Square(2)], LocalExecutor(1, lambda: ended.append(True)))
    assert ended == [True]


def test_an_interrupt_ends_also_what_an_item_starts_in_place_of_what_was_ended():
    ends, started = [threading.Event(), threading.Event()], threading.Event()

    class StartsAgain(Square):
        def run(self, on_step):
            for event in ends:
                started.set()
                event.wait()
            return super().run(on_step)

    class Interrupted(Square):
        def run(self, on_step):
            started.wait()
            return super().run(on_step)

    def end():
        for event in [event for event in ends if not event.is_set()][:1]:
            event.set()

    with pytest.raises(KeyboardInterrupt):
        results([Interrupted(1, raises=KeyboardInterrupt), StartsAgain(2)], LocalExecutor(2, end))
    assert all(event.is_set() for event in ends)


def test_what_is_lost_is_not_written_and_runs_again(tmp_path):
    class Loses(LocalExecutor):
        def run(self, items, on_step):
            for number, item in enumerate(items):
                yield Done(number, item.without_result("its worker died", ""), lost=True)

    with Journal(tmp_path / "j", VERSIONS) as journal:
        assert results([Square(3)], Loses(), journal=journal) == {0: -1}
    item = Square(3)
    with Journal(tmp_path / "j", VERSIONS) as journal:
        assert results([item], journal=journal) == {0: 9}
    assert item.ran == 1
    assert isinstance(item.run(print), Squared)


@pytest.mark.parametrize(
    ("cores", "gigabytes", "expected"),
    [(1, [], 1), (2, [], 2), (6, [], 4), (12, [], 6), (64, [], 8), (16, [80, 80], 8), (16, [80, 8], 4), (1, [8], 1)],
)
def test_units_at_a_time_follow_cores_and_the_memory_of_gpus(cores, gigabytes, expected):
    gpus = tuple(Gpu("a GPU", (9, 0), n << 30) for n in gigabytes)
    assert usual_slots(dataclasses.replace(this_machine(), cores=cores, gpus=gpus)) == expected
