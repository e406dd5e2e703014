"""The LLTM cell: forward, backward and both, plain, compiled and with each of opwright's kernels.

Usage: lltm_bench.py OUTPUT_FOLDER [--device cpu|cuda] [--one-thread]

Microseconds of one step in float32 without TF32, all five gradients taken with ``torch.autograd.grad``: candidates in
turn in each round, the device is synchronised before and after each sample; medians over rounds. ``of_compile`` is a
candidate's time for both as a share of torch.compile's in the same round, as the host's speed changes from one moment
to the next; medians again. ``memory`` is the peak allocation of one forward and backward beyond inputs and
parameters (on a GPU, with graphs). Every candidate's results are compared with the plain module's before it is
timed.

With ``--in-compile`` the candidates are modules within torch.compile, on a GPU also with CUDA graphs of its own
(``mode="reduce-overhead"``); of those with graphs, which may keep one step's results only, both directions are timed.
"least" is a module with the same inputs, parameters and gradients that multiplies two numbers an output: what
torch.compile itself takes for a step, whatever is in it.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import records
import torch
from torch import Tensor

from opwright.gallery.lltm.module import LLTM, ReferenceLLTM
from opwright.machine import this_machine

SIZES = {
    "cuda": ((16, 32, 128), (256, 512, 512), (4096, 1024, 1024)),  # batch, input, state
    "cpu": ((16, 32, 128), (64, 128, 256), (256, 512, 512)),
}
OURS: dict[str, dict[str, dict[str, Any]]] = {
    "cuda": {
        "cuda": {"kernel": "cuda"},
        "cuda accessors": {"kernel": "cuda_accessors"},
        "cuda host": {"kernel": "cuda_host"},
        "triton": {"kernel": "triton"},
        "cuda graph": {"kernel": "cuda", "cuda_graph": True},
    },
    "cpu": {"cpp": {}},
}
ROUNDS = 41
SAMPLE_US = 8_000  # how long a sample takes
SECONDS_OF_A_CASE = 15  # rounds stop then
STATES_KEPT = 10  # forwards whose backwards are timed together
DIRECTIONS = ("forward", "backward", "both")
COMPILED = "torch.compile"
WITH_GRAPHS = "reduce-overhead"
LEAST = "least"


class LeastLLTM(ReferenceLLTM):
    """The arguments, outputs and gradients of the cell, and next to no work."""

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        return h * (self.weights[0, 0] + x[0, 0]), c * self.bias[0]


def candidates(device: str, i: int, s: int, in_compile: bool) -> dict[str, torch.nn.Module]:
    """The candidates, all with the same parameters."""
    plain = ReferenceLLTM(i, s).to(device)

    def copy(options: dict[str, Any] | None = None) -> torch.nn.Module:
        module = (ReferenceLLTM(i, s) if options is None else LLTM(i, s, **options)).to(device)
        module.load_state_dict(plain.state_dict())
        return module

    torch.compiler.reset()
    made: dict[str, Any] = {"reference": plain}
    if not in_compile:
        made |= {name: copy(options) for name, options in OURS[device].items()}
    made[COMPILED] = torch.compile(copy(), dynamic=False)
    if in_compile:
        ours = {name: options for name, options in OURS[device].items() if "cuda_graph" not in options}
        made |= {f"{name} in it": torch.compile(copy(options), dynamic=False) for name, options in ours.items()}
        least = LeastLLTM(i, s).to(device)
        made[LEAST] = torch.compile(least, dynamic=False)
        if device == "cuda":
            made[f"{LEAST}, graphs"] = torch.compile(least, dynamic=False, mode="reduce-overhead")
            made[WITH_GRAPHS] = torch.compile(copy(), dynamic=False, mode="reduce-overhead")
            for name, options in ours.items():
                made[f"{name}, graphs"] = torch.compile(copy(options), dynamic=False, mode="reduce-overhead")
    return made


def has_own_graphs(name: str) -> bool:
    return name == WITH_GRAPHS or name.endswith(", graphs")


class Step:
    """One candidate at one size."""

    def __init__(self, module: torch.nn.Module, b: int, i: int, s: int, device: str, graphs: bool = False) -> None:
        self.graphs = graphs
        generator = torch.Generator().manual_seed(0)
        self.module = module
        self.x, self.h, self.c = (torch.randn(b, n, generator=generator).to(device).requires_grad_() for n in (i, s, s))
        self.grads = [torch.randn(b, s, generator=generator).to(device) for _ in range(2)]
        self.wanted = [self.x, self.h, self.c, *module.parameters()]

    def forward(self) -> Any:
        return self.module(self.x, (self.h, self.c))

    def backward(self, outputs: Any) -> Any:
        return torch.autograd.grad(outputs, self.wanted, self.grads)

    def both(self) -> Any:
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        outputs = self.forward()
        return *outputs, *self.backward(outputs)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call: Callable[[], object], device: str) -> float:
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - start


def memory_of(step: Step, device: str) -> int | None:
    """The memory of one forward and backward, with the allocations that remain after the first one."""
    if device != "cuda":
        step.both()
        return None
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        step.both()
        torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def error_of(step: Step, expected: Any) -> float:
    """The largest difference from the plain module, as a share of the largest value."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(step.both(), expected, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def samples_of(step: Step, device: str) -> dict[str, Callable[[], float]]:
    """For each direction, a function that gives microseconds a step."""

    def repeat(call: Callable[[], object], times: int) -> None:
        for _ in range(times):
            call()

    def sample(call: Callable[[], object], times: int) -> float:
        return seconds(lambda: repeat(call, times), device) / times * 1e6

    def backwards() -> float:
        states = [step.forward() for _ in range(STATES_KEPT)]
        return seconds(lambda: [step.backward(state) for state in states], device) / STATES_KEPT * 1e6

    found: dict[str, Callable[[], float]] = {} if step.graphs else {"backward": backwards}
    for name, call in (("both", step.both),) if step.graphs else (("forward", step.forward), ("both", step.both)):
        repeat(call, 5)
        times = max(1, min(500, int(SAMPLE_US / sample(call, 5))))
        found[name] = functools.partial(sample, call, times)
    if not step.graphs:
        backwards()
    return found


