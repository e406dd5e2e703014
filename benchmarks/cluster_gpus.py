"""A sweep on a local cluster with one GPU and with all: how much faster it is, and that the verdicts are equal.

``python benchmarks/cluster_gpus.py FILE [MODULE...]`` needs Ray and several GPUs. Each round is a process of its own,
which sees only so many GPUs; a first one, which is not counted, fills the cache of artifacts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray
import records
import torch

import opwright as ow
from opwright.cluster import RayCluster
from opwright.machine import this_machine

_MODULES = ("opwright.gallery.add", "opwright.gallery.trig")
# Operators with as many kernels as there are GPUs, and more.
_FIRST = ("opwright.gallery.add",)


def main() -> None:
    """Measure, print and write the record."""
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    options.add_argument("modules", nargs="*", default=_MODULES)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--sweep", type=int, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.sweep:
        print(json.dumps(_sweep(chosen.modules, chosen.sweep)))
        return
    count = torch.cuda.device_count()
    _round(chosen, count)
    one, every = "one", "all"
    rounds = [{one: _round(chosen, 1), every: _round(chosen, count)} for _ in range(chosen.rounds)]
    verdicts = [sweep.pop("verdicts") for both in rounds for sweep in both.values()]
    ratios = [both[one]["seconds"] / both[every]["seconds"] for both in rounds]
    record = {
        "machine": this_machine().to_json(),
        "ray": ray.__version__,
        "modules": list(chosen.modules),
        "gpus": count,
        "rounds": rounds,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "verdicts_are_equal": all(each == verdicts[0] for each in verdicts),
        "verdicts": verdicts[0],
    }
    records.write(chosen.file, record)
    print(f"{len(verdicts[0])} kernels; on {count} GPUs {record['ratio']:.2f} times as fast as on one;", end=" ")
    print("verdicts are equal" if record["verdicts_are_equal"] else "VERDICTS DIFFER")
    for each in verdicts[1:]:
        for kernel in sorted(k for k in each if each[k] != verdicts[0].get(k)):
            print(f"  {kernel}: {verdicts[0].get(kernel)}, {each[kernel]}")


def _round(chosen: argparse.Namespace, gpus: int) -> dict[str, Any]:
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))}
    command = [sys.executable, __file__, str(chosen.file), *chosen.modules, "--sweep", str(gpus)]
    done = subprocess.run(command, env=os.environ | visible, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _sweep(modules: list[str], gpus: int) -> dict[str, Any]:
    """One check of all kernels. Workers have checked some before the time is taken, and so have imported torch."""
    with RayCluster(jobs=gpus) as cluster:
        ow.check(*_FIRST, device="cuda", checks=["values"], executor=cluster)
        started = time.perf_counter()
        report = ow.check(*modules, device="cuda", executor=cluster)
        seconds = time.perf_counter() - started
    of_units = {f"{v.op} {v.kernel}": v.seconds for v in report}
    verdicts = {f"{v.op} {v.kernel}": f"{v.status}: {v.reason}" if v.reason else str(v.status) for v in report}
    return {"seconds": seconds, "seconds_of_units": of_units, "verdicts": dict(sorted(verdicts.items()))}


if __name__ == "__main__":
    main()
