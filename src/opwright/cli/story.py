"""The parts of ``opwright demo``: checks of five systems, a kernel that is wrong on purpose, a comparison of times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opwright.cli.common import log_to
from opwright.sweep.events import Events

if TYPE_CHECKING:
    from opwright.machine import Machine
    from opwright.report.terminal.demo import Missing, Story, System, WrongOnPurpose
    from opwright.report.terminal.progress import CheckProgress
    from opwright.results import BenchReport, Verdict

__all__ = ["BASIC_CHECKS", "run_story"]

BASIC_CHECKS = ("values", "metadata", "inputs unchanged")


@dataclass(frozen=True)
class _System:
    """The kernels of one gallery system that the demo checks: a few, by target, that are built in seconds."""

    title: str
    kernels: tuple[tuple[str, str], ...]  # target, kernel
    also: tuple[str, ...] = ()  # checks besides the basic ones
    gpu_suffices: bool = False  # if there is a GPU, the CPU is left out: building for it takes longest

    @property
    def targets(self) -> list[str]:
        return list(dict.fromkeys(target for target, _ in self.kernels))

    @property
    def names(self) -> list[str]:
        """The kernels as reports name them."""
        return [f"gallery::{target.partition(':')[2]}:{kernel}" for target, kernel in self.kernels]


def _kernels(module: str, *names: str) -> tuple[tuple[str, str], ...]:
    """``operator:kernel`` of a gallery module, as pairs of target and kernel."""
    split = (name.split(":") for name in names)
    return tuple((f"opwright.gallery.{module}:{operator}", kernel) for operator, kernel in split)


_SYSTEMS = (
    _System("1-D convolution", _kernels("conv1d", "conv1d:mojo", "conv1d:cpp", "conv1d:cuda", "conv1d:triton")),
    _System("sine and cosine", _kernels("trig", "sin:triton", "cos:triton", "sin:cpp"), ("torch.compile",)),
    _System("LLTM cell", _kernels("lltm", "lltm:cpp", "lltm:cuda", "lltm:triton"), ("gradients",)),
    _System(
        "k-means in NumPy",
        _kernels("kmeans", "kmeans_assign:numpy_compiled", "kmeans_assign:triton")
        + _kernels("outer_sum", "outer_sum:matmul"),
        gpu_suffices=True,
    ),
    _System("elementwise add", _kernels("add", "add:f32x4", "add:f16x8_pack", "add:triton")),
)


@dataclass(frozen=True)
class _Comparison:
    """An operator to time, with the kernels to time on a CPU and on a GPU."""

    target: str
    kernels: dict[str, tuple[str, ...]]
    sizes: dict[str, list[int]]


# The first with a kernel that is right and can be timed here is used; the last needs no compiler.
_COMPARISONS = (
    _Comparison(
        "opwright.gallery.conv1d:conv1d",
        {"cuda": ("cuda", "triton"), "cpu": ("mojo", "cpp")},
        {"n": [100_000], "m": [4]},
    ),
    _Comparison(
        "opwright.gallery.outer_sum:outer_sum",
        {"cuda": ("matmul",), "cpu": ("matmul",)},
        {"n": [10_000], "i": [8], "j": [8]},
    ),
)


_NEXT = (
    ("opwright check opwright.gallery.trig", "three operators, every check"),
    ("opwright bench opwright.gallery.trig:sin", "times, beside torch.compile and the machine’s limits"),
    ("opwright demo --all", "the whole gallery, every check: minutes"),
)


def run_story(progress: CheckProgress) -> Story:
    """Check kernels, time one operator, and list what is missing; ``progress`` shows each step."""
    started = time.monotonic()
    from opwright.machine import this_machine
    from opwright.report.terminal.demo import Story
    from opwright.results import CheckReport

    machine = this_machine()
    progress.plan(sum(len(system.kernels) for system in _SYSTEMS) + 1)
    systems = _check_systems(machine, progress)
    wrong = _check_wrong(progress)
    verdicts = tuple(v for system in systems for v in system.verdicts)
    return Story(
        systems=systems,
        checked=CheckReport(machine.to_json(), verdicts),
        wrong=wrong,
        times=_compare_times(verdicts, progress),
        missing=tuple(_missing(machine)),
        commands=_NEXT,
        seconds=time.monotonic() - started,
    )


def _check_systems(machine: Machine, progress: CheckProgress) -> tuple[System, ...]:
    """Check two systems at a time, the longest first: NumPy compiles for half a minute, on one processor."""
    from opwright.workers.pool import end_workers

    with ThreadPoolExecutor(2) as pool:
        try:
            longest_first = sorted(_SYSTEMS, key=lambda system: not system.gpu_suffices)
            started = {system: pool.submit(_check_system, system, machine, progress) for system in longest_first}
            return tuple(started[system].result() for system in _SYSTEMS)
        except BaseException:  # such as Ctrl-C: the threads end with their workers
            pool.shutdown(wait=False, cancel_futures=True)
            end_workers()
            raise


def _check_system(system: _System, machine: Machine, progress: CheckProgress) -> System:
    from opwright.checks.run import check
    from opwright.report.terminal.demo import System

    report = check(
        *system.targets,
        kernels=system.names,
        device="cuda" if system.gpu_suffices and machine.has_gpu else None,
        checks=(*BASIC_CHECKS, *system.also),
        level="smoke",
        # A kernel may run on a GPU and on the CPU, which the first count does not include.
        events=Events(lambda kernels: progress.plan(kernels - len(system.kernels)), progress.step, progress.done),
    )
    return System(system.title, report.verdicts)


def _check_wrong(progress: CheckProgress) -> WrongOnPurpose:
    """Check the first kernel that is wrong on purpose and can run here: one needs g++, the other nothing."""
    from opwright.checks.run import check
    from opwright.gallery import wrong
    from opwright.report.terminal.demo import WrongOnPurpose

    found: list[WrongOnPurpose] = []
    for kernel, (device, file, fault) in wrong.FAULTS.items():
        (verdict,) = check(
            wrong.scale,
            kernels=[kernel],
            device=device,
            checks=["values"],
            level="smoke",
            events=Events(step=progress.step),
        )
        found.append(WrongOnPurpose(verdict, str(file), fault))
        if verdict.status != "refused":
            break
    progress.done(verdict, "as expected: it is wrong on purpose" if verdict.failures else "")
    return found[-1]


def _compare_times(verdicts: Sequence[Verdict], progress: CheckProgress) -> BenchReport | None:
    """Time kernels that are right, in turn with their reference, in this process; None if there are none."""
    from opwright.results import Status
    from opwright.runtime.targets import load_target
    from opwright.timing.request import Request
    from opwright.timing.run import measure

    for comparison in _COMPARISONS:
        for device, names in comparison.kernels.items():
            operator = load_target(comparison.target)[0]
            right = [
                v.kernel for v in verdicts
                if (v.op, v.device) == (operator.contract.qualname, device) and v.kernel in names
                and v.status in (Status.PASS, Status.WARNING, Status.THIN)
            ]  # fmt: skip
            if right:
                with log_to(progress.on_message):
                    return measure(
                        Request(
                            [operator], right, device, comparison.sizes, directions=["forward"],
                            baselines=["reference"], quick=True, caches=["warm"], limits=False,
                            progress=progress.on_message,
                        )
                    )  # fmt: skip
    return None


def _missing(machine: Machine) -> Iterator[Missing]:
    """What this machine lacks, each once, with everything that needs it."""
    from opwright.backends import get_backend
    from opwright.gallery import wrong
    from opwright.languages import LANGUAGES
    from opwright.report.terminal.demo import Missing
    from opwright.results import Refused
    from opwright.target import Engine, Target

    if not machine.has_gpu:
        yield Missing(("CUDA and Triton on a GPU",), "no CUDA GPU is visible to torch", "run on a machine with one")
    refused: dict[str, tuple[str, list[str]]] = {}
    probes = {name: get_backend(name).available(machine) for name in LANGUAGES}
    if not machine.has_gpu:
        target = Target("cpu", Engine.SIMULATOR)
        probes["CUDA in the simulator"] = wrong.scale.kernels["cuda"].probe(target, machine)
    for name, probe in probes.items():
        if isinstance(probe, Refused):
            refused.setdefault(probe.remedy, (probe.reason, []))[1].append(name)
    for remedy, (reason, names) in refused.items():
        yield Missing(tuple(names), reason, remedy)
