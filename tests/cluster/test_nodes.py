"""What a work item asks Ray for: the right machine, and nothing beside what is timed."""

from __future__ import annotations

import pytest

from opwright.cluster.nodes import Node, can_run, cores_for, options_for, units_at_a_time
from opwright.cluster.warm import warm_tasks
from opwright.machine import this_machine
from opwright.sweep.work_item import Needs


def node(name, cpus, gpus=0, gpu_type=""):
    resources = {"CPU": cpus, "GPU": gpus, **({f"accelerator_type:{gpu_type}": 1.0} if gpu_type else {})}
    return Node.of(name, f"host-{name}", this_machine(), resources)


CPUS, MORE_CPUS = node("a", 16), node("b", 64)
H100, A100 = node("h", 96, 8, "H100"), node("g", 48, 4, "A100")
ALL = [CPUS, MORE_CPUS, H100, A100]


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (Needs(), {"num_cpus": 1, "num_gpus": 0}),
        (Needs(gpu=True), {"num_cpus": 1, "num_gpus": 1}),
        # The share of a GPU: no other item of a GPU finds fewer, and no item of a CPU finds any.
        (Needs(gpu=True, alone=True), {"num_cpus": 12, "num_gpus": 1}),
        (Needs(gpu=True, gpu_type="H100"),
         {"num_cpus": 1, "num_gpus": 1, "resources": {"accelerator_type:H100": 0.001}}),
        (Needs(gpu=True, gpus=8), {"num_cpus": 1, "num_gpus": 8}),
        # No machine has so many: it says so itself, with one.
        (Needs(gpu=True, gpus=16), {"num_cpus": 1, "num_gpus": 1}),
        # All processors of the largest machine, so that nothing runs beside it there.
        (Needs(alone=True), {"num_cpus": 96, "num_gpus": 0}),
    ],
)  # fmt: skip
def test_options(needs, expected):
    assert options_for(needs, ALL, set()) == expected


def test_a_machine_on_which_it_was_lost_is_avoided_if_there_is_another():
    assert options_for(Needs(), ALL, {"a", "b"})["label_selector"] == {"ray.io/node-id": "!in(a,b)"}
    assert "label_selector" not in options_for(Needs(), [CPUS], {"a"})
    assert "label_selector" not in options_for(Needs(gpu=True), [CPUS, H100], {"h"})
    assert "label_selector" not in options_for(Needs(gpu=True, gpu_type="H100"), ALL, {"h"})


def test_a_unit_for_which_there_is_no_machine():
    assert can_run(Needs(), [CPUS])
    assert not can_run(Needs(gpu=True), [CPUS, MORE_CPUS])
    assert not can_run(Needs(gpu=True, gpu_type="B200"), ALL)
    assert can_run(Needs(gpu=True, gpu_type="A100"), ALL)
    assert can_run(Needs(gpu=True, gpus=8), ALL)
    assert not can_run(Needs(gpu=True, gpus=9), ALL)


def test_units_at_a_time_are_those_of_all_machines():
    assert units_at_a_time(Needs(), ALL) == [16, 64, 96, 48]
    assert units_at_a_time(Needs(gpu=True), ALL) == [0, 0, 8, 4]
    assert units_at_a_time(Needs(gpu=True, gpu_type="A100"), ALL) == [0, 0, 0, 4]
    assert units_at_a_time(Needs(gpu=True, gpus=3), ALL) == [0, 0, 2, 1]


def test_a_unit_uses_one_core_or_those_of_its_gpu():
    assert cores_for(Needs(), ALL) == 1
    assert cores_for(Needs(gpu=True), [CPUS, H100]) == 12
    assert cores_for(Needs(gpu=True), [node("few", 2, 4)]) == 1


def test_a_worker_for_each_gpu_is_made_ready_or_a_few_on_cpus():
    assert warm_tasks({"CPU": 96.0, "GPU": 8.0}) == [{"num_gpus": 1, "num_cpus": 1}] * 8
    assert warm_tasks({"CPU": 2.0, "GPU": 4.0}) == [{"num_gpus": 1, "num_cpus": 0}] * 4
    assert warm_tasks({"CPU": 2.0}) == [{"num_gpus": 0, "num_cpus": 1}] * 2
    assert len(warm_tasks({"CPU": 96.0})) == 8
    assert warm_tasks({"memory": 1e9}) == []