def case(b: int, i: int, s: int, device: str, in_compile: bool) -> dict[str, Any]:
    steps, memory, failed = {}, {}, {}
    expected = None
    for name, module in candidates(device, i, s, in_compile).items():
        try:
            step = Step(module, b, i, s, device, has_own_graphs(name))
            memory[name] = memory_of(step, device)
            expected = step.both() if expected is None else expected
            if not name.startswith(LEAST) and error_of(step, expected) > 1e-3:
                raise AssertionError(f"{name} differs from the plain module by {error_of(step, expected):.1e}")
            steps[name] = samples_of(step, device)
        except Exception:
            failed[name] = traceback.format_exc()
            print(f"{name} failed\n{failed[name]}")
    times: dict[str, dict[str, list[float]]] = {n: {d: [] for d in found} for n, found in steps.items()}
    until = time.perf_counter() + SECONDS_OF_A_CASE
    for _ in range(ROUNDS):
        for direction in DIRECTIONS:
            for name, found in steps.items():
                if direction in found:
                    times[name][direction].append(found[direction]())
        if time.perf_counter() > until:
            break
    medians = {n: {d: statistics.median(all_) for d, all_ in found.items()} for n, found in times.items()}
    made = {"batch": b, "input": i, "state": s, "us": medians, "memory": memory, "failed": failed, "samples": times}
    return made | {"of_compile": shares_of(times, COMPILED)}


def shares_of(times: dict[str, dict[str, list[float]]], whose: str) -> dict[str, float]:
    """Times for both directions as shares of one candidate's, medians over rounds."""
    if whose not in times:
        return {}
    return {
        name: statistics.median(own / other for own, other in zip(found["both"], times[whose]["both"], strict=True))
        for name, found in times.items()
    }


def show(found: dict[str, Any]) -> None:
    print(f"\nbatch {found['batch']}, input {found['input']}, state {found['state']}   (µs a step)")
    print(f"{'':>22} {'forward':>10} {'backward':>10} {'both':>10} {'of compile':>11} {'memory':>10}")
    for name, us in found["us"].items():
        share = f"{found['of_compile'][name]:.2f} ×" if found["of_compile"] else "-"
        memory = None if has_own_graphs(name) else found["memory"][name]  # theirs is in a pool that stays
        shown = "-" if memory is None else f"{memory / 2**20:.2f} MiB"
        each = " ".join(f"{us[d]:>10.1f}" if d in us else f"{'-':>10}" for d in DIRECTIONS)
        print(f"{name:>22} {each} {share:>11} {shown:>10}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--in-compile", action="store_true", help="modules within torch.compile")
    parser.add_argument("--one-thread", action="store_true", help="no thread of autograd's own for the GPU")
    options = parser.parse_args()
    torch.autograd.set_multithreading_enabled(not options.one_thread)
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    record: dict[str, Any] = {"schema": "opwright.lltm_bench/2", "machine": this_machine().to_json()}
    record |= {"device": options.device, "dtype": "float32", "threads": torch.get_num_threads()}
    record |= {"autograd_threads": not options.one_thread, "cases": []}
    start = time.perf_counter()
    for size in SIZES[options.device]:
        found = case(*size, options.device, options.in_compile)
        show(found)
        record["cases"].append(
            {k: v for k, v in found.items() if k != "samples"} | {"quartiles_us": quartiles(found["samples"])}
        )
        record["seconds"] = time.perf_counter() - start
        records.write(options.folder / ("lltm-in-compile.json" if options.in_compile else "lltm.json"), record)
    print(f"\n{record['seconds']:.0f} s")


def quartiles(samples: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    """The lower and the upper one."""
    return {
        name: {d: statistics.quantiles(us, n=4)[::2] for d, us in found.items() if len(us) > 1}
        for name, found in samples.items()
    }


if __name__ == "__main__":
    main()
