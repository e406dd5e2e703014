"""Operators on several GPUs: those that communicate, DTensors, and a model that FSDP2 shards, beside one GPU.

``python benchmarks/many_gpus.py FILE`` uses all GPUs, with NCCL; ``--cpu 2`` two processes on a CPU, with gloo.
``ow.check`` judges the kernels of the self-test that communicate, right ones and wrong ones, on so many ranks; and
operators of the gallery on DTensors sharded along each of their dims. Then an LLTM learns the adding problem, sharded
by ``fully_shard`` and by one process with the whole batch: the losses are compared step by step.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import records
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import opwright as ow
from opwright.gallery.add import add
from opwright.gallery.conv1d import conv1d
from opwright.gallery.lltm import lltm
from opwright.gallery.lltm.module import LLTM
from opwright.gallery.lltm.train import Adder, adding_problem
from opwright.gallery.outer_sum import outer_sum
from opwright.gallery.trig import cos, sin
from opwright.machine import this_machine
from opwright.planted.kernels import communication

_OPERATORS = (add, sin, cos, outer_sum, conv1d, lltm)
_STEPS, _BATCH, _STATE, _LENGTH = 60, 128, 64, 12


# -- operators that communicate, and DTensors --------------------------------------------------------------------------


def communicating(device: str, ranks: int, jobs: int) -> list[dict[str, Any]]:
    """The self-test's kernels that communicate: what the check of ranks says of each."""
    rows = {(row.op.contract.qualname, row.kernel): row for row in communication.ROWS}
    found = []

    def done(verdict: ow.results.Verdict) -> None:
        row = rows[verdict.op, verdict.kernel]
        record = {"kernel": row.defect, "is wrong": bool(row.expected), **judged(verdict)}
        found.append(
            said({**record, "as it should be": (verdict.status is ow.results.Status.FAIL) is bool(row.expected)})
        )

    checks = ("ranks", "gradients of ranks")
    events = ow.Events(finished=done)
    ow.check(*communication.OPERATORS, checks=checks, device=device, ranks=ranks, jobs=jobs, events=events)
    return found


def sharded(device: str, ranks: int, jobs: int) -> list[dict[str, Any]]:
    """Operators of the gallery as DTensors, with the first kernel of each that runs on the device, or the reference."""
    found = []
    for operator in _OPERATORS:
        kernels = [
            name for name, kernel in operator.kernels.items() if isinstance(kernel.probe(device), ow.results.Accepted)
        ]
        report = ow.check(
            operator, kernels=kernels[:1] or ["reference"], checks=["DTensor"], device=device, ranks=ranks, jobs=jobs
        )
        found += [said({"operator": v.op, "kernel": v.kernel, **judged(v)}) for v in report]
    return found


def judged(verdict: ow.results.Verdict) -> dict[str, Any]:
    said_of_it = [*(f"{f.check}: {f.message}" for f in verdict.findings), *(n.why for n in verdict.not_checked)]
    shown = [text.splitlines() for text in said_of_it if text != "not selected"]
    return {
        "status": str(verdict.status),
        "says": [" ".join(lines[:3])[:300] for lines in shown],
        "seconds": verdict.seconds,
    }


# -- training ----------------------------------------------------------------------------------------------------------


def losses(mesh: DeviceMesh | None, device: str, kernel: str | None, *, compiled: bool) -> list[float]:
    """Of training with the whole batch in this process, or with a part of it in each of a mesh."""
    torch.manual_seed(0)
    model: nn.Module = Adder(LLTM(2, _STATE, kernel=kernel)).to(device)
    rank, processes = (0, 1) if mesh is None else (mesh.get_rank(), mesh.size())
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(_STEPS):
        sequence, target = (t.to(device) for t in adding_problem(_BATCH, _LENGTH, generator))
        sequence, target = sequence.chunk(processes, 1)[rank], target.chunk(processes)[rank]
        loss = F.mse_loss(run(sequence), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        if mesh is not None:
            dist.all_reduce(whole)
        found.append(float(whole) / processes)
    return found


def training(mesh: DeviceMesh, device: str, kernel: str | None, *, compiled: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"kernel": kernel or "the first applicable", "compiled": compiled, "steps": _STEPS}
    try:
        start = time.perf_counter()
        many = losses(mesh, device, kernel, compiled=compiled)
        record["seconds"] = time.perf_counter() - start
    except Exception as error:
        return {**record, "error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
    one = losses(None, device, kernel, compiled=compiled)
    apart = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(many, one, strict=True))
    return {**record, "first": many[0], "last": many[-1], "last of one process": one[-1], "difference": apart}


# -- the processes -----------------------------------------------------------------------------------------------------


def work(rank: int, processes: int, port: int, device: str, kernel: str | None, file: Path, record: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(record["backend"], rank=rank, world_size=processes)
    mesh = init_device_mesh(device, (processes,))
    trained = [training(mesh, device, kernel, compiled=compiled) for compiled in (False, True)]
    if rank == 0:
        records.write(file, {**record, "FSDP2": [said(one) for one in trained]})
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that ends in the usual way (torch 2.13)


def said(record: dict[str, Any]) -> dict[str, Any]:
    print("  ".join(f"{k}={v:.2g}" if isinstance(v, float) else f"{k}={v}" for k, v in record.items()), flush=True)
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cpu", type=int, default=0, help="so many processes on a CPU")
    parser.add_argument("--kernel", help="of the LLTM")
    parser.add_argument("--jobs", type=int, default=4, help="so many kernels are checked at a time")
    parser.add_argument("--part", choices=("communicating", "DTensor"), help="only this, and no training")
    chosen = parser.parse_args(arguments)
    device = "cpu" if chosen.cpu else "cuda"
    processes = chosen.cpu or torch.cuda.device_count()
    record: dict[str, Any] = {
        "machine": this_machine().to_json(),
        "processes": processes,
        "backend": "nccl" if device == "cuda" else "gloo",
    }
    for name, part in (("communicating", communicating), ("DTensor", sharded)):
        if chosen.part in (None, name):
            record[name] = part(device, processes, chosen.jobs)
    if chosen.part is not None:
        records.write(chosen.file, record)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (processes, port, device, chosen.kernel, chosen.file, record), nprocs=processes)


if __name__ == "__main__":
    main()
