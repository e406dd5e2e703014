"""What the driver does with items, losses and machines that are gone, with a Ray that is made up."""

from __future__ import annotations

import concurrent.futures
import queue
import types

import pytest

from opwright.cluster.nodes import Node
from opwright.cluster.sweep import Sweep, Tasks
from opwright.cluster.worker import Note, UnfitMachine
from opwright.machine import this_machine
from opwright.sweep.work_item import Needs
from tests.sweep.work_items import Square, Squared

ray_exceptions = pytest.importorskip("ray.exceptions", reason="Ray is not installed")


class Ref:
    def __init__(self, where):
        self.where, self.made, self.cancelled = where, concurrent.futures.Future(), False

    def future(self):
        return self.made


class Ray:
    """Ends each task as ``script`` says: for a work item's number, a list of what its attempts give, the first first.

    What is an error is raised, ``"silent"`` gives nothing after the machine is gone, and everything else is a result.
    """

    exceptions = ray_exceptions

    def __init__(self, script, nodes="ab", seconds_for_notes=0.0, leads=""):
        self.script, self.names, self.dead = script, nodes, set()
        self.seconds_for_notes, self.leads = seconds_for_notes, leads
        self.given, self.notes, self.now = [], [], 0.0
        self.take = types.SimpleNamespace(remote=lambda: "notes")

    # the module
    put = staticmethod(lambda value: value)

    def nodes(self):
        return [{"NodeID": name, "Alive": name not in self.dead} for name in self.names]

    def cancel(self, ref, force):
        ref.cancelled = True

    def get(self, value, timeout):
        if timeout < self.seconds_for_notes:
            raise ray_exceptions.GetTimeoutError
        notes, self.notes = self.notes, []
        return notes

    # the task
    def options(self, **options):
        self.chosen = options
        return self

    def remote(self, bundle, where, board, store, *operators):
        self.given.append((where.number, where.attempt, self.chosen))
        ref, outcome = Ref(where), self.script[where.number][where.attempt]
        alive = [name for name in self.names if name not in self.dead]
        node = alive[where.attempt % len(alive)]
        self.notes.append(Note(where.number, where.attempt, node, f"host-{node}", "values n=5"))
        if outcome == "silent":
            self.dead.add(node)
        elif isinstance(outcome, Exception):
            ref.made.set_exception(outcome)
        else:
            ref.made.set_result(outcome)
        return ref

    # the queue of what is over, and time
    class Over(queue.SimpleQueue):
        def __init__(self, ray):
            self.ray = ray

        def get(self, timeout):
            self.ray.now += 6.0
            return super().get(block=False)

    def run(self, items, steps=None):
        cpus = {name: 0.0 if name in self.leads else 1.0 for name in self.names}
        nodes = [Node.of(name, f"host-{name}", this_machine(), {"CPU": cpus[name]}) for name in self.names]
        note = lambda item, what: steps.append(what) if steps is not None else None  # noqa: E731
        sweep = Sweep(
            self, Tasks(self, self), self, None, nodes, items, note, over=self.Over(self), clock=lambda: self.now
        )
        return {done.number: done for done in sweep.results()}


def task_error(cause):
    return ray_exceptions.RayTaskError("do", "traceback", cause).as_instanceof_cause()


def test_results_come_with_their_numbers_and_few_are_given_ahead():
    ray = Ray({n: [Squared(n)] for n in range(9)})
    found = ray.run([Square(n) for n in range(9)])
    assert {number: done.result.value for number, done in found.items()} == {n: n for n in range(9)}
    assert not any(done.lost for done in found.values())


