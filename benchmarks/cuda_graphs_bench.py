"""``ow.cuda_graphed`` beside ``torch.cuda.make_graphed_callables``, torch.compile's graphs and no graphs.

Usage: cuda_graphs_bench.py OUTPUT_FOLDER

For a cell, a multi-layer perceptron and a layer of a transformer: microseconds of a forward and backward, candidates in
turn in each round, medians and ratios within a round; and whether the backward of a sequence of five calls, whose
results are kept, has the right gradients.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import records
import torch
from torch import nn

import opwright as ow
from opwright.gallery.lltm.module import ReferenceLLTM
from opwright.machine import this_machine

ROUNDS = 31
SAMPLE_US = 10_000
Step = Callable[[torch.Tensor], torch.Tensor]


class Cell(nn.Module):
    """A recurrent cell whose state is its input: b × 128."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = ReferenceLLTM(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.cell(x, (x, x))
        return h + c


def modules() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    perceptron = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU())])
    transformer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return {
        "cell, 16 × 128": (Cell(), (16, 128)),
        "perceptron of 4 layers, 64 × 512": (perceptron, (64, 512)),
        "transformer layer, 8 × 128 × 512": (transformer, (8, 128, 512)),
    }


def candidates(module: nn.Module, x: torch.Tensor) -> dict[str, tuple[nn.Module, Step]]:
    """The candidates, each with a copy of the module."""
    plain, compiled, theirs, ours = (copy.deepcopy(module) for _ in range(4))
    sample = (x.detach().clone().requires_grad_(),)
    return {
        "eager": (plain, plain),
        "torch.compile, reduce-overhead": (compiled, torch.compile(compiled, mode="reduce-overhead")),
        "make_graphed_callables": (theirs, torch.cuda.make_graphed_callables(theirs, sample)),
        "ow.cuda_graphed": (ours, ow.cuda_graphed(ours)),
    }


def step(module: nn.Module, run: Step, x: torch.Tensor, gradient: torch.Tensor) -> Any:
    torch.compiler.cudagraph_mark_step_begin()
    return torch.autograd.grad(run(x), [x, *module.parameters()], gradient)


def microseconds(call: Callable[[], object]) -> float:
    def sample(calls: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6

    calls = max(int(SAMPLE_US / (sample(3) / 3)), 1)
    return sample(calls) / calls


def sequence(module: nn.Module, run: Step, x: torch.Tensor) -> list[torch.Tensor] | str:
    """Five calls, each on the result of the previous one, then the backward of all of them."""
    torch.compiler.cudagraph_mark_step_begin()
    try:
        states = [x]
        for _ in range(5):
            states.append(run(states[-1]))
        loss = torch.stack([s.float().sin().sum() for s in states]).sum()
        return [s.detach().clone() for s in states] + [*torch.autograd.grad(loss, [x, *module.parameters()])]
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"


def verdict(found: list[torch.Tensor] | str, expected: list[torch.Tensor]) -> str:
    if isinstance(found, str):
        return found
    right = all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(found, expected, strict=True))
    return "right" if right else "wrong"


def measure(module: nn.Module, shape: tuple[int, ...]) -> dict[str, Any]:
    module = module.cuda()
    x = torch.randn(shape, device="cuda", requires_grad=True)
    gradient = torch.randn(shape, device="cuda")
    found = candidates(module, x)
    expected = step(*found["eager"], x, gradient)
    for pair in found.values():
        for _ in range(4):
            results = step(*pair, x, gradient)
        torch.testing.assert_close(results, expected, rtol=1e-3, atol=1e-3)
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(ROUNDS):
        for name, pair in found.items():
            times[name].append(microseconds(lambda pair=pair: step(*pair, x, gradient)))  # type: ignore[misc]
    plain = sequence(*found["eager"], x)
    assert not isinstance(plain, str)
    return {
        name: {
            "us": round(statistics.median(times[name]), 1),
            "of_eager": round(statistics.median(a / b for a, b in zip(times[name], times["eager"], strict=True)), 3),
            "five_calls_before_the_backward": verdict(sequence(*pair, x), plain),
        }
        for name, pair in found.items()
    }


def main() -> None:
    torch.set_float32_matmul_precision("highest")
    record: dict[str, Any] = {"machine": this_machine().to_json(), "rounds": ROUNDS}
    for name, (module, shape) in modules().items():
        record[name] = measure(module, shape)
        print(f"\n{name}: forward and backward")
        for candidate, line in record[name].items():
            print(f"  {candidate:32} {line['us']:8.1f} µs  {line['of_eager']:6.3f} of eager   "
                  f"{line['five_calls_before_the_backward']}")  # fmt: skip
    records.write(Path(sys.argv[1]) / "cuda-graphs.json", record)


if __name__ == "__main__":
    main()
