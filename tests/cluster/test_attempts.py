"""When a work item is tried again, when it is over, and what is said of it."""

from __future__ import annotations

from opwright.cluster.attempts import Attempts, Loss, LossKind


def worker(node, step="values n=5"):
    return Loss(LossKind.WORKER, "WorkerCrashedError", node, f"host-{node}", step)


def machine(node):
    return Loss(LossKind.MACHINE, "NodeDiedError", node, f"host-{node}", "build")


def unfit(node):
    return Loss(LossKind.UNFIT, "its disk is full", node, f"host-{node}")


def test_a_worker_that_dies_is_tried_three_times_more_elsewhere():
    attempts = Attempts()
    for node in "abc":
        attempts.losses.append(worker(node))
        assert not attempts.is_over
    assert attempts.nodes_to_avoid == {"a", "b", "c"}
    attempts.losses.append(worker("d"))
    assert attempts.is_over
    assert attempts.describe().startswith("the workers or machines that ran it died 4 times\n")
    assert "its worker died on host-a at 'values n=5': WorkerCrashedError" in attempts.describe()
    assert "without --ray" in attempts.remedy()


def test_what_two_machines_died_of_is_tried_on_no_third_one():
    attempts = Attempts([machine("a"), worker("b")])
    assert not attempts.is_over
    attempts.losses.append(machine("c"))
    assert attempts.is_over
    assert attempts.describe().startswith("2 machines died while they ran it, so it is tried on no other one")
    assert "the machine died on host-c at 'build'" in attempts.describe()


def test_a_worker_whose_machine_is_gone_died_with_it():
    attempts = Attempts([worker("a"), worker("b"), unfit("c")])
    attempts.see_dead_machines({"b"})
    assert [loss.kind for loss in attempts.losses] == [LossKind.MACHINE, LossKind.WORKER, LossKind.UNFIT]
    assert not attempts.is_over
    attempts.see_dead_machines(set())
    assert attempts.is_over


def test_a_machine_under_which_several_units_of_a_subject_ran_died_once():
    attempts = Attempts([machine("a"), machine("a")])
    assert not attempts.has_ended_machines
    attempts.losses.append(machine("b"))
    assert attempts.has_ended_machines
    assert attempts.describe().startswith("2 machines died")


def test_machines_that_cannot_run_it_are_not_blamed_on_the_unit():
    attempts = Attempts([unfit(node) for node in "abcd"])
    assert attempts.is_over
    assert attempts.describe().startswith("it was tried 4 times without a result")
    assert "the machine was unfit on host-b: its disk is full" in attempts.describe()
    assert "repair these machines" in attempts.remedy()


def test_a_loss_of_which_nothing_is_known():
    attempts = Attempts([Loss(LossKind.WORKER, "WorkerCrashedError")])
    assert attempts.nodes_to_avoid == set()
    assert attempts.describe().endswith("\n  its worker died: WorkerCrashedError")
