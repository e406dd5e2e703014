"""``python -m opwright.gallery.lltm.train``: an LLTM learns the adding problem, with and without opwright's kernels.

A sequence of random numbers in [0, 1), two of them marked: the target is the sum of the two (Hochreiter and
Schmidhuber, Long short-term memory, 1997, section 5.4). Always predicting 1 has a mean squared error of 1/6. The same
network is trained twice from one seed on the same data, with opwright's module and with the plain one. The two loss
curves and their difference are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opwright.gallery.lltm import lltm
from opwright.gallery.lltm.module import LLTM, ReferenceLLTM

__all__ = ["BASELINE", "Adder", "Settings", "adding_problem", "train"]

BASELINE = 1 / 6  # the variance of the sum of two numbers from [0, 1)


@dataclass(frozen=True)
class Settings:
    """The settings of a training run."""

    length: int = 20
    state: int = 64
    batch: int = 64
    steps: int = 1500
    rate: float = 3e-3
    seed: int = 0
    device: str = "cpu"
    compiled: bool = False
    bfloat16: bool = False


def adding_problem(batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences (length × batch × 2: number, mark) and their targets (batch). One mark lies in each half."""
    numbers = torch.rand(length, batch, generator=generator)
    half = length // 2
    first = torch.randint(half, (1, batch), generator=generator)
    second = torch.randint(half, length, (1, batch), generator=generator)
    marks = torch.zeros(length, batch).scatter_(0, torch.cat((first, second)), 1.0)
    return torch.stack((numbers, marks), 2), (numbers * marks).sum(0)


class Adder(nn.Module):
    """A cell that reads a sequence, and a linear layer that reads its last state."""

    def __init__(self, cell: ReferenceLLTM) -> None:
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(cell.state_size, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        """length × batch × features → batch."""
        h = c = sequence.new_zeros(sequence.shape[1], self.cell.state_size)
        for x in sequence.unbind():
            h, c = self.cell(x, (h, c))
        answers: Tensor = self.head(h).squeeze(1)
        return answers


def train(make_cell: Callable[[int, int], ReferenceLLTM], settings: Settings) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    model = Adder(make_cell(2, settings.state)).to(settings.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.rate)
    run = torch.compile(model) if settings.compiled else model
    losses = []
    for _ in range(settings.steps):
        sequence, target = (t.to(settings.device) for t in adding_problem(settings.batch, settings.length, generator))
        with torch.autocast(settings.device, torch.bfloat16) if settings.bfloat16 else contextlib.nullcontext():
            answers = run(sequence)
        loss = F.mse_loss(answers.float(), target)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """The mean over each step's last ``window`` steps."""
    return [sum(losses[max(0, n - window) : n]) / min(n, window) for n in range(1, len(losses) + 1)]


def plot(curves: dict[str, Sequence[float]], settings: Settings, file: Path) -> None:
    """Draw the curves, and the loss of always predicting 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.semilogy(smoothed(losses, 20), style, label=name, linewidth=1.5)
    axes.axhline(BASELINE, color="gray", linewidth=1, linestyle=":", label="always predicting 1")
    axes.set(xlabel="step", ylabel="mean squared error", title=f"the adding problem, {settings.length} numbers")
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def report(curves: dict[str, Sequence[float]]) -> bool:
    """Print the curves and their difference. Returns whether both have learnt."""
    (name, ours), (plain_name, plain) = curves.items()
    window, steps = min(20, len(ours)), len(ours)
    fine = {n: smoothed(losses, window) for n, losses in curves.items()}
    print(f"{'step':>6} {name:>12} {plain_name:>12}   (mean of {window} steps)")
    for step in sorted({*range(steps // 10, steps + 1, max(steps // 10, 1)), window, steps}):
        print(f"{step:>6} {fine[name][step - 1]:>12.5f} {fine[plain_name][step - 1]:>12.5f}")
    apart = [abs(a - b) for a, b in zip(ours, plain, strict=True)]
    tenth = max(steps // 10, 1)
    print(f"apart: at most {max(apart[:tenth]):.1e} in the first {tenth} steps, {max(apart):.1e} in all")
    last = {n: losses[-1] for n, losses in fine.items()}
    print(
        f"at the end: {', '.join(f'{n} {loss:.5f}' for n, loss in last.items())}; always predicting 1: {BASELINE:.5f}"
    )
    return all(loss < BASELINE / 4 for loss in last.values())


def main() -> int:
    defaults = Settings()
    parser = argparse.ArgumentParser(prog="python -m opwright.gallery.lltm.train", description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=defaults.length, help="numbers in a sequence")
    parser.add_argument("--state", type=int, default=defaults.state)
    parser.add_argument("--batch", type=int, default=defaults.batch)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--rate", type=float, default=defaults.rate, help="Adam's learning rate")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: the GPU, if there is one")
    parser.add_argument("--kernel", choices=[*lltm.kernels], help="default: the first that is applicable")
    parser.add_argument("--cuda-graph", action="store_true", help="replay steps as CUDA graphs")
    parser.add_argument("--compile", action="store_true", dest="compiled", help="with torch.compile, both")
    parser.add_argument("--bfloat16", action="store_true", help="under autocast")
    parser.add_argument("--plot", type=Path, help="write the curves to this picture")
    parser.add_argument("--json", type=Path, help="write settings and losses to this file")
    options = vars(parser.parse_args())
    kernel, cuda_graph, file, record = (options.pop(name) for name in ("kernel", "cuda_graph", "plot", "json"))
    options["device"] = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    settings = Settings(**options)
    curves: dict[str, Sequence[float]] = {}
    seconds: dict[str, float] = {}
    subjects: dict[str, Callable[[int, int], ReferenceLLTM]] = {
        "opwright": lambda i, s: LLTM(i, s, kernel=kernel, cuda_graph=cuda_graph),
        "plain": ReferenceLLTM,
    }
    for name, make_cell in subjects.items():
        start = time.perf_counter()
        curves[name] = train(make_cell, settings)
        seconds[name] = time.perf_counter() - start
        print(f"{name}: {settings.steps} steps in {seconds[name]:.1f} s on {settings.device}", flush=True)
    learnt = report(curves)
    if record is not None:
        chosen = {**vars(settings), "kernel": kernel, "cuda_graph": cuda_graph, "torch": torch.__version__}
        record.write_text(json.dumps({"settings": chosen, "seconds": seconds, "losses": curves}))
    if file is not None:
        plot(curves, settings, file)
        print(f"wrote {file}")
    return 0 if learnt else 1


if __name__ == "__main__":
    raise SystemExit(main())
