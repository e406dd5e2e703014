"""Two models trained by FSDP2 and tensor parallel on a mesh of processes, beside one process: are the losses equal?

``python benchmarks/tensor_parallel.py FILE`` uses all GPUs, with NCCL; ``--cpu 4`` four processes on a CPU, with gloo.
Each mesh of so many processes is tried (data × tensor parallel: 1 × 4, 2 × 2, 4 × 1), each with and without
torch.compile. The models are an LLTM that learns the adding problem, and a small language model whose blocks call
operators for RMSNorm (on tensors sharded by tokens), for SwiGLU (sharded by features) and torch's attention.
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import opwright as ow
from opwright.gallery.lltm.module import LLTM
from opwright.gallery.lltm.train import Adder, adding_problem
from opwright.machine import this_machine

_BATCH, _RATE = 16, 0.03
_STATE, _LENGTH = 64, 8
_VOCABULARY, _TOKENS, _WIDTH, _HEADS, _BLOCKS = 96, 32, 64, 8, 2


# -- operators of the language model -----------------------------------------------------------------------------------


@ow.op("block::rms_norm")
def rms_norm(x: Float[Tensor, "b t d"], weight: Float[Tensor, " d"]) -> Float[Tensor, "b t d"]:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@rms_norm.python(name="torch's own")
def _(x, weight):
    return F.rms_norm(x, weight.shape, weight, 1e-6).contiguous()


@ow.op("block::swiglu")
def swiglu(gate: Float[Tensor, "b t f"], up: Float[Tensor, "b t f"]) -> Float[Tensor, "b t f"]:
    return F.silu(gate) * up


@swiglu.python(name="in place")
def _(gate, up):
    return F.silu(gate.contiguous()).mul_(up)


# -- the language model ------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        # Of all heads, or of those of this process.
        q, k, v = (part(x).unflatten(-1, (-1, _WIDTH // _HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(_WIDTH, 4 * _WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * _WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(swiglu(self.gate(x), self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = Norm(), Attention()
        self.feed_forward_norm, self.feed_forward = Norm(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(_BLOCKS))
        self.norm, self.head = Norm(), nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parallel_language_model(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Between blocks each process has a part of the tokens; within attention, of the heads; of the features else."""
    by_tokens = {"output_layouts": Shard(1), "use_local_output": False}
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), **by_tokens),
        "norm": SequenceParallel(use_local_output=False),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })  # fmt: skip
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "attention_norm": SequenceParallel(use_local_output=False),
            **{f"attention.{part}": ColwiseParallel(input_layouts=Shard(1)) for part in "qkv"},
            "attention.out": RowwiseParallel(**by_tokens),
            "feed_forward_norm": SequenceParallel(use_local_output=False),
            # The operator between them gets DTensors.
            "feed_forward.gate": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
            "feed_forward.up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
            "feed_forward.down": RowwiseParallel(**by_tokens),
        })  # fmt: skip
    return model


