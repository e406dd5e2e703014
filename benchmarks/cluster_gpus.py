"""A sweep on a local cluster with one worker and with several: how much faster it is, and that the verdicts are equal.

``python benchmarks/cluster_gpus.py FILE [MODULE...]`` needs Ray and several GPUs, and uses one and all of them;
``--cpu 2`` uses processes on a CPU instead. Each round is a process of its own, which sees only so many GPUs. A first
one, with all workers, is not counted: it fills the cache of artifacts and notes how long kernels take.

``seconds`` are those of the check. ``start_s`` are those from the start of the cluster, and of its workers, until the
check begins to give out units; a first check, of one kernel for each worker, has waited until all workers are warm.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from opwright.gallery.add import add
from opwright.machine import this_machine

_MODULES = ("opwright.gallery.add", "opwright.gallery.trig")


def main() -> None:
    """Measure, print and write the record."""
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    options.add_argument("modules", nargs="*", default=_MODULES)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--cpu", type=int, default=0, help="so many processes on a CPU, in place of GPUs")
    options.add_argument("--sweep", type=int, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.sweep:
        print(json.dumps(_sweep(chosen.modules, chosen.sweep, "cpu" if chosen.cpu else "cuda")))
        return
    count = chosen.cpu or torch.cuda.device_count()
    _round(chosen, count)
    one, every = "one", "all"
    rounds = [{one: _round(chosen, 1), every: _round(chosen, count)} for _ in range(chosen.rounds)]
    verdicts = [sweep.pop("verdicts") for both in rounds for sweep in both.values()]
    ratios = [both[one]["seconds"] / both[every]["seconds"] for both in rounds]
    differ = [_differences(verdicts[0], each) for each in verdicts[1:]]
    record = {
        "machine": this_machine().to_json(),
        "ray": ray.__version__,
        "modules": list(chosen.modules),
        "workers": count,
        "rounds": rounds,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "verdicts_are_equal": not any(differ),
        "differences": differ,
        "statuses": {kernel: verdict["status"] for kernel, verdict in verdicts[0].items()},
    }
    records.write(chosen.file, record)
    print(f"{len(verdicts[0])} kernels; {count} workers are {record['ratio']:.2f} times as fast as one;", end=" ")
    print("verdicts are equal" if record["verdicts_are_equal"] else f"VERDICTS DIFFER: {differ}")


def _round(chosen: argparse.Namespace, workers: int) -> dict[str, Any]:
    visible = {} if chosen.cpu else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(workers)))}
    command = [sys.executable, __file__, str(chosen.file), *chosen.modules, "--sweep", str(workers)]
    command += ["--cpu", str(chosen.cpu)] if chosen.cpu else []
    done = subprocess.run(command, env=os.environ | visible, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"  {workers}: {result['seconds']:.1f} s, {result['units']} units", flush=True)
    return result


def _sweep(modules: list[str], workers: int, device: str) -> dict[str, Any]:
    """One check of all kernels, with workers that are warm."""
    steps: list[str] = []
    first = [name for name, kernel in add.kernels.items() if device in kernel.spec.devices][:workers]
    began = time.perf_counter()
    with RayCluster(jobs=workers) as cluster:
        ow.check(add, kernels=first, device=device, level="smoke", executor=cluster)
        started = time.perf_counter()
        events = ow.Events(step=lambda task, what: steps.append(what))
        report = ow.check(*modules, device=device, executor=cluster, events=events)
        seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "load": os.getloadavg(),
        "start_s": started - began,
        "units": steps.count("waits for a machine"),
        "seconds_of_kernels": {f"{v.op} {v.kernel}": v.seconds for v in report},
        "verdicts": {f"{v['op']} {v['kernel']} {v['device']}": v for v in _without_measurements(report)},
    }


def _without_measurements(report: ow.results.CheckReport) -> list[dict[str, Any]]:
    """The verdicts without times, numbers of calls that follow from times, and measured memory."""
    record = json.loads(re.sub(r'"\d+ calls( in each)?"', '"calls"', json.dumps(report.to_json()["verdicts"])))
    for verdict in record:
        verdict["seconds"] = verdict["step_seconds"] = None
        for finding in verdict["findings"]:
            if finding["peak_memory"]:
                finding["message"], finding["peak_memory"] = "", None
    return list(record)


def _differences(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Each part of a verdict that differs."""
    return [
        f"{kernel}: {part}: {of.get(part)!s:.500} | {other.get(kernel, {}).get(part)!s:.500}"
        for kernel, of in first.items()
        for part in of
        if of.get(part) != other.get(kernel, {}).get(part)
    ]


if __name__ == "__main__":
    main()
