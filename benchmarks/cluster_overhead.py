"""What a cluster on this machine costs: its start, the start of a unit, and what a second process gains.

``python benchmarks/cluster_overhead.py FILE`` writes the record. Units of no work are run one after the other, to time
a unit's way to a worker and back. A check of several kernels is run with one and with two units at a time, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import records

import opwright as ow
from opwright.cluster import RayCluster
from opwright.machine import this_machine
from opwright.sweep.work_item import Needs, no_step

_UNITS, _KERNELS, _ROUNDS = 500, 8, 3
_CHECKS = ["memory", "values", "metadata", "inputs unchanged"]
_SOURCE = """
from jaxtyping import Float
from torch import Tensor
import opwright as ow

@ow.op("overhead::double")
def double(x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    return 2 * x

for number in range({kernels}):
    double.python(lambda x: (x + x).contiguous(), name=f"kernel{{number}}")
"""


@dataclass(frozen=True)
class Nothing:
    """The result of a unit of no work."""

    done: bool = True


@dataclass(frozen=True)
class Idle:
    """A unit of no work."""

    name = key = "idle"
    needs = Needs()
    kind = Nothing

    def run(self, on_step: Callable[[str], None]) -> Nothing:
        return Nothing()

    def without_result(self, why: str, remedy: str) -> Nothing:
        return Nothing(done=False)


def main() -> None:
    """Measure, print and write the record."""
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    options.add_argument("--cold-start", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.cold_start:
        print(json.dumps(_cold_start()))
        return
    head = {"machine": this_machine().to_json(), "ray": ray.__version__, "load_before": os.getloadavg()}
    # In a process of its own, as a command starts.
    starts = [json.loads(_python(str(chosen.file), "--cold-start").splitlines()[-1]) for _ in range(_ROUNDS)]
    record = {**head, "cold_start": starts, **_overhead(), "two_processes": _speed_up(), "load_after": os.getloadavg()}
    print(json.dumps(record))
    records.write(chosen.file, record)


def _python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def _cold_start() -> dict[str, float]:
    """Until a local cluster is there, and until it has run a first unit."""
    started = time.perf_counter()
    with RayCluster(jobs=2) as cluster:
        there = time.perf_counter() - started
        list(cluster.run([Idle()], no_step))
        return {"cluster_s": there, "first_unit_s": time.perf_counter() - started}


def _overhead() -> dict[str, Any]:
    with RayCluster(jobs=1) as cluster:
        list(cluster.run([Idle()] * 20, no_step))  # workers are there
        times = []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            found = list(cluster.run([Idle()] * _UNITS, no_step))
            times.append((time.perf_counter() - started) / _UNITS * 1e3)
            assert all(done.result.done for done in found)
    return {"units": _UNITS, "overhead_ms_of_a_unit": statistics.median(times), "overhead_ms_each_round": times}


def _speed_up() -> dict[str, Any]:
    """The seconds of a check with one unit at a time and with two; each cluster checks a kernel before it is timed."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "overhead_op.py"
        file.write_text(_SOURCE.format(kernels=_KERNELS))
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(_ROUNDS):
            for jobs in (1, 2):
                with RayCluster(jobs=jobs) as cluster:
                    options: dict[str, Any] = {"checks": _CHECKS, "device": "cpu", "executor": cluster}
                    ow.check(str(file), kernels=[f"kernel{n}" for n in range(jobs)], **options)
                    started = time.perf_counter()
                    report = ow.check(str(file), **options)
                    seconds[jobs].append(time.perf_counter() - started)
                    assert report.passed, report
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    return {"kernels": _KERNELS, "checks": _CHECKS, "one_s": seconds[1], "two_s": seconds[2], "ratios": ratios,
            "ratio": statistics.median(ratios)}  # fmt: skip


if __name__ == "__main__":
    main()
