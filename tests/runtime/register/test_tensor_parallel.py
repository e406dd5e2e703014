"""Models with operators learn under FSDP2 and tensor parallel as in one process (benchmarks/tensor_parallel.py)."""

from __future__ import annotations

import json

import pytest

from tests import REPOSITORY
from tests.warm import run_script

_SCRIPT = """
import json, os, sys, tempfile
sys.path.insert(0, {benchmarks!r})
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import tensor_parallel as parallel
from torch.distributed.device_mesh import init_device_mesh

def trained(of, sizes):
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("data", "tensor"))
    return parallel.compared(of, mesh, "cpu", 4, compiled=False)

def work(rank, file, found):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{{file}}", rank=rank, world_size=2)
    arguments, swiglu = set(), parallel.swiglu
    parallel.swiglu = lambda gate, up: [arguments.add(type(gate).__name__), swiglu(gate, up)][1]
    results = {{f"{{of.name}} {{sizes}}": trained(of, sizes) for of in parallel.MODELS for sizes in ((1, 2), (2, 1))}}
    parallel.Partial = parallel.Replicate  # as if each process had the whole gradient
    results["wrong"] = trained(parallel.MODELS[0], (1, 2))
    if rank == 0:
        with open(found, "w") as out:
            json.dump({{"results": results, "arguments": sorted(arguments)}}, out)
    dist.barrier()
    os._exit(0)

if __name__ == "__main__":
    mp.start_processes(work, (tempfile.mktemp(), {found!r}), nprocs=2, start_method="fork")
"""


@pytest.mark.slow  # two processes train two models four times
def test_losses_are_those_of_one_process(tmp_path):
    found = tmp_path / "found.json"
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.format(benchmarks=str(REPOSITORY / "benchmarks"), found=str(found)))
    run = run_script(script)
    assert run.returncode == 0, run.stdout + run.stderr
    record = json.loads(found.read_text())
    wrong = record["results"].pop("wrong")
    assert len(record["results"]) == 4
    assert all(one.get("difference", 1) < 1e-5 for one in record["results"].values()), record["results"]
    assert wrong["difference"] > 1e-3
    assert record["arguments"] == ["DTensor", "Tensor"]  # of parts of the features, and in one process
