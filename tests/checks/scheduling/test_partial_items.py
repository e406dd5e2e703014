"""A kernel whose checks run in items gets the verdict of one whose checks run in one process."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from opwright.checks.case_range import CaseRange
from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.partial_items import (
    PartialItem,
    can_be_split,
    merged,
    partial_items_of,
    wants_all_cases,
)
from opwright.checks.scheduling.verdict import Outcome, Settings
from opwright.checks.table import CHECKS, GROUPS
from opwright.gallery.add import add
from opwright.machine import this_machine
from opwright.results import Coverage, ErrorHistogram, Finding, NotChecked, Refused, Status
from opwright.sweep.executor import LocalExecutor
from opwright.target import Engine, Target

# Each kernel is checked twice, in several processes.
in_processes = pytest.mark.slow

SOME = ["contract", "memory", "values", "special values", "metadata", "inputs unchanged", "global state", "gradients",
        "opcheck", "afterwards", "own work", "protected memory"]  # fmt: skip


class Spread(LocalExecutor):
    """This machine, as if it were so many that each kernel is cut."""

    def slots_for(self, needs):
        return 100


@ow.op("split::scale")
def scale(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
    return a * x


def leaves_the_number_of_threads(x, a):
    torch.set_num_threads(3)
    return x * a


def ends_for_a_long_one(x, a):
    if len(x) > 1000:
        os.kill(os.getpid(), signal.SIGKILL)
    return x * a


scale.python(lambda x, a: x * a, name="right")
scale.python(lambda x, a: x.clone(), name="wrong")
scale.python(lambda x, a: x * a if len(x) < 900 else x * a * 1.01, name="wrong for long ones")
scale.python(leaves_the_number_of_threads, name="warns of a setting")
scale.python(lambda x, a: x * a, name="seldom applicable", when=lambda x, a: len(x) > 2000)
scale.python(lambda x, a: x * a, name="never applicable", when=lambda x, a: False)
scale.python(lambda x, a: os.kill(os.getpid(), signal.SIGKILL), name="ends itself")
scale.python(ends_for_a_long_one, name="ends itself for long ones")
scale.python(lambda x, a: [x][a], name="raises")
STATUSES = {
    "right": "pass", "wrong": "fail", "wrong for long ones": "fail", "warns of a setting": "warning",
    "seldom applicable": "thin", "never applicable": "fail", "ends itself": "fail",
    "ends itself for long ones": "fail", "raises": "fail",
}  # fmt: skip


@ow.op("split::square")
def square(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return x * x


@square.register_autograd
def _(x, grad):
    return 3 * x * grad


square.python(lambda x: x**2, name="wrong gradient")


def plain(report: ow.results.CheckReport) -> object:
    """A report without the machine, times, numbers of calls that follow from times, and measured memory."""
    record = report.to_json()
    del record["machine"]
    for verdict in record["verdicts"]:
        verdict["seconds"] = verdict["step_seconds"] = None
        for finding in verdict["findings"]:
            if finding["peak_memory"]:
                finding["message"], finding["peak_memory"] = "", len(finding["peak_memory"])
    return json.loads(re.sub(r'"\d+ calls( in each)?"', '"calls"', json.dumps(record)))


def both(operator, **options):
    """The reports of one process for each kernel, and of items."""
    return ow.check(operator, device="cpu", **options), ow.check(operator, device="cpu", executor=Spread(2), **options)


@in_processes
def test_kernels_of_every_status_get_the_same_record():
    whole, split = both(scale, checks=SOME)
    assert {v.kernel: v.status for v in whole} == STATUSES
    assert plain(split) == plain(whole)


@in_processes
def test_the_end_at_the_first_failure_is_the_same():
    kernels = ["right", "wrong for long ones", "ends itself for long ones"]
    whole, split = both(scale, kernels=kernels, checks=SOME, fail_fast=True)
    assert [v.status for v in whole] == ["pass", "fail", "fail"]
    assert plain(split) == plain(whole)


@in_processes
def test_what_fails_in_one_item_only_fails():
    whole, split = both(square)
    assert {f.check for f in whole.verdicts[0].failures} == {"gradients", "opcheck", "torch.compile"}
    assert plain(split) == plain(whole)


@pytest.mark.exhaustive
@in_processes
@pytest.mark.compiler
def test_what_does_not_compile(tmp_path):
    @ow.op("split::twice")
    def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x * 2

    (tmp_path / "kernel.cpp").write_text("torch::stable::Tensor twice(const torch::stable::Tensor& x) { return y; }")
    twice.cpp(tmp_path / "kernel.cpp")
    whole, split = both(twice)
    assert [f.check for f in whole.verdicts[0].findings] == ["build"]
    assert plain(split) == plain(whole)


@in_processes
@pytest.mark.nvrtc
def test_all_checks_of_a_kernel_of_the_gallery():
    whole, split = both(add, kernels=["f32x4"])
    assert plain(split) == plain(whole)
    assert [v.status for v in split] == ["pass"]


@pytest.mark.exhaustive
@in_processes
def test_a_random_operator():
    @ow.op("split::noise", random=True)
    def noise(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + torch.randn_like(x)

    noise.python(lambda x: torch.randn_like(x) + x, name="right")
    whole, split = both(noise, checks=["values", "metadata", "flops"])
    assert plain(split) == plain(whole)


@in_processes
def test_each_item_is_written_and_a_later_run_takes_it_up(tmp_path):
    options = {"kernels": ["right"], "checks": SOME, "device": "cpu", "resume": tmp_path / "journal"}
    first = ow.check(scale, executor=Spread(2), **options)
    lines = (tmp_path / "journal").read_text().splitlines()
    items = [json.loads(line)["unit"] for line in lines[1:]]
    assert items.pop() == "split::scale right on cpu"
    assert sorted(items) == [
        "split::scale right on cpu: derivatives", "split::scale right on cpu: memory",
        "split::scale right on cpu: values 1 of 2", "split::scale right on cpu: values 2 of 2",
    ]  # fmt: skip
    for left, taken, executor in ((5, 1, None), (4, 4, None), (3, 3, None), (3, 3, Spread(2))):
        (tmp_path / "journal").write_text("\n".join(lines[: 1 + left]) + "\n")
        said = []
        again = ow.check(scale, executor=executor, events=ow.Events(resumed=said.append), **options)
        assert plain(again) == plain(first)
        assert said == [f"{taken} finished before are taken from {tmp_path / 'journal'}"]


class Loses(LocalExecutor):
    """Machines on which the items with some name are lost."""

    name = ""

    def slots_for(self, needs):
        return 100

    def run(self, items, on_step):
        for done in super().run(items, on_step):
            item = items[done.number]
            if self.name in item.name:
                done = dataclasses.replace(done, result=item.without_result("2 machines died", "repair"), lost=True)
            yield done


@in_processes
@pytest.mark.parametrize(("kernel", "status"), [("right", "inconclusive"), ("wrong", "fail")])
def test_a_item_that_no_machine_can_finish(kernel, status):
    machines = Loses(2)
    machines.name = "derivatives"
    checks = ["values", "metadata", "gradients"]
    (verdict,) = ow.check(scale, kernels=[kernel], checks=checks, device="cpu", executor=machines)
    assert verdict.status is Status(status)
    assert [f.message for f in verdict.findings if f.check == "machines"] == ["2 machines died"]
    assert NotChecked("gradients", "no machine could finish it") in verdict.not_checked
    assert any(f.check == "values" for f in verdict.findings)


# -- without processes -------------------------------------------------------------------------------------------------


def unit_of(kernel="right", **settings):
    from opwright.checks.scheduling.plan import plan

    (task,) = plan(scale, this_machine(), [kernel], "cpu")
    return CheckItem.of(task, Settings(**settings))


def test_every_check_is_in_one_item():
    found = [check for checks in GROUPS.values() for check in checks]
    assert sorted(found) == sorted(set(CHECKS) - {"afterwards"})
    items = partial_items_of(unit_of())
    assert [one.group for one in items] == ["values", "values", "memory", "derivatives"]
    assert all(list(one.checks) == [name for name in CHECKS if name in one.checks] for one in items)
    assert len({one.key for one in items}) == len({one.name for one in items}) == 4


def test_what_is_not_cut():
    assert can_be_split(unit_of())
    assert not can_be_split(unit_of(case="n=3"))
    assert not can_be_split(unit_of(level="smoke"))
    assert not can_be_split(unit_of(checks=("gradients",)))
    assert can_be_split(unit_of(checks=("values",)))
    task = unit_of().task
    may_be_interpreted = dataclasses.replace(task, fallback=Target("cpu", Engine.INTERPRETER))
    assert not can_be_split(CheckItem.of(may_be_interpreted, Settings()))
    assert not can_be_split(CheckItem.of(dataclasses.replace(task, refused=Refused("no GPU")), Settings()))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 128])
def test_ranges_are_all_cases_once_and_in_order(count):
    cases = list(range(count))
    ranges = [CaseRange(n, 3).of(cases) for n in range(3)]
    assert [*ranges[0], *ranges[1], *ranges[2]] == cases
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def passed(check, run, generated, counts=None):
    histogram = None if counts is None else ErrorHistogram((0.0, 1.0, 2.0), counts, "share")
    return Finding(check, Status.PASS, message=f"{run} cases", coverage=Coverage(run, generated),
                   error_histogram=histogram)  # fmt: skip


def skipped(check, count, example, reason="the kernel is not applicable (dtypes, when)"):
    return NotChecked.in_cases(check, count, example, reason)


def of_values(*outcomes, checks=("values",)):
    item = unit_of(checks=checks)
    items = partial_items_of(item)
    assert [one.group for one in items] == ["values", "values"]
    assert not wants_all_cases(outcomes)
    return merged(item, items, outcomes)


def test_ranges_are_added():
    first = Outcome((passed("values", 30, 40, (1, 2)),), (skipped("values", 10, "n=5"),))
    second = Outcome(
        (passed("values", 39, 40, (3, 4)),), (skipped("values", 1, "n=7"), skipped("values", 2, "n=9", "odd"))
    )
    found = of_values(first, second)
    assert found.findings == (passed("values", 69, 80, (4, 6)),)
    assert found.not_checked[:2] == (skipped("values", 11, "n=5"), skipped("values", 2, "n=9", "odd"))


def test_a_range_in_which_no_case_could_be_run_counts():
    first = Outcome((), (skipped("values", 40, "n=5"), NotChecked("values", "no case could be run")))
    second = Outcome((passed("values", 40, 40),))
    found = of_values(first, second)
    assert [f.coverage for f in found.findings] == [Coverage(40, 80)]
    assert [n.why for n in found.not_checked if n.check == "values"] == [skipped("values", 40, "n=5").why]
    neither = of_values(first, first)
    assert neither.status is Status.FAIL
    said = [n.why for n in neither.not_checked if n.check == "values"]
    assert said == [skipped("values", 80, "n=5").why, "no case could be run"]


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome((Finding("values", Status.FAIL, "n=3", "wrong"),)),
        Outcome((Finding("global state", Status.WARNING, "n=3", "leaves"), passed("values", 3, 3))),
        Outcome((), (NotChecked("values", "only empty inputs could be run, which verify nothing"),)),
        Outcome((Finding("values", Status.FAIL, "n=3", "crashed"),), ended_at="values", is_incomplete=True),
    ],
)
def test_what_cannot_be_added_runs_again_with_all_cases(outcome):
    right = Outcome((passed("values", 30, 40),))
    assert wants_all_cases([outcome, right])
    assert wants_all_cases([right, outcome])
    assert not wants_all_cases([right, right])
    assert not wants_all_cases([Outcome(lost="its machine died"), outcome])
    assert not wants_all_cases([Outcome(refused="no GPU"), right])


def test_two_cases_of_which_each_process_has_one_may_both_be_empty():
    assert wants_all_cases([Outcome((passed("values", 1, 1),))] * 2)
    assert not wants_all_cases([Outcome((passed("values", 1, 1),)), Outcome((passed("values", 2, 2),))])


def three(**outcomes):
    """The verdict of items without ranges."""
    item = unit_of()
    given = {group: outcomes.get(group, Outcome()) for group in GROUPS}
    items = [PartialItem(item, group, tuple(GROUPS[group])) for group in GROUPS]
    return merged(item, items, list(given.values()))


def test_after_the_first_end_nothing_of_later_checks_is_left():
    ended = Finding("threads", Status.FAIL, message="crashed")
    found = three(
        values=Outcome((passed("values", 9, 9),)),
        memory=Outcome((passed("memory", 9, 9), ended), ended_at="threads", is_incomplete=True),
        derivatives=Outcome((Finding("gradients", Status.FAIL, message="wrong"),), (NotChecked("vmap", "no"),)),
    )
    assert [f.check for f in found.findings] == ["memory", "values", "threads"]
    why = {n.check: n.why for n in found.not_checked}
    assert why["gradients"] == why["opcheck"] == "the worker ended at 'threads'"
    assert found.reason == "failed: threads"


def test_an_end_after_the_last_check_is_found_once():
    outcomes = {
        group: Outcome((passed(check, 9, 9), Finding(last, Status.FAIL, message="crashed")), ended_at="end")
        for group, check, last in [("values", "values", "afterwards"), ("memory", "memory", "protected memory"),
                                   ("derivatives", "gradients", "own work")]
    }  # fmt: skip
    found = three(**outcomes)
    assert [f.check for f in found.findings] == ["memory", "values", "gradients", "protected memory"]


def test_what_fails_before_any_check_is_found_once():
    build = Outcome((Finding("build", Status.FAIL, message="error: expected ')'"),))
    assert three(values=build, memory=build, derivatives=build).findings == build.findings


def test_of_the_check_at_the_end_of_each_item_the_failure_counts():
    right, wrong = passed("afterwards", 4, 4), Finding("afterwards", Status.FAIL, message="after all: wrong")
    found = three(values=Outcome((right,)), memory=Outcome((wrong,)), derivatives=Outcome((right,)))
    assert found.failures == (wrong,)
    found = three(values=Outcome((right,)), memory=Outcome((right,)))
    assert found.findings[:1] == (right,)


def test_a_refusal_by_one_item_is_one_of_the_kernel():
    found = three(values=Outcome((passed("values", 9, 9),)), memory=Outcome(refused="it needs a barrier"))
    assert (found.status, found.reason) == (Status.REFUSED, "it needs a barrier")
