"""Operators that communicate: their contract, their calls, and the checks on several ranks."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from jaxtyping import Float
from torch import Tensor, nn

import opwright as ow
from opwright.checks.exceptions import Raised
from opwright.checks.ranks import world
from opwright.checks.ranks.answers import RankAnswer
from opwright.checks.ranks.context import what_failed
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.text import parse_case
from opwright.planted.catalogue import Row
from opwright.planted.kernels import communication
from tests import REPOSITORY
from tests.sampled import quick, sampled

_ROWS = {row.kernel: row for row in communication.ROWS if row.op is not communication.rows_of_all}


@pytest.fixture
def group() -> Iterator[ow.ProcessGroup]:
    """A group of this process only."""
    world.join_alone("cpu")
    yield ow.ProcessGroup(dist.group.WORLD)
    dist.destroy_process_group()


def _checked(op: ow.Op, kernel: str, *checks: str, case: str = "", timeout: float = 60.0) -> ow.results.Verdict:
    (verdict,) = ow.check(op, kernels=[kernel], checks=checks or ("ranks",), case=case, device="cpu", timeout=timeout)
    return verdict


# -- the contract --------------------------------------------------------------------------------------------------


def test_a_process_group_is_a_name_in_the_schema_and_a_size_in_shapes():
    signature = communication.gather_matmul.contract
    assert signature.schema == "(Tensor x, Tensor w, str group) -> Tensor"
    assert "group: ProcessGroup" in signature.call_form


def test_a_call_takes_a_group_of_torch_a_mesh_or_a_name(group):
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    for given in (dist.group.WORLD, dist.group.WORLD.group_name, group, mesh):
        with communication.gather_matmul.only("padded and summed"):
            torch.testing.assert_close(communication.gather_matmul(x, w, given), x @ w)
            torch.testing.assert_close(communication.gather_matmul(x, w=w, group=given), x @ w)


def test_the_reference_and_kernels_get_the_name_with_size_and_rank(group, namespace):
    seen = []

    @ow.op(f"{namespace}::operator")
    def operator(x: Float[Tensor, " n"], group: ow.ProcessGroup) -> Float[Tensor, " group*n"]:
        seen.append((type(group), group.size(), group.rank()))
        return x.repeat(group.size())

    operator(torch.ones(2), dist.group.WORLD)
    operator.python(lambda x, group: seen.append((type(group), group.size(), group.rank())) or x * 1, name="kernel")
    operator(torch.ones(2), dist.group.WORLD)
    getattr(torch.ops, namespace).operator(torch.ones(2), str(group))
    assert set(seen) == {(ow.ProcessGroup, 1, 0)}
    assert group.resolve() is dist.group.WORLD


@pytest.mark.parametrize("given", [3, None])
def test_what_is_no_group_is_refused(group, given):
    with pytest.raises(ow.errors.ArgumentError, match=r"argument 'group' must be a process group.*got"):
        communication.gather_matmul(torch.ones(2, 2), torch.ones(2, 2), given)


def test_a_name_that_no_group_has_is_refused(group):
    with pytest.raises(ow.errors.ArgumentError, match=r"argument 'group': this process has no process group 'nobody'"):
        communication.gather_matmul(torch.ones(2, 2), torch.ones(2, 2), "nobody")


def test_sizes_that_do_not_fit_the_number_of_processes_are_refused(namespace):
    @ow.op(f"{namespace}::operator")
    def operator(x: Float[Tensor, "3*group"], group: ow.ProcessGroup) -> Float[Tensor, "3"]:
        return x[:3] * 1

    world.join_alone("cpu")
    try:
        with pytest.raises(ow.errors.ArgumentError, match=r"must be 3 \(3\*group with group=1\), got 4"):
            operator(torch.ones(4), dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def test_torch_s_class_and_a_group_that_may_be_left_out_are_refused_at_definition(namespace):
    with pytest.raises(ow.errors.ContractError, match=r"torch's own process group\n.*group: ow.ProcessGroup"):

        @ow.op(f"{namespace}::operator")
        def _(x: Float[Tensor, " n"], group: dist.ProcessGroup) -> Float[Tensor, " n"]:
            return x * 1

    with pytest.raises(ow.errors.ContractError, match="a process group that may be left out"):

        @ow.op(f"{namespace}::operator")
        def _(x: Float[Tensor, " n"], group: ow.ProcessGroup | None = None) -> Float[Tensor, " n"]:
            return x * 1


@pytest.mark.slow  # compiles in each rank
def test_torch_compile_traces_calls_with_each_form_of_a_group(group):
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    for given in (dist.group.WORLD, dist.group.WORLD.group_name, group):
        run = torch.compile(lambda x, w, given=given: 2 * communication.gather_matmul(x, w, given), fullgraph=True)
        result = run(x, w)
        torch.testing.assert_close(result, 2 * x @ w)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(gradient, 2 * torch.ones(3, 5) @ w.T)


def test_nothing_that_would_communicate_again_is_derived():
    parts = communication.gather_matmul.parts
    missing = {name for name, part in parts.items() if part.origin is ow.results.Origin.MISSING}
    assert missing == {"vmap", "sharding", "decomposition"}
    assert "communicates" in parts["sharding"].how


def test_cases_have_the_number_of_processes():
    contract = communication.matmul_scatter.contract
    found = cases(contract, "quick", ranks=3)
    assert {case.ranks for case in found} == {3}
    assert all(dict(case.sizes)["m"] % 3 == 0 for case in found)
    assert parse_case(contract, str(found[5])) == found[5]
    assert "ranks" not in str(cases(contract, "quick")[0])


class Block(nn.Module):
    """A block whose layers the page names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(4)
        self.gate, self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.down(self.gate(x) * self.up(x))