def sentences(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens that follow from the one before, and the next ones."""
    first = torch.randint(_VOCABULARY, (_BATCH, 1), generator=generator)
    steps = torch.arange(_TOKENS + 1)
    tokens = (first + 7 * steps + steps // 3) % _VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


# -- the LLTM ----------------------------------------------------------------------------------------------------------


class ParallelCell(nn.Module):
    """An LLTM of whose state each process computes a part, with the same operator.

    A process has the rows of its part in each of the three gates. What it has not of the last state is an input to it.
    """

    def __init__(self, cell: LLTM, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh, self.state_size, self.kernel = mesh, cell.state_size, cell._step
        self.own = cell.state_size // mesh.size()
        self.weights = nn.Parameter(distribute_tensor(cell.weights.detach().unflatten(0, (3, -1)), mesh, [Shard(1)]))
        self.bias = nn.Parameter(distribute_tensor(cell.bias.detach().unflatten(0, (3, -1)), mesh, [Shard(1)]))
        self.first = mesh.get_local_rank() * self.own

    def forward(self, x: Tensor, state: tuple[DTensor, Tensor]) -> tuple[DTensor, Tensor]:
        h, c = state
        # Each process uses the whole state for gates of its own, so that gradients with respect to it are summed.
        others = self._without_own(h.full_tensor(grad_placements=[Partial()]))
        weights = self.weights.to_local().flatten(0, 1)
        own = weights[:, self.first : self.first + self.own]
        weights = torch.cat([own, self._without_own(weights)], 1)
        bias = self.bias.to_local().flatten()
        h_own, c = self.kernel(torch.cat([others, x], 1), weights, bias, h.to_local(), c)
        return DTensor.from_local(h_own, self.mesh, [Shard(1)], run_check=False), c

    def _without_own(self, columns: Tensor) -> Tensor:
        return torch.cat([columns[:, : self.first], columns[:, self.first + self.own :]], 1)


class ParallelAdder(nn.Module):
    """``Adder`` with such a cell."""

    def __init__(self, model: Adder, mesh: DeviceMesh) -> None:
        super().__init__()
        self.cell = ParallelCell(model.cell, mesh)
        self.head = parallelize_module(model.head, mesh, RowwiseParallel(input_layouts=Shard(1)))

    def forward(self, sequence: Tensor) -> Tensor:
        own = sequence.new_zeros(sequence.shape[1], self.cell.own)
        h, c = DTensor.from_local(own, self.cell.mesh, [Shard(1)], run_check=False), own
        for x in sequence.unbind():
            h, c = self.cell(x, (h, c))
        return self.head(h).squeeze(1)


# -- training ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A model, its data, and how it is made parallel.

    Attributes:
        batch_dim: of the inputs.
        parts: modules that are compiled, and sharded by FSDP2, one by one.
    """

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    parallel: Callable[[Any, DeviceMesh], nn.Module]
    batch_dim: int
    parts: Callable[[Any], Sequence[nn.Module]]


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


MODELS = (
    Model(
        "LLTM",
        lambda: Adder(LLTM(2, _STATE)),
        lambda generator: adding_problem(_BATCH, _LENGTH, generator),
        F.mse_loss,
        ParallelAdder,
        1,
        lambda model: [model],
    ),
    Model(
        "language model",
        LanguageModel,
        sentences,
        _cross_entropy,
        parallel_language_model,
        0,
        lambda model: [*model.blocks, model],
    ),
)


def losses(of: Model, mesh: DeviceMesh | None, device: str, steps: int, *, compiled: bool) -> list[float]:
    """The loss of each step: of one process with the whole batch, or the mean over a mesh."""
    torch.manual_seed(0)
    model = of.make().to(device)
    part, parts = 0, 1
    if mesh is not None:
        part, parts = mesh["data"].get_local_rank(), mesh["data"].size()
        if mesh["tensor"].size() > 1:
            model = of.parallel(model, mesh["tensor"])
    if compiled:
        for module in of.parts(model):
            if module is not model or len(of.parts(model)) == 1:
                module.compile()
    if mesh is not None:
        for module in of.parts(model):
            fully_shard(module, mesh=mesh["data"])
    # Adam would hide gradients that are too large by a factor.
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=0.9, foreach=False)
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(steps):
        inputs, targets = (t.to(device) for t in of.data(generator))
        loss = of.loss(model(inputs.chunk(parts, of.batch_dim)[part]), targets.chunk(parts)[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        if mesh is not None:
            dist.all_reduce(whole, group=mesh["data"].get_group())
        found.append(float(whole) / parts)
    return found


def compared(of: Model, mesh: DeviceMesh, device: str, steps: int, *, compiled: bool) -> dict[str, Any]:
    sizes = f"{mesh['data'].size()} x {mesh['tensor'].size()}"
    record: dict[str, Any] = {"model": of.name, "data x tensor": sizes, "compiled": compiled, "steps": steps}
    try:
        start = time.perf_counter()
        many = losses(of, mesh, device, steps, compiled=compiled)
        record["seconds"] = time.perf_counter() - start
    except Exception as error:
        return {**record, "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"}
    one = of_one_process(of.name, device, steps, compiled)
    apart = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(many, one, strict=True))
    return {**record, "first": many[0], "last": many[-1], "last of one process": one[-1], "difference": apart}


@functools.cache
def of_one_process(name: str, device: str, steps: int, compiled: bool) -> list[float]:
    torch.compiler.reset()
    found = losses(next(of for of in MODELS if of.name == name), None, device, steps, compiled=compiled)
    torch.compiler.reset()
    return found


# -- the processes -----------------------------------------------------------------------------------------------------


def work(rank: int, processes: int, port: int, chosen: argparse.Namespace, record: dict[str, Any]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = "cpu" if chosen.cpu else "cuda"
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(record["backend"], rank=rank, world_size=processes)
    trained = []
    for tensor in (n for n in range(1, processes + 1) if processes % n == 0):
        mesh = init_device_mesh(device, (processes // tensor, tensor), mesh_dim_names=("data", "tensor"))
        for of in MODELS:
            for compiled in (False, True)[: 1 if chosen.eager else 2]:
                trained.append(compared(of, mesh, device, chosen.steps, compiled=compiled))
                if rank == 0:
                    said(trained[-1])
    if rank == 0:
        records.write(chosen.file, {**record, "training": trained})
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that ends in the usual way (torch 2.13)


def said(record: dict[str, Any]) -> None:
    print("  ".join(f"{k}={v:.2g}" if isinstance(v, float) else f"{k}={v}" for k, v in record.items()), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cpu", type=int, default=0, help="so many processes on a CPU")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    chosen = parser.parse_args(arguments)
    processes = chosen.cpu or torch.cuda.device_count()
    record: dict[str, Any] = {
        "machine": this_machine().to_json(),
        "processes": processes,
        "backend": "gloo" if chosen.cpu else "nccl",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (processes, port, chosen, record), nprocs=processes)


if __name__ == "__main__":
    main()
