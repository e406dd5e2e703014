"""Runs programs in forked processes: what one program breaks, such as its memory, no other one sees."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.fast_calls.compare import Comparison, Difference, compare
from tests.fast_calls.forms import fast_counts, prepare
from tests.fast_calls.programs import Program, draw_program

__all__ = ["Outcome", "Settings", "run_program", "run_seeds"]

_PROGRAMS_OF_A_WORKER = 100
_SECONDS_OF_A_PROGRAM = 60.0
_context = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Settings:
    """How programs are run.

    Attributes:
        without: steps that have one of these texts are left out.
    """

    device: str = "cpu"
    with_custom_op: bool = True
    jobs: int = 2
    without: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What running a program gave.

    Attributes:
        counts: of a worker's programs so far, in its last outcome.
    """

    seed: int
    steps: int = 0
    calls: int = 0
    difference: Difference | None = None
    counts: dict[str, int] = field(default_factory=dict)


def run_program(program: Program, settings: Settings) -> Difference | None:
    """The difference of one program, which runs in a process of its own."""
    return _finish(_Worker([program], settings)).difference


def run_seeds(seeds: Sequence[int], settings: Settings) -> Iterator[Outcome]:
    """The outcomes of the programs of seeds, in any order."""
    left: list[Any] = list(reversed(seeds))
    workers: list[_Worker] = []
    try:
        while left or workers:
            while left and len(workers) < settings.jobs:
                taken = [left.pop() for _ in range(min(_PROGRAMS_OF_A_WORKER, len(left)))]
                workers.append(_Worker(taken, settings))
            wait([worker.answers for worker in workers], timeout=1.0)
            for worker in list(workers):
                yield from worker.outcomes()
                if worker.has_ended:
                    workers.remove(worker)
                    left += reversed(worker.left)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A forked process that runs programs until one has a difference, after which its memory may be broken."""

    def __init__(self, programs: Sequence[Program | int], settings: Settings) -> None:
        self.answers, theirs = _context.Pipe(duplex=False)
        self._programs = list(programs)
        self._process = _context.Process(target=_work, args=(self._programs, settings, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._since = time.monotonic()
        self._done = 0
        self.has_ended = False

    @property
    def left(self) -> list[Any]:
        """The programs that were not run."""
        return self._programs[self._done :]

    def outcomes(self) -> Iterator[Outcome]:
        """What has come since the last time."""
        while not self.has_ended:
            try:
                if not self.answers.poll():
                    break
                outcome: Outcome = self.answers.recv()
            except (EOFError, OSError):
                self._process.join()
                yield from self._lost(f"ended with exit code {self._process.exitcode}")
                return
            self._since, self._done = time.monotonic(), self._done + 1
            if outcome.difference is not None or not self.left:
                self.end()
            yield outcome
        if not self.has_ended and time.monotonic() - self._since > _SECONDS_OF_A_PROGRAM:
            self._process.kill()
            yield from self._lost(f"took more than {_SECONDS_OF_A_PROGRAM:.0f} s")

    def _lost(self, why: str) -> Iterator[Outcome]:
        if self.left:
            program = self.left[0]
            seed = program if isinstance(program, int) else program.seed
            self._done += 1
            yield Outcome(seed, difference=Difference(("process", "process"), -1, "process", why, (why, "an outcome")))
        self.end()

    def end(self) -> None:
        """End the process."""
        self.has_ended = True
        self.answers.close()
        if self.left:
            self._process.kill()
        self._process.join()


def _finish(worker: _Worker) -> Outcome:
    while True:
        wait([worker.answers], timeout=1.0)
        for outcome in worker.outcomes():
            worker.end()
            return outcome


def _work(programs: Sequence[Program | int], settings: Settings, answers: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch's profilers and observers write lines for each use
    prepare(settings.device != "cpu")
    for each in programs:
        program = draw_program(each, settings.without) if isinstance(each, int) else each
        compared = _compared(program, settings)
        answers.send(Outcome(program.seed, len(program.steps), compared.calls, compared.difference, fast_counts()))
        if compared.difference is not None:
            break
    answers.close()


def _compared(program: Program, settings: Settings) -> Comparison:
    """A program that cannot be run, such as one that was made too small, has a difference of its own kind."""
    try:
        return compare(program, settings.device, settings.with_custom_op)
    except Exception as error:
        values = (traceback.format_exc(), "a comparison")
        return Comparison(
            0, Difference(("process", "process"), -1, "the program", f"raises {type(error).__name__}", values)
        )
