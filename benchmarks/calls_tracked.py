"""The time of calls that autograd tracks, in µs and beside torch's own, of this opwright and of an earlier one.

Usage: calls_tracked.py --before TREE [--json FILE] [--rounds N]

``--before`` names a checkout of the earlier version; processes of the two take turns. Within a process all calls take
turns, and each is divided by torch's own call that computes the same. The table gives medians over the processes, with
the least and the greatest. Only public names are used, so that both versions run the same lines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow

HERE = Path(__file__).resolve().parent
# Each call, and the one of torch's own that it is divided by.
TORCH = {
    "a call": "torch.mul, tracked",
    "an autograd.Function": "torch.mul, tracked",
    "derived gradient, forward and backward": "torch.mul, forward and backward",
    "custom function, forward and backward": "torch.mul, forward and backward",
    "backward operator, forward and backward": "torch.mul, forward and backward",
    "an autograd.Function, forward and backward": "torch.mul, forward and backward",
}
_CALLS, _TURNS = 1000, 15


def multiplying(name: str) -> ow.Op:
    @ow.op(f"tracked::{name}")
    def multiply(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x * y

    multiply.python(torch.mul, name="library")
    return multiply


def with_function() -> ow.Op:
    op = multiplying("with_function")

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    op.register_autograd(backward, setup_context=setup_context)
    return op


def with_operator() -> ow.Op:
    op = multiplying("with_operator")

    @ow.op("tracked::multiply_backward")
    def multiply_backward(
        grad: Float[Tensor, " n"], x: Float[Tensor, " n"], y: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return grad * y, grad * x

    multiply_backward.python(lambda grad, x, y: (torch.mul(grad, y), torch.mul(grad, x)), name="library")
    op.register_autograd(multiply_backward)
    return op


class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x


def calls() -> dict[str, Callable[[], object]]:
    x, y = torch.randn(1024, requires_grad=True), torch.randn(1024, requires_grad=True)
    grad = torch.ones(1024)
    derived, function, operator = multiplying("derived"), with_function(), with_operator()

    def both(forward: Callable[..., Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(forward(x, y), (x, y), grad)

    return {
        "torch.mul, tracked": lambda: torch.mul(x, y),
        "a call": lambda: derived(x, y),
        "an autograd.Function": lambda: Multiply.apply(x, y),
        "torch.mul, forward and backward": both(torch.mul),
        "derived gradient, forward and backward": both(derived),
        "custom function, forward and backward": both(function),
        "backward operator, forward and backward": both(operator),
        "an autograd.Function, forward and backward": both(Multiply.apply),
    }


def measure() -> dict[str, float]:
    torch.set_num_threads(1)
    found = calls()
    warm_up(found)
    best = dict.fromkeys(found, float("inf"))
    for _ in range(_TURNS):
        for name, call in found.items():
            best[name] = min(best[name], timeit.timeit(call, number=_CALLS) / _CALLS * 1e6)
    return best


def warm_up(found: dict[str, Callable[[], object]]) -> None:
    """Enough calls for guards and for a native extension, whose build in another thread is waited for."""
    for _ in range(2):
        for call in found.values():
            for _ in range(300):
                call()
        for thread in threading.enumerate():
            if thread.name == "opwright-build":
                thread.join()


def in_a_process(tree: Path, cache: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OPWRIGHT_CACHE_DIR": cache}
    command = [sys.executable, str(HERE / "calls_tracked.py"), "--once"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    times: dict[str, float] = json.loads(done.stdout)
    return times


def table_of(taken: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for call in next(iter(taken.values()))[0]:
        row = table[call] = {}
        for version, times in taken.items():
            row |= spread(f"µs {version}", [t[call] for t in times])
            if call in TORCH:
                row |= spread(f"× torch {version}", [t[call] / t[TORCH[call]] for t in times])
    return table


def spread(name: str, values: list[float]) -> dict[str, float]:
    return {name: statistics.median(values), f"{name} from": min(values), f"{name} to": max(values)}


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
    trees = ({"before": options.before} if options.before else {}) | {"after": HERE.parent}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(options.rounds):
            for name, tree in trees.items():
                taken[name].append(in_a_process(tree, cache))
    table = table_of(taken)
    for call, row in table.items():
        print(f"{call:<44}" + "".join(f"  {name} {value:.2f}" for name, value in row.items() if name[-2:] != "to"))
    if options.json:
        import records

        from opwright.machine import this_machine

        versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
        record = {"machine": this_machine().to_json(), "versions": versions, "rounds": options.rounds, "calls": table}
        records.write(options.json, record)


if __name__ == "__main__":
    main()
