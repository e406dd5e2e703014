"""The CUDA simulator's speed: threads a second under checks, and the seconds of a compilation, for six kernels.

Each time is taken by the clock and as processor time, of all threads and of the compiler's processes. Other work on the
machine makes the former longer; the latter counts each core that blocks ran on.

Usage: cuda_simulator.py [FILE] [--against SRC] [--rounds N] [--kernels NAME ...]

With ``--against``, the ``src`` folder of another checkout takes turns with this one, each in a process of its own; the
least of all rounds counts, and the record has the ratios. FILE gets the record.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
import torch

HERE = Path(__file__).parent
SOURCE = HERE / "cuda_simulator.cu"
OURS = HERE.parent / "src"


@dataclass(frozen=True)
class Launch:
    """A kernel, its launch, its arguments and what it must compute."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]
    result: torch.Tensor
    expected: torch.Tensor

    @property
    def threads(self) -> int:
        return torch.Size((*self.grid, *self.block)).numel()


def scale_and_add() -> Launch:
    n = 1 << 18
    x, y, out = torch.randn(n), torch.randn(n), torch.empty(n)
    return Launch((n // 256,), (256,), (x, y, out, 2.0, n), out, 2.0 * x + y)


def layer_norm() -> Launch:
    x, weight, bias, out = torch.randn(256, 1024), torch.randn(1024), torch.randn(1024), torch.empty(256, 1024)
    expected = torch.nn.functional.layer_norm(x, (1024,), weight, bias, 1e-5)
    return Launch((256,), (256,), (x, weight, bias, out, 1024, 1e-5), out, expected)


def softmax() -> Launch:
    x, out = torch.randn(512, 256), torch.empty(512, 256)
    return Launch((128,), (128,), (x, out, 512, 256), out, x.softmax(1))


def sgemm() -> Launch:
    a, b, c = torch.randn(256, 256), torch.randn(256, 256), torch.empty(256, 256)
    return Launch((16, 16), (16, 16), (a, b, c, 256), c, a @ b)


def histogram() -> Launch:
    values, counts = torch.randint(256, (1 << 18,), dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    return Launch((64,), (256,), (values, counts, len(values)), counts, values.bincount(minlength=256).int())


def hgemm() -> Launch:
    a, b, c = torch.randn(128, 128).half(), torch.randn(128, 128).half(), torch.empty(128, 128)
    return Launch((8, 8), (32,), (a, b, c, 128), c, a.float() @ b.float())


LAUNCHES: dict[str, Callable[[], Launch]] = {
    f.__name__: f for f in (scale_and_add, layer_norm, softmax, sgemm, histogram, hgemm)
}


# --- one tree, in a process of its own ---


def serve() -> None:
    """Answers each request on the standard input (``run NAME`` or ``compile NAME``) with seconds."""
    import opwright as ow

    torch.set_num_threads(1)  # the threads of torch would keep a core busy while they wait
    torch.manual_seed(0)
    module = ow.cuda_module(SOURCE.read_text())
    launches = {name: make() for name, make in LAUNCHES.items()}
    for number, line in enumerate(sys.stdin):
        action, name = line.split()
        taken = run(module, name, launches[name]) if action == "run" else compilation(name, number, launches[name])
        print(taken.clock, taken.processor, flush=True)


@dataclass(frozen=True)
class Seconds:
    """How long something took, by the clock and of processors' time."""

    clock: float
    processor: float

    @staticmethod
    def now() -> Seconds:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return Seconds(time.perf_counter(), sum(u.ru_utime + u.ru_stime for u in used))

    def since(self) -> Seconds:
        now = Seconds.now()
        return Seconds(now.clock - self.clock, now.processor - self.processor)


def run(module: Any, name: str, launch: Launch) -> Seconds:
    launch.result.zero_()
    start = Seconds.now()
    module[name][launch.grid, launch.block](*launch.arguments)
    taken = start.since()
    torch.testing.assert_close(launch.result, launch.expected, rtol=1e-4, atol=1e-4)
    return taken


def compilation(name: str, number: int, launch: Launch) -> Seconds:
    """A checked build that is in no cache; the runtime's parts are. An empty grid launches nothing."""
    import opwright as ow

    module = ow.cuda_module(f"{SOURCE.read_text()}// {number}\n")
    start = Seconds.now()
    module[name][0, launch.block](*launch.arguments)
    return start.since()


# --- all trees ---


class Tree:
    """A process that has opwright from one ``src`` folder, with an empty cache."""

    def __init__(self, source: Path, cache: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "OPWRIGHT_CACHE_DIR": cache}
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def seconds(self, action: str, name: str) -> Seconds:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{action} {name}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{action} {name} failed")
        return Seconds(*(float(number) for number in answer.split()))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measured(trees: dict[str, Tree], action: str, name: str, rounds: int) -> dict[str, Seconds]:
    """The least seconds of each tree, which take turns."""
    for tree in trees.values():
        tree.seconds(action, name)  # the first run compiles
    taken: dict[str, list[Seconds]] = {label: [] for label in trees}
    for _ in range(rounds):
        for label, tree in trees.items():
            taken[label].append(tree.seconds(action, name))
    return {
        label: Seconds(min(s.clock for s in seconds), min(s.processor for s in seconds))
        for label, seconds in taken.items()
    }


def row(name: str, trees: dict[str, Tree], rounds: int) -> dict[str, Any]:
    threads = LAUNCHES[name]().threads
    running = measured(trees, "run", name, rounds)
    compiling = measured(trees, "compile", name, min(max(2, rounds // 2), 5))
    found: dict[str, Any] = {"threads": threads}
    for what, taken in (("seconds", running), ("compile seconds", compiling)):
        found[what] = {label: s.clock for label, s in taken.items()}
        found[f"{what} of processors"] = {label: s.processor for label, s in taken.items()}
    found["million threads/s"] = {label: threads / s.clock / 1e6 for label, s in running.items()}
    if "against" in trees:
        found["times as fast"] = running["against"].clock / running["this"].clock
        found["times as fast in processor time"] = running["against"].processor / running["this"].processor
        found["compiles in"] = compiling["this"].clock / compiling["against"].clock
        found["compiles in, of processor time"] = compiling["this"].processor / compiling["against"].processor
    return found


def commit(source: Path) -> str:
    command = ["git", "-C", str(source), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another checkout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kernels", nargs="+", default=list(LAUNCHES), choices=list(LAUNCHES), metavar="NAME")
    options = parser.parse_args()

    from opwright.machine import this_machine

    sources = {"this": OURS} | ({"against": options.against.resolve()} if options.against else {})
    with tempfile.TemporaryDirectory() as folder:
        trees = {label: Tree(source, str(Path(folder, label))) for label, source in sources.items()}
        kernels = {}
        for name in options.kernels:
            kernels[name] = row(name, trees, options.rounds)
            print(name, records.rounded(kernels[name]), flush=True)
        for tree in trees.values():
            tree.end()
    if options.file:
        commits = {label: commit(source) for label, source in sources.items()}
        record = {"machine": this_machine().to_json(), "torch": torch.__version__, "commits": commits}
        records.write(options.file, {**record, "rounds": options.rounds, "kernels": kernels})


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        main()