def test_the_page_on_several_processes_runs(group):
    text = (REPOSITORY / "docs" / "distributed.md").read_text()
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    scope: dict[str, object] = {"__name__": "distributed", "mesh": mesh, "block": Block()}
    for block in re.findall(r"(?s)```python\n(.*?)```", text):
        exec(compile(block, "distributed.md", "exec"), scope)
    operator = scope["all_gather_matmul"]
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    for kernel in ("in_parts", "reference"):
        with operator.only(kernel):
            torch.testing.assert_close(operator(x, w, dist.group.WORLD), x @ w)


# -- the planted faults --------------------------------------------------------------------------------------------

# One of each kind that ends in another way; all of them are slow.
_SAMPLE = ("default group", "once more on rank 1", "raises on rank 1", "ends on rank 1", "in a ring")


@pytest.mark.parametrize("name", quick(_SAMPLE, 0, 2))
def test_a_sample_of_planted_kernels(name):
    _assert_judged(_ROWS[name], case="m=4 k=3 n=2")


@pytest.mark.slow  # each is checked in seven processes
@pytest.mark.parametrize("row", sampled(communication.ROWS, 5), ids=lambda row: row.defect)
def test_every_planted_kernel(row):
    _assert_judged(row)


def _assert_judged(row: Row, case: str = "") -> None:
    verdict = _checked(row.op, row.kernel, *row.checks, case=case)
    assert verdict.status is (ow.results.Status.FAIL if row.expected else ow.results.Status.PASS), verdict
    assert not row.expected or row.expected in {f.check for f in verdict.failures}


# -- what findings say ---------------------------------------------------------------------------------------------


def _message(kernel: str, case: str = "m=4 k=3 n=2", op: ow.Op = communication.gather_matmul) -> str:
    verdict = _checked(op, kernel, case=case)
    return verdict.failures[0].message


def test_a_finding_names_the_rank_and_shows_the_difference():
    message = _message("own rows first")
    assert message.startswith("rank 1: 16 of 16 elements differ")
    assert "expected" in message


def test_a_finding_says_what_each_rank_does_when_they_are_out_of_step():
    message = _message("once more on rank 1")
    assert message.startswith("the ranks are out of step\nrank 0 has returned from the kernel\nrank 1 calls ALLGATHER")


def test_a_finding_says_that_the_default_group_was_used():
    message = _message("default group")
    assert message.startswith("ranks 0, 1: the kernel communicates in the default group, not in the group that it is")


def test_a_finding_says_how_a_rank_ended():
    assert _message("ends on rank 1") == "rank 1: the kernel ended the process with exit code 3"


