"""Operators on several GPUs: sharded as DTensors, and in a model that FSDP2 shards. Beside one GPU, in one run.

``python benchmarks/many_gpus.py FILE`` starts a process for each GPU, with NCCL; ``--cpu 2`` two on a CPU, with gloo.
For each dim of an operator, every argument that has it is sharded along it, and the others are replicated: results and
gradients, put together, are compared with the unsharded operator's. Then an LLTM learns the adding problem, sharded by
``fully_shard`` and by one process with the whole batch: the losses are compared step by step.
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
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import opwright as ow
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import base_case
from opwright.gallery.add import add
from opwright.gallery.conv1d import conv1d
from opwright.gallery.lltm import lltm
from opwright.gallery.lltm.module import LLTM
from opwright.gallery.lltm.train import Adder, adding_problem
from opwright.gallery.outer_sum import outer_sum
from opwright.gallery.trig import cos, sin
from opwright.machine import this_machine

_OPERATORS = (add, sin, cos, outer_sum, conv1d, lltm)
# A multiple of every number of processes; the other dims have an odd size.
_SHARDED, _OTHERS = 64, 9
_STEPS, _BATCH, _STATE, _LENGTH = 60, 128, 64, 12


# -- DTensors ----------------------------------------------------------------------------------------------------------


def sharded(operator: ow.Op, dim: str, mesh: DeviceMesh, kernel: str | None) -> dict[str, Any]:
    """An operator whose arguments are sharded along one of its dims, beside the same with whole arguments."""
    arguments = whole_arguments(operator, dim, mesh.device_type)
    places = [places_of(argument, dim) for argument in operator.contract.signature.arguments]
    once = [a.detach().requires_grad_() if is_floating(a) else a for a in arguments]
    parts = [distributed(a, p, mesh) for a, p in zip(arguments, places, strict=True)]
    record: dict[str, Any] = {"operator": operator.contract.qualname, "dim": dim}
    call = operator.kernels[kernel] if kernel else operator
    try:
        outputs, wanted = results_of(call(*parts)), results_of(call(*once))
        record["results"] = [str(o.placements[0]) for o in outputs]
        sum((o.float() ** 2).sum() for o in outputs).backward()
        sum((o.float() ** 2).sum() for o in wanted).backward()
    except Exception as error:  # what DTensor refuses is a result
        return {**record, "error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    gradients = [(p.grad, o.grad) for p, o in zip(parts, once, strict=True) if is_floating(o)]
    record["gradients"] = [str(p.placements[0]) for p, _ in gradients]
    record["difference"] = max(difference(o.full_tensor(), w) for o, w in zip(outputs, wanted, strict=True))
    record["of gradients"] = max(difference(p.full_tensor(), o) for p, o in gradients)
    return record


def whole_arguments(operator: ow.Op, dim: str, device: str) -> list[Any]:
    """The same in every process."""
    base = base_case(operator.contract)
    sizes = {name: _SHARDED if name == dim else _OTHERS for name, _ in base.sizes}
    each = tuple((name, (sizes[name],) if isinstance(size, tuple) else sizes[name]) for name, size in base.sizes)
    case = Case(sizes=each, dtypes=base.dtypes)
    return list(arguments_of(operator.contract, case, device))


def places_of(argument: Any, dim: str) -> Shard | Replicate:
    names = [str(d).lstrip("*") for d in argument.tensor.dims] if argument.tensor else []
    return Shard(names.index(dim)) if dim in names else Replicate()


def distributed(value: Any, place: Any, mesh: DeviceMesh) -> Any:
    if not isinstance(value, Tensor):
        return value
    part = distribute_tensor(value, mesh, [place])
    return part.requires_grad_() if is_floating(value) else part


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def results_of(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def difference(got: Tensor, wanted: Tensor) -> float:
    """Relative to the largest element."""
    return float((got - wanted).abs().max() / wanted.abs().max().clamp_min(1e-9))


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


def work(rank: int, processes: int, port: int, device: str, kernel: str | None, file: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=processes)
    mesh = init_device_mesh(device, (processes,))
    tensors = []
    for operator in _OPERATORS:
        for dim, _ in base_case(operator.contract).sizes:
            tensors.append(said(sharded(operator, dim, mesh, kernel if kernel in operator.kernels else None), rank))
    trained = [said(training(mesh, device, kernel, compiled=compiled), rank) for compiled in (False, True)]
    if rank == 0:
        record = {"machine": this_machine().to_json(), "processes": processes, "backend": backend,
                  "DTensor": tensors, "FSDP2": trained}  # fmt: skip
        records.write(file, record)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that ends in the usual way (torch 2.13)


def said(record: dict[str, Any], rank: int) -> dict[str, Any]:
    if rank == 0:
        print("  ".join(f"{k}={v:.2g}" if isinstance(v, float) else f"{k}={v}" for k, v in record.items()), flush=True)
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cpu", type=int, default=0, help="so many processes on a CPU")
    parser.add_argument("--kernel", help="of the LLTM, and of operators that have one of this name")
    chosen = parser.parse_args(arguments)
    device = "cpu" if chosen.cpu else "cuda"
    processes = chosen.cpu or torch.cuda.device_count()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (processes, port, device, chosen.kernel, chosen.file), nprocs=processes)


if __name__ == "__main__":
    main()
