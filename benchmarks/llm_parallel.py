"""A Llama of 1B parameters trained on all GPUs by FSDP2 and by tensor parallelism, plain and on opwright's operators.
Usage: llm_parallel.py FILE [--cpu COUNT] [--steps N] [--eager]

Each row: 50 steps of 4 × 2,048 tokens in bfloat16, with the losses, ms of a step (the median after the tenth), tokens a
second and the peak of memory of a process in GiB. The same weights and tokens each time; one process without any
parallelism comes first. ``--cpu COUNT`` runs a small model in so many processes, to see that all of it works.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import llm_model
import records
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from opwright.machine import this_machine

WARM_STEPS = 10
PLAN = {
    **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}, "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(),
}  # fmt: skip


def rows(steps: int, device: str, eager: bool) -> Iterator[dict[str, Any]]:
    for mode in ("one process", "FSDP2", "tensor parallel"):
        for variant in ("plain", "opwright"):
            for compiled in (False,) if eager else (False, True):
                if mode == "one process" and (compiled or dist.get_rank()):
                    continue
                row = {"mode": mode, "variant": variant, "compiled": compiled}
                try:
                    yield row | trained(mode, variant, compiled, steps, device)
                except Exception as error:
                    yield row | {"error": f"{type(error).__name__}: {error}"[:300]}
        dist.barrier()


def trained(mode: str, variant: str, compiled: bool, steps: int, device: str) -> dict[str, Any]:
    torch._dynamo.reset()
    model = llm_model.model_of(variant, device).train()
    mesh = init_device_mesh(device, (dist.get_world_size(),)) if mode != "one process" else None
    if mode == "tensor parallel":
        for layer in model.model.layers:
            parallelize_module(layer, mesh, PLAN)
    if compiled:
        for layer in model.model.layers:
            layer.compile(dynamic=False)
    if mode == "FSDP2":
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=mesh)
    optimizer = llm_model.optimizer_of(model, variant, device)
    generator = torch.Generator().manual_seed(1)
    tokens = llm_model.TOKENS if device == "cuda" else 32
    ids = torch.randint(0, model.config.vocab_size, (llm_model.BATCH, tokens), generator=generator).to(device)
    if mode == "FSDP2":
        ids = ids.chunk(dist.get_world_size())[dist.get_rank()]
    losses, times = [], []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        loss = loss.detach().float()
        if mode == "FSDP2":
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
        losses.append(round(float(loss), 4))
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times[min(WARM_STEPS, steps - 1) :])
    return {
        "ms": round(1e3 * seconds, 2), "tokens_per_s": round(llm_model.BATCH * tokens / seconds),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device == "cuda" else None, "losses": losses,
    }  # fmt: skip


def process(rank: int, count: int, port: int, file: str, steps: int, device: str, eager: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=count)
    found: list[dict[str, Any]] = []
    versions = {name: metadata.version(name) for name in ("torch", "triton", "transformers")}
    for row in rows(steps, device, eager):
        if rank == 0:
            found.append(row | {"processes": 1 if row["mode"] == "one process" else count})
            print({name: value for name, value in found[-1].items() if name != "losses"}, flush=True)
            records.write(Path(file), {"machine": this_machine().to_json(), "versions": versions, "rows": found})
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--eager", action="store_true")
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    count = options.cpu or torch.cuda.device_count()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(process, (count, port, options.file, options.steps, device, options.eager), nprocs=count)


if __name__ == "__main__":
    main()
