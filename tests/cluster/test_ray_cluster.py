"""A sweep on a cluster gives the verdicts of one machine, and survives the death of its workers."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.errors import CheckError
from opwright.results import Status

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
