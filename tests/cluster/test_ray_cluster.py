"""A sweep on a cluster gives the verdicts of one machine, and survives the death of its workers."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sys
import time

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.plan import plan
from opwright.checks.scheduling.verdict import Settings
from opwright.errors import CheckError
from opwright.gallery import trig
from opwright.machine import this_machine
from opwright.planted import catalogue
from opwright.planted.run import selftest
from opwright.results import Fate, Status
from opwright.sweep.work_item import Needs, no_step
from tests.cluster.machines import two_machines
from tests.cluster.work_items import Answer, FillsTheDisk, KillsItsMachine
from tests.mutation import operators
from tests.warm import run_module

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.slow  # a cluster takes some seconds to start, and its workers to import torch

from opwright.cluster import RayCluster  # noqa: E402

CHECKS = ["values", "metadata", "inputs unchanged"]


@ow.op("swept::scale")
def scale(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
    return a * x


scale.python(lambda x, a: x * a, name="right")
scale.python(lambda x, a: x.clone(), name="wrong")
scale.python(lambda x, a: x * a, name="for a gpu", devices=["cuda"])
scale.python(lambda x, a: os.kill(os.getpid(), signal.SIGKILL), name="ends itself")


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """The cache folders of the two machines."""
    return [tmp_path_factory.mktemp(name) for name in ("first", "second")]


@pytest.fixture(scope="module")
def cluster(caches):
    with two_machines(*caches) as executor:
        yield executor


def plain(report: ow.results.CheckReport) -> object:
    """A report without the machine and times."""
    record = report.to_json()
    del record["machine"]
    for verdict in record["verdicts"]:
        verdict["seconds"] = verdict["step_seconds"] = None
    return json.loads(json.dumps(record))


def test_kernels_are_cut_for_two_machines_and_the_verdicts_are_equal(cluster):
    options = {"kernels": ["right"], "checks": [*CHECKS, "gradients", "opcheck"], "device": "cpu"}
    steps = []
    swept = ow.check(scale, executor=cluster, events=ow.Events(step=lambda task, what: steps.append(what)), **options)
    assert plain(swept) == plain(ow.check(scale, **options))
    waits = [what for what in steps if what == "waits for a machine"]
    assert len(waits) == 3  # one slice, and another whose cases are shared


@pytest.mark.exhaustive
def test_the_verdicts_are_those_of_one_machine(cluster):
    options = {"checks": CHECKS, "device": "cpu"}
    swept = ow.check(scale, executor=cluster, **options)
    assert plain(swept) == plain(ow.check(scale, **options))
    found = {v.kernel: v.status for v in swept.verdicts}
    assert found == {"right": "pass", "wrong": "fail", "for a gpu": "refused", "ends itself": "fail"}
    assert cluster.differences == []


@pytest.mark.exhaustive
def test_what_is_finished_is_taken_up_without_running_it_again(cluster, tmp_path):
    options = {"checks": CHECKS, "device": "cpu", "executor": cluster, "resume": tmp_path / "journal"}
    said = []
    first = ow.check(scale, kernels=["wrong"], events=ow.Events(resumed=said.append), **options)
    assert said == []
    again = ow.check(scale, kernels=["wrong", "right"], events=ow.Events(resumed=said.append), **options)
    assert said == [f"1 finished before are taken from {tmp_path / 'journal'}"]
    assert again.verdicts[1] == first.verdicts[0]
    assert [v.status for v in again.verdicts] == ["pass", "fail"]


@pytest.mark.exhaustive
def test_times_are_of_one_machine_each_and_name_it(cluster):
    report = ow.bench(scale, kernels=["right"], device="cpu", quick=True, iters=3, executor=cluster,
                      baselines=["reference"], directions=["forward"])  # fmt: skip
    assert report.errors == ()
    assert {m.kernel for m in report} == {"right", "reference"}
    assert {m.host for m in report} == {socket.gethostname()} == set(report.machines)
    assert {m.device_name for m in report} == {this_machine().cpu}
    assert all("reference" in m.comparisons for m in report if m.kernel == "right")


def test_tables_are_stored_where_they_were_measured_and_here(cluster):
    @ow.op("swept::tuned")
    def tuned(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + 1

    tuned.python(lambda x: 1 + x, name="one")
    tuned.python(lambda x: [time.sleep(0.001), 1 + x][1], name="slow")
    tuned.clear_tuning()
    report = ow.tune(tuned, device="cpu", sizes={"n": [10]}, iters=5, executor=cluster)
    assert [(c.ranges[0].kernel, c.stored) for c in report.crossovers] == [("one", True)]
    assert "tuned on" in str(ow.explain(tuned, torch.ones(10)))


@pytest.mark.exhaustive
def test_mutants_have_the_fates_of_one_machine(cluster):
    fates = [
        [(m.line, m.diff, m.fate, m.check, m.file) for m in kernel.mutants]
        for executor in (cluster, None)
        for kernel in ow.mutate(operators.strong, kernels=["python"], executor=executor)
    ]
    assert fates[0] == fates[1]
    assert {fate for _, _, fate, *_ in fates[0]} == {Fate.KILLED}


def test_the_self_test_runs_on_it(cluster, monkeypatch):
    few = [row for row in catalogue.rows(["elementwise"]) if row.kernel in row.op.kernels][:3]
    monkeypatch.setattr("opwright.planted.run.rows", lambda files: few)
    found = selftest(["elementwise"], executor=cluster)
    assert [(bool(row.expected), row.defect) for row in few] == [
        (r.planted, r.defect) for r in sorted(found.results, key=lambda r: [row.defect for row in few].index(r.defect))
    ]
    assert found.passed, found


def test_an_operator_of_no_file_is_sent_by_value(cluster):
    def local() -> ow.Op:
        @ow.op("swept::local")
        def local(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
            return x + 1

        local.python(lambda x: 1 + x, name="right")
        return local

    assert ow.check(local(), executor=cluster, checks=CHECKS).passed


def test_a_unit_whose_worker_dies_is_tried_again(cluster, tmp_path):
    (tmp_path / "dies_once.py").write_text(
        f"""