def test_a_finding_says_which_rank_raised_and_which_waited_for_it():
    message = _message("raises on rank 1")
    assert message.startswith("rank 1: the kernel raised ValueError: not on this rank")
    assert message.endswith("rank 0 waited in a collective that it did not call")


def test_a_collective_that_nothing_waits_for_is_found_where_its_result_is_there_in_time():
    assert what_failed([RankAnswer(), RankAnswer(unwaited=1)]).startswith(
        "rank 1: the kernel has returned, and has not"
    )


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([RankAnswer(), RankAnswer()], ""),
        ([RankAnswer(), RankAnswer(ended="crashed with SIGSEGV")], "rank 1: the kernel crashed with SIGSEGV"),
        ([RankAnswer(hung="\nf.py:3:\n    x"), RankAnswer()], "rank 0: the kernel does not return\nf.py:3:\n    x"),
        (
            [RankAnswer(hung="", communicates=True), RankAnswer()],
            "rank 0: the kernel waits in a collective for other ranks",
        ),
        (
            [RankAnswer(Raised("ValueError", "no")), RankAnswer(Raised("ValueError", "no"))],
            "ranks 0, 1: the kernel raised ValueError: no",
        ),
        (
            [RankAnswer(fence="something new of torch"), RankAnswer()],
            "the ranks are out of step\nsomething new of torch",
        ),
    ],
)
def test_the_first_cause_is_named(answers, expected):
    assert what_failed(answers) == expected


# -- ranks that do not return --------------------------------------------------------------------------------------


@ow.op("test_ranks::summed")
def summed(x: Float[Tensor, " n"], group: ow.ProcessGroup) -> Float[Tensor, " n"]:
    return collectives.all_reduce(x, "sum", group) * 1


def _sum(x, group):
    whole = x.clone()
    dist.all_reduce(whole, group=group.resolve())
    return whole


@summed.python
def endless_on_rank_1(x, group):
    while group.rank() == 1:
        time.sleep(0.01)
    return _sum(x, group)


@summed.python
def receives_what_nobody_sends(x, group):
    if group.rank() == 0 and group.size() > 1:
        dist.recv(x.clone(), dist.get_global_rank(group.resolve(), 1), group=group.resolve())
    return _sum(x, group)


@pytest.mark.slow  # it waits until the time is over
def test_an_endless_loop_on_one_rank_is_inconclusive_and_named():
    verdict = _checked(summed, "endless_on_rank_1", case="n=3", timeout=15)
    (finding,) = verdict.inconclusive
    assert finding.message.startswith("rank 1: the kernel does not return")
    assert "while group.rank() == 1" in finding.message or "time.sleep" in finding.message
    assert "--timeout" in finding.remedy
    assert verdict.status is ow.results.Status.INCONCLUSIVE


@pytest.mark.slow  # it waits until the time is over
def test_a_rank_that_waits_for_what_nobody_sends_is_a_failure():
    verdict = _checked(summed, "receives_what_nobody_sends", case="n=3", timeout=15)
    assert verdict.status is ow.results.Status.FAIL
    assert verdict.failures[0].message.startswith("rank 0: the kernel ")


