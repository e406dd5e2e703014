"""The time of whole calls, in µs, of this opwright and optionally of an earlier one.

Usage: calls.py [--before TREE] [--json FILE] [--rounds N]

``--before`` names a checkout of an earlier version: processes of the two take turns, and the table gives the medians of
both and the median of the ratios within a round. Both run the same lines, which use public names only, but to load the
extensions.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.gallery.trig import sin
from opwright.runtime.extensions import load_extensions

HERE = Path(__file__).resolve().parent
Times = dict[str, float]
# Within a process all calls take turns; the least time of each counts.
_CALLS, _TURNS = 1000, 15
LAUNCH = """
extern "C" __global__ void add(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}
"""


def adding(name: str) -> ow.Op:
    @ow.op(f"calls::{name}")
    def add(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + y

    return add


def scaling() -> ow.Op:
    @ow.op("calls::scale")
    def scale(x: Float[Tensor, " n"], a: float, flag: bool = True) -> Float[Tensor, " n"]:
        return a * x

    scale.python(lambda x, a, flag: x, name="nothing")
    return scale


def calls(device: str) -> dict[str, Callable[[], object]]:
    x, y = torch.randn(1024, device=device), torch.randn(1024, device=device)
    wants = torch.randn(1024, device=device, requires_grad=True)
    nothing, eager, scale = adding("nothing"), adding("eager"), scaling()
    nothing.python(lambda x, y: x, name="nothing")
    eager.python(torch.add, name="library")
    grad = torch.ones_like(x)
    found: dict[str, Callable[[], object]] = {
        "torch.add": lambda: torch.add(x, y),
        "op around nothing": lambda: nothing(x, y),
        "op around nothing, a number and a default": lambda: scale(x, 2.0),
        "op around torch.add": lambda: eager(x, y),
        "the same, tracked by autograd": lambda: eager(wants, y),
        "torch.add, tracked": lambda: torch.add(wants, y),
        "the same through torch.ops": lambda: torch.ops.calls.eager(x, y),
        "the same through torch.ops, its overload": lambda: torch.ops.calls.eager.default(x, y),
        "forward and backward": lambda: torch.autograd.grad(eager(wants, y), wants, grad),
        "torch.add, forward and backward": lambda: torch.autograd.grad(torch.add(wants, y), wants, grad),
    }
    found |= {
        "gallery::sin, forward and backward": lambda: torch.autograd.grad(sin(wants), wants, grad),
        "torch.sin, forward and backward": lambda: torch.autograd.grad(torch.sin(wants), wants, grad),
    }
    found |= changing_calls(x, wants)
    found |= compiled_calls(x, y, wants)
    compiled = adding("compiled")
    if device == "cuda":
        kernel, out = ow.cuda_module(LAUNCH)["add"], torch.empty_like(x)

        def launch(x: Tensor, y: Tensor) -> Tensor:
            out = torch.empty_like(x)
            kernel[4, 256](x, y, out, 1024)
            return out

        compiled.cuda(launch, name="launcher")
        found["op around a CUDA launcher"] = lambda: compiled(x, y)
        found["the same kernel by its name"] = lambda: compiled.kernels["launcher"](x, y)
        found["CUDA launch"] = lambda: kernel[4, 256](x, y, out, 1024)
        found |= triton_calls(x, y, out)
    else:
        compiled.cpp(HERE / "add_host.cpp", name="cpp", entry="add_host", dtypes=[torch.float32])
        found["op in C++"] = lambda: compiled(x, y)
        found["the same kernel by its name"] = lambda: compiled.kernels["cpp"](x, y)
    return found


def compiled_calls(x: Tensor, y: Tensor, wants: Tensor) -> dict[str, Callable[[], object]]:
    """Eight calls one after another in a function that torch.compile has compiled, and what such a function costs."""
    op = adding("in_compile")
    op.python(torch.add, name="library")

    def eight(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(8):
            x = op(x, y)
        return x

    def in_eager(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(8):
            x = torch.add(x, y)
        return x

    chain, alone = torch.compile(eight, fullgraph=True), torch.compile(torch.add, fullgraph=True)
    grad = torch.ones_like(x)
    return {
        "a function of torch.compile": lambda: alone(x, y),
        "one with eight calls of an operator": lambda: chain(x, y),
        "the same, forward and backward": lambda: torch.autograd.grad(chain(wants, y), wants, grad),
        "eight of torch.add, eager": lambda: in_eager(x, y),
        "the same, forward and backward (eager)": lambda: torch.autograd.grad(in_eager(wants, y), wants, grad),
    }


def changing_calls(x: Tensor, wants: Tensor) -> dict[str, Callable[[], object]]:
    """Calls that differ from all before, or nearly: ours, and those of ``torch.library.custom_op``."""

    @ow.op("calls::changing")
    def changing(x: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
        return x * a

    changing.python(lambda x, a: x * a, name="library")
    custom = torch.library.custom_op(
        "calls::changing_custom", lambda x, a: x * a, mutates_args=(), schema="(Tensor x, float a) -> Tensor"
    )
    custom.register_autograd(lambda ctx, grad: (grad, None), setup_context=lambda ctx, inputs, output: None)
    numbers, sizes = itertools.count(), itertools.count()
    nine = [torch.randn(1024 + n, device=x.device) for n in range(9)]
    found: dict[str, Callable[[], object]] = {}
    for name, op in (("operator", changing), ("custom_op", custom)):
        found |= {
            f"{name}, an int for a float": lambda op=op: op(x, 2),
            f"{name}, a float that changes": lambda op=op: op(x, next(numbers) * 0.1),
            f"{name}, a float that changes, tracked": lambda op=op: op(wants, next(numbers) * 0.1),
            f"{name}, nine sizes in turn": lambda op=op: op(nine[next(sizes) % 9], 2.0),
            f"{name}, a keyword": lambda op=op: op(x, a=2.0),
        }
    return found


def triton_calls(x: Tensor, y: Tensor, out: Tensor) -> dict[str, Callable[[], object]]:
    from opwright.gallery.add import add_triton

    in_triton, launcher = adding("in_triton"), add_triton.add
    in_triton.triton(launcher, name="triton")
    return {
        "op around a Triton launcher": lambda: in_triton(x, y),
        "the same Triton kernel by its name": lambda: in_triton.kernels["triton"](x, y),
        "Triton launch": lambda: add_triton.add_kernel[(1,)](x, y, out, 1024, BLOCK=1024),
    }


def measure() -> Times:
    torch.set_num_threads(1)
    load_extensions(build=True)
    found = calls("cuda" if torch.cuda.is_available() else "cpu")
    for call in found.values():
        for _ in range(200):
            call()
    best = dict.fromkeys(found, float("inf"))
    for _ in range(_TURNS):
        for name, call in found.items():
            best[name] = min(best[name], timeit.timeit(call, number=_CALLS) / _CALLS * 1e6)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    return best


def in_a_process(tree: Path, cache: str) -> Times:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HERE / "calls.py"), "--once"]
    environment |= {"OPWRIGHT_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    times: Times = json.loads(done.stdout)
    return times


def compare(before: Path | None, rounds: int) -> dict[str, dict[str, float]]:
    trees = {"after": HERE.parent} | ({"before": before} if before else {})
    taken: dict[str, list[Times]] = {name: [] for name in trees}
    with contextlib.ExitStack() as stack:
        caches = {name: stack.enter_context(tempfile.TemporaryDirectory()) for name in trees}
        for _ in range(rounds):
            for name, tree in trees.items():
                taken[name].append(in_a_process(tree, caches[name]))
    table = {}
    for call in taken["after"][0]:
        row = {}
        for name, times in taken.items():
            found = [t[call] for t in times]
            row |= {name: statistics.median(found), f"{name} from": min(found), f"{name} to": max(found)}
        if before:
            pairs = zip(taken["after"], taken["before"], strict=True)
            row["ratio"] = statistics.median(a[call] / b[call] for a, b in pairs)
        table[call] = row
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(measure()))
        return
    table = compare(options.before, options.rounds)
    for call, row in table.items():
        print(f"{call:<42}" + "".join(f"  {name} {value:7.2f}" for name, value in row.items()))
    if options.json:
        import records

        from opwright.machine import this_machine

        records.write(options.json, {"machine": this_machine().to_json(), "unit": "µs", "calls": table})


if __name__ == "__main__":
    main()
