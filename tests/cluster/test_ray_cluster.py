"""A sweep on a cluster gives the verdicts of one machine, and survives the death of its workers."""

from __future__ import annotations

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
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.results import Fate, Status
from opwright.selftest import catalogue
from opwright.selftest.run import selftest
from tests.mutation import operators

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.slow  # a cluster takes some seconds to start, and its workers to import torch

from opwright.cluster import RayCluster  # noqa: E402

CHECKS = ["values", "metadata", "inputs unchanged"]


@ow.op("swept::scale")
def scale(x: Float[Tensor, "n"], a: float) -> Float[Tensor, "n"]:
    return a * x


scale.python(lambda x, a: x * a, name="right")
scale.python(lambda x, a: x.clone(), name="wrong")
scale.python(lambda x, a: x * a, name="for a gpu", devices=["cuda"])
scale.python(lambda x, a: os.kill(os.getpid(), signal.SIGKILL), name="ends itself")


@pytest.fixture(scope="module")
def cluster():
    with RayCluster(jobs=2) as made:
        yield made


def plain(report: ow.CheckReport) -> object:
    """A report without the machine and times."""
    record = report.to_json()
    del record["machine"]
    for verdict in record["verdicts"]:
        verdict["seconds"] = verdict["step_seconds"] = None
    return json.loads(json.dumps(record))


def test_the_verdicts_are_those_of_one_machine(cluster):
    options = {"checks": CHECKS, "device": "cpu"}
    swept = ow.check(scale, executor=cluster, **options)
    assert plain(swept) == plain(ow.check(scale, **options))
    found = {v.kernel: v.status for v in swept.verdicts}
    assert found == {"right": "pass", "wrong": "fail", "for a gpu": "refused", "ends itself": "fail"}
    assert cluster.differences == []


def test_what_is_finished_is_taken_up_without_running_it_again(cluster, tmp_path):
    options = {"checks": CHECKS, "device": "cpu", "executor": cluster, "resume": tmp_path / "journal"}
    said = []
    first = ow.check(scale, kernels=["wrong"], on_resume=said.append, **options)
    assert said == []
    again = ow.check(scale, kernels=["wrong", "right"], on_resume=said.append, **options)
    assert said == [f"1 finished before are taken from {tmp_path / 'journal'}"]
    assert again.verdicts[1] == first.verdicts[0]
    assert [v.status for v in again.verdicts] == ["pass", "fail"]


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
    def tuned(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x + 1

    tuned.python(lambda x: 1 + x, name="one")
    tuned.python(lambda x: [time.sleep(0.001), 1 + x][1], name="slow")
    tuned.clear_tuning()
    report = ow.tune(tuned, device="cpu", sizes={"n": [10]}, iters=5, executor=cluster)
    assert [(c.ranges[0].kernel, c.stored) for c in report.crossovers] == [("one", True)]
    assert "tuned on" in str(ow.explain(tuned, torch.ones(10)))


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
    monkeypatch.setattr("opwright.selftest.run.rows", lambda files: few)
    found = selftest(["elementwise"], executor=cluster)
    assert [(bool(row.expected), row.defect) for row in few] == [
        (r.planted, r.defect) for r in sorted(found.results, key=lambda r: [row.defect for row in few].index(r.defect))
    ]
    assert found.passed, found


def test_an_operator_of_no_file_is_sent_by_value(cluster):
    def local() -> ow.Op:
        @ow.op("swept::local")
        def local(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
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


def test_no_cluster_at_an_address():
    with pytest.raises(CheckError, match=r"there is no cluster at '127.0.0.1:1': ConnectionRefusedError") as error:
        RayCluster("127.0.0.1:1")
    assert "ray start --head" in error.value.fix


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CheckError, match="Ray is not installed") as error:
        RayCluster()
    assert "opwright[ray]" in error.value.fix
