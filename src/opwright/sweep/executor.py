"""Where units run: an interface, and the processes of this machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from opwright.machine import Machine, this_machine
from opwright.sweep.journal import Journal
from opwright.sweep.unit import Done, Needs, OnStep, Unit, no_step

__all__ = ["Executor", "Here", "Results", "run_units", "usual_slots"]

Results = Generator[Done, None, None]


# Of a GPU with less memory, each of eight kernels and its references could get too little.
_MUCH_MEMORY = 32 << 30


class Executor(Protocol):
    """Where the units of a sweep run: on this machine (``Here``), or on others (``cluster.RayCluster``)."""

    @property
    def machine(self) -> Machine:
        """The machine that is planned for: one with a GPU, if there is one."""
        ...

    @property
    def gpu_types(self) -> Sequence[str]:
        """The types of GPUs, by the names that ``Needs.gpu_type`` takes; empty if units cannot choose."""
        ...

    def room(self, needs: Needs) -> int:
        """How many such units run at a time on machines that share nothing, so that it pays to cut work into units of
        equal length; 1 if it does not."""
        ...

    @property
    def goes_in_order(self) -> bool:
        """Whether units run one after the other, so that the order in which they are given out saves no time."""
        ...

    def run(self, units: Sequence[Unit[Any]], on_step: OnStep) -> Results:
        """Run units, and yield each when it is over, in any order. Closing the iterator ends what runs."""
        ...


def usual_slots(machine: Machine) -> int:
    """How many units with processes of their own run at a time on a machine: one for each core up to four, and one for
    each two cores up to eight, if no GPU has little memory."""
    few, many = min(4, machine.cores), min(8, machine.cores // 2)
    has_room = all(gpu.memory_bytes >= _MUCH_MEMORY for gpu in machine.gpus)
    return max(1, few, many if has_room else 0)


@dataclass
class Here:
    """This machine.

    Attributes:
        slots: the number of units at a time; those that have to be alone run one after the other, after the others.
        end: ends what runs in processes of its own, so that the threads that wait for it return.
    """

    slots: int = 1
    end: Callable[[], None] = lambda: None

    @property
    def machine(self) -> Machine:
        return this_machine()

    @property
    def gpu_types(self) -> Sequence[str]:
        return ()

    def room(self, needs: Needs) -> int:
        return 1  # the processes of one kernel use several cores, and slices of it would start all of them anew

    @property
    def goes_in_order(self) -> bool:
        return self.slots == 1

    def run(self, units: Sequence[Unit[Any]], on_step: OnStep) -> Results:
        together = [i for i, unit in enumerate(units) if not unit.needs.alone]
        with concurrent.futures.ThreadPoolExecutor(self.slots) as pool:
            waiting = {pool.submit(units[i].run, functools.partial(on_step, units[i])): i for i in together}
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield Done(waiting[done], done.result())
            except BaseException:
                for future in waiting:
                    future.cancel()
                self.end()  # else the pool would wait for them, also for a hang
                raise
        for i, unit in enumerate(units):
            if unit.needs.alone:
                yield Done(i, unit.run(functools.partial(on_step, unit)))


def run_units(
    units: Sequence[Unit[Any]], executor: Executor, *, journal: Journal | None = None, on_step: OnStep = no_step
) -> contextlib.closing[Results]:
    """Run units, for ``with run_units(…) as done:``; those that the journal holds are yielded first, and do not run."""
    return contextlib.closing(_run(units, executor, journal, on_step))


def _run(units: Sequence[Unit[Any]], executor: Executor, journal: Journal | None, on_step: OnStep) -> Results:
    known = {} if journal is None else journal.known(units)
    for number, result in known.items():
        yield Done(number, result)
    left = [number for number in range(len(units)) if number not in known]
    if not left:
        return
    with contextlib.closing(executor.run([units[number] for number in left], on_step)) as results:
        for done in results:
            number = left[done.number]
            if journal is not None and not done.lost:  # what was lost is run again
                journal.add(units[number], done.result)
            yield Done(number, done.result, done.lost)