def _processes_below() -> set[int]:
    """The processes that this one and those below it have started."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent = file.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(file.parent.name)] = int(parent)
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below


# Each is checked twice, in up to seven processes.
@pytest.mark.parametrize("kernel", quick(["once more on rank 1", "ends on rank 1", "in a ring"], 1))
def test_no_process_is_left(kernel):
    _checked(communication.gather_matmul, kernel, case="m=4 k=3 n=2")  # the fork server stays
    before = _processes_below()
    _checked(communication.gather_matmul, kernel, case="m=4 k=3 n=2")
    assert not _processes_below() - before


@summed.python(name="kernel")
def _(x, group):
    return _sum(x, group)


@ow.op("test_ranks::alone")
def alone(x: Float[Tensor, " n"], group: ow.ProcessGroup) -> Float[Tensor, " n"]:
    """Its reference is defined in a group of one process only."""
    if group.size() > 1:
        raise ValueError("one process only")
    return collectives.all_reduce(x, "sum", group) * 1


alone.python(lambda x, group: x.clone(), name="kernel")


@pytest.mark.slow
def test_where_nothing_could_be_compared_on_ranks_the_verdict_is_thin():
    (verdict,) = ow.check(alone, checks=["values", "ranks"], device="cpu", level="smoke")
    assert verdict.status is ow.results.Status.THIN, verdict
    (thin,) = verdict.warnings
    assert thin.check == "ranks"
    assert "one process only" in thin.message


def test_a_kernel_for_two_ranks_that_is_right_is_not_thin():
    (verdict,) = ow.check(summed, kernels=["kernel"], checks=["values", "ranks"], device="cpu", level="smoke")
    assert verdict.status is ow.results.Status.PASS, verdict


# -- numbers of ranks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 0, -2, 1000])
def test_a_number_that_is_no_group_is_refused(ranks):
    with pytest.raises(ow.errors.CheckError, match=f"ranks must be between 2 and 64, got {ranks}"):
        ow.check(communication.gather_matmul, ranks=ranks)


@pytest.mark.exhaustive
@pytest.mark.slow  # nine processes
def test_three_ranks():
    report = ow.check(
        communication.matmul_scatter, kernels=["sum of all rows"], checks=["ranks", "gradients of ranks"], ranks=3
    )
    assert report.passed
    (wrong,) = ow.check(communication.gather_matmul, kernels=["own rows first"], checks=["ranks"], ranks=3)
    assert wrong.failures[0].case.endswith("ranks=3")
    assert "--ranks 3" in wrong.failures[0].reproduce


@pytest.mark.slow  # two commands with ranks
def test_the_command_that_repeats_a_failure_repeats_it(tmp_path: Path):
    verdict = _checked(communication.gather_matmul, "own rows first", case="m=4 k=3 n=2")
    again = verdict.failures[0].reproduce.replace("--kernel own rows first", "--kernel 'own rows first'")
    assert "ranks=2" in again
    command = again.replace("opwright ", f"{sys.executable} -m opwright ", 1)
    found = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "rank 1: 16 of 16 elements differ" in found.stdout


@pytest.mark.slow  # all checks
def test_other_checks_run_in_a_group_of_one_process():
    (verdict,) = ow.check(communication.gather_matmul, kernels=["padded and summed"], device="cpu")
    assert verdict.status is ow.results.Status.PASS, verdict
    assert {"values", "gradients", "opcheck", "torch.compile", "ranks"} <= {f.check for f in verdict.findings}


def test_without_enough_gpus_it_is_not_checked_and_says_why(monkeypatch):
    from opwright.checks.scheduling import ranks as of_ranks
    from opwright.checks.scheduling.plan import Task
    from opwright.target import Target

    settings = of_ranks.Settings("quick", "", (), (), 60.0, ranks=0)
    task = Task(communication.gather_matmul, "in a ring", Target("cuda"))
    machine = of_ranks.this_machine()
    monkeypatch.setattr(of_ranks, "this_machine", lambda: machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert of_ranks.ranks_of(task, settings) == {"why_no_ranks": "2 ranks need 2 GPUs, and this machine has 0"}
    # A cluster has given these to this unit, whatever was known before.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert of_ranks.ranks_of(task, settings) == {"why_no_ranks": "2 ranks need 2 GPUs, and this machine has 1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert of_ranks.ranks_of(task, settings) == {"ranks": 2}


def test_in_a_cluster_only_what_runs_ranks_needs_several_gpus():
    from opwright.checks.scheduling.check_item import CheckItem
    from opwright.checks.scheduling.partial_items import partial_items_of
    from opwright.checks.scheduling.plan import Task
    from opwright.checks.scheduling.verdict import Settings
    from opwright.target import Target

    def needs(device, **settings):
        item = CheckItem.of(Task(communication.gather_matmul, "in a ring", Target(device)), Settings(**settings))
        return item.needs.gpus, [one.needs.gpus for one in partial_items_of(item)]

    assert needs("cuda") == (2, [1, 1, 1, 2])
    assert needs("cuda", ranks=4) == (4, [1, 1, 1, 4])
    assert needs("cuda", checks=("values", "opcheck")) == (1, [1, 1, 1])
    assert needs("cpu", ranks=4) == (1, [1, 1, 1, 1])