def test_a_worker_that_dies_is_tried_elsewhere_and_others_go_on():
    steps = []
    ray = Ray({0: [ray_exceptions.WorkerCrashedError(), Squared(5)], 1: [Squared(1)]})
    found = ray.run([Square(0), Square(1)], steps)
    assert (found[0].result, found[1].result) == (Squared(5), Squared(1))
    (again,) = [options for number, attempt, options in ray.given if (number, attempt) == (0, 1)]
    assert again["label_selector"] == {"ray.io/node-id": "!in(a)"}
    assert any(step.startswith("its worker died on host-a at 'values n=5'") for step in steps)


def test_after_four_deaths_it_is_lost():
    ray = Ray({0: [ray_exceptions.WorkerCrashedError()] * 5})
    (done,) = ray.run([Square(0)]).values()
    assert done.lost
    assert len(ray.given) == 4


def test_a_machine_that_is_gone_while_ray_says_nothing():
    ray = Ray({0: ["silent", Squared(4)]})
    (done,) = ray.run([Square(0)]).values()
    assert (done.result, done.lost) == (Squared(4), False)


def test_a_unit_under_which_two_machines_die_is_tried_on_no_third_one():
    ray = Ray({0: ["silent", "silent", Squared(4)]}, nodes="abc")
    (done,) = ray.run([Square(0)]).values()
    assert done.lost
    assert len(ray.given) == 2


def test_a_slow_board_hides_no_machine_that_died():
    ray = Ray({0: ["silent", "silent", Squared(4), Squared(4)]}, nodes="abc", seconds_for_notes=10.0)
    (done,) = ray.run([Square(0)]).values()
    assert done.lost
    assert len(ray.given) == 2


class Explained(Square):
    def without_result(self, why, remedy):
        return why


def test_an_item_for_which_no_machine_is_left_says_where_it_was_lost():
    ray = Ray({0: ["silent", Squared(4)]}, leads="b")
    (done,) = ray.run([Explained(0)]).values()
    assert done.result.splitlines() == [
        "no machine of the cluster has a processor for tasks",
        "  the machine died on host-a at 'values n=5': it answers no more",
    ]


def test_units_of_one_subject_share_what_is_known_of_dead_machines():
    of_one = Needs(whole="a kernel")
    ray = Ray({0: ["silent", "silent"], **{n: [Squared(n * n)] * 3 for n in range(1, 40)}}, nodes="abc")
    found = ray.run([Square(n, of_one) if n < 30 else Square(n) for n in range(40)])
    lost = {n for n in found if found[n].lost}
    assert {0, 29} <= lost
    assert lost < set(range(30))  # those that had ended before have results; and what is part of another item
    begun = {number for number, attempt, _ in ray.given}
    assert 29 not in begun


def test_timed_units_on_a_gpu_get_a_process_of_their_own():
    tasks = Tasks("usual", "timed")
    assert tasks.of(Needs(gpu=True, alone=True)) == "timed"
    assert tasks.of(Needs(gpu=True)) == tasks.of(Needs(alone=True)) == "usual"


def test_an_error_on_the_way_to_the_unit_is_not_tried_again_and_an_unfit_machine_is():
    ray = Ray({0: [task_error(ValueError("cannot be imported"))], 1: [task_error(UnfitMachine("disk")), Squared(1)]})
    found = ray.run([Square(0), Square(1)])
    assert (found[0].lost, found[1].lost) == (True, False)
    assert [number for number, *_ in ray.given].count(0) == 1


def test_what_needs_nothing_runs_here_and_what_nobody_has_is_lost_at_once():
    ray = Ray({})
    found = ray.run([Square(3, Needs(here=True)), Square(4, Needs(gpu=True))])
    assert found[0].result == Squared(9)
    assert found[1].lost
    assert ray.given == []


def test_a_unit_that_cannot_be_sent_is_lost_and_says_so():
    class Unsendable(Square):
        def __reduce__(self):
            raise TypeError("it holds a handle")

        def without_result(self, why, remedy):
            return why

    (done,) = Ray({}).run([Unsendable(1)]).values()
    assert done.lost
    assert done.result == "it cannot be sent to the cluster: TypeError: it holds a handle"