import os
import signal
import sys
from pathlib import Path
from jaxtyping import Float
from torch import Tensor
import opwright as ow

marker = Path({str(tmp_path / "died")!r})
if any("default_worker" in a for a in sys.argv) and not marker.exists():  # Ray's worker, as a driver that crashes
    marker.touch()
    os.kill(os.getpid(), signal.SIGKILL)

@ow.op("swept::dies_once")
def once(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x + 1

once.python(lambda x: 1 + x, name="right")
"""
    )
    report = ow.check(str(tmp_path / "dies_once.py"), executor=cluster, checks=CHECKS)
    assert (tmp_path / "died").exists(), "no worker died"
    assert report.passed, report


def test_a_unit_whose_workers_always_die_is_inconclusive(cluster, tmp_path):
    (tmp_path / "always_dies.py").write_text(
        """
import os, signal, sys
from jaxtyping import Float
from torch import Tensor
import opwright as ow

if any("default_worker" in a for a in sys.argv):
    os.kill(os.getpid(), signal.SIGKILL)

@ow.op("swept::always_dies")
def always(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return x + 1

always.python(lambda x: 1 + x, name="right")
"""
    )
    (verdict,) = ow.check(str(tmp_path / "always_dies.py"), executor=cluster, checks=CHECKS).verdicts
    assert verdict.status is Status.INCONCLUSIVE
    assert "died 4 times" in verdict.findings[0].message
    assert "without --ray" in verdict.findings[0].remedy


@pytest.mark.exhaustive
@pytest.mark.compiler
def test_a_kernel_is_compiled_once_for_both_machines(cluster, caches):
    (task,) = plan(trig.sin, this_machine(), ["cpp"], "cpu")
    item = CheckItem.of(task, Settings("smoke", "", ("values",), (), 60.0))
    results = [done.result.status for done in cluster.run([item, item], no_step)]
    assert results == [Status.PASS, Status.PASS]
    built = [
        {file.relative_to(cache): round(file.stat().st_mtime, 3) for file in cache.glob("artifacts/*trig*/*.so")}
        for cache in caches
    ]
    assert len(built[0]) == 1
    assert built[0] == built[1]  # it keeps the time at which it was built


def test_a_gpu_that_torch_does_not_find_is_no_fault_of_the_kernel(cluster):
    assert cluster.gpu_types == ["FAKE"]
    (task,) = plan(scale, this_machine(), ["for a gpu"], "cuda")
    item = CheckItem.of(dataclasses.replace(task, refused=None), Settings("quick", "", (), (), 60.0))
    (done,) = cluster.run([item], no_step)
    assert done.lost
    assert done.result.status is Status.INCONCLUSIVE
    assert "it was tried 4 times without a result" in done.result.findings[0].message
    assert "Ray gave it a GPU, which torch does not find" in done.result.findings[0].message


def test_a_full_disk_is_another_machines_work(cluster, tmp_path):
    steps = []
    (done,) = cluster.run([FillsTheDisk(tmp_path / "full")], lambda item, what: steps.append(what))
    assert done.result == Answer("has space")
    assert any("its disk is full: [Errno 28] No space left on device" in step for step in steps)


def test_no_machine_has_what_a_unit_needs(cluster):
    class NeedsAnH100(KillsItsMachine):
        needs = Needs(gpu=True, gpu_type="H100")

    (done,) = cluster.run([NeedsAnH100()], no_step)
    assert done.lost
    assert done.result.why == "no machine of the cluster has a GPU H100"


def test_steps_name_the_machine_that_runs_them(cluster):
    steps = []
    ow.check(scale, kernels=["right"], checks=["values"], device="cpu", executor=cluster,
             events=ow.Events(step=lambda task, what: steps.append(f"{task}: {what}")))  # fmt: skip
    assert steps[0] == "swept::scale right on cpu: waits for a machine"
    assert any(step.endswith(f"[{socket.gethostname()}]") for step in steps), steps


@pytest.mark.exhaustive
def test_the_command_line_starts_a_cluster_and_writes_the_same_record(tmp_path):
    (tmp_path / "two.py").write_text(
        """
from jaxtyping import Float
from torch import Tensor
import opwright as ow

@ow.op("swept::two")
def two(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return 2 * x

two.python(lambda x: x + x, name="right")
two.python(lambda x: x.clone(), name="wrong")
"""
    )
    codes, records = [], []
    for more in (["--ray", "--resume", "journal"], []):
        command = ["check", "two.py", "--check", "values", "--jobs", "2", "--json", "out.json", *more]
        run = run_module("opwright", *command, cwd=tmp_path)
        codes.append(run.returncode)
        records.append(json.loads((tmp_path / "out.json").read_text()))
    assert codes == [1, 1]
    for record in records:
        del record["machine"], record["made"]
        for verdict in record["verdicts"]:
            verdict["seconds"] = verdict["step_seconds"] = None
    assert records[0] == records[1]
    again = run_module("opwright", *command[:-2], "--resume", "journal", cwd=tmp_path)
    assert again.returncode == 1
    assert "2 finished before are taken from journal" in again.stderr


def test_a_machine_that_does_not_answer_is_named_and_gets_no_work(cluster, monkeypatch):
    import ray

    there = ray.nodes()
    gone = {**there[0], "NodeID": "ab" * 28, "NodeManagerHostname": "gone"}
    monkeypatch.setattr(RayCluster, "_warm_workers", lambda self: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # the other one goes on
    monkeypatch.setattr(ray, "init", lambda *args, **keywords: None)
    monkeypatch.setattr(ray, "nodes", lambda: [gone, *there])
    with RayCluster("auto") as other:
        assert {node.id for node in other.nodes} == {node.id for node in cluster.nodes}
    assert [d for d in other.differences if d.startswith("gone does not answer, and gets no work: ")]
    monkeypatch.setattr(ray, "nodes", lambda: [gone])
    with pytest.raises(CheckError, match="no machine of the cluster can be used: gone does not answer"):
        RayCluster("auto")


def test_no_cluster_at_an_address():
    with pytest.raises(CheckError, match=r"there is no cluster at '127.0.0.1:1': ConnectionRefusedError") as error:
        RayCluster("127.0.0.1:1")
    assert "ray start --head" in error.value.fix


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CheckError, match="Ray is not installed") as error:
        RayCluster("auto")
    assert "opwright[ray]" in error.value.fix
