"""Where items run: an interface, and the processes of this machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from opwright.machine import Machine, this_machine
from opwright.sweep.journal import Journal
from opwright.sweep.work_item import Done, Needs, OnStep, WorkItem, no_step

__all__ = ["Executor", "LocalExecutor", "Results", "run_items", "usual_slots"]

Results = Generator[Done, None, None]


# Of a GPU with less memory, each of eight kernels and its references could get too little.
_MUCH_MEMORY = 32 << 30
# Seconds until what still runs after it was ended is ended again.
_BETWEEN_ENDS = 0.2


class Executor(Protocol):
    """Where the items of a sweep run: on this machine (``LocalExecutor``), or on others (``cluster.RayCluster``)."""

    @property
    def machine(self) -> Machine:
        """The machine that is planned for: one with a GPU, if there is one."""
        ...

    @property
    def gpu_types(self) -> Sequence[str]:
        """The types of GPUs, by the names that ``Needs.gpu_type`` takes; empty if items cannot choose."""
        ...

    def slots_for(self, needs: Needs) -> int:
        """How many such items run at a time on machines that share nothing, so that it pays to cut work into items of
        equal length; 1 if it does not."""
        ...

    @property
    def goes_in_order(self) -> bool:
        """Whether items run one after the other, so that the order in which they are given out saves no time."""
        ...

    def run(self, items: Sequence[WorkItem[Any]], on_step: OnStep) -> Results:
        """Run items, and yield each when it is over, in any order. Closing the iterator ends what runs."""
        ...


def usual_slots(machine: Machine) -> int:
    """How many items with processes of their own run at a time on a machine: one for each core up to four, and one for
    each two cores up to eight, if no GPU has little memory."""
    few, many = min(4, machine.cores), min(8, machine.cores // 2)
    has_room = all(gpu.memory_bytes >= _MUCH_MEMORY for gpu in machine.gpus)
    return max(1, few, many if has_room else 0)


@dataclass
class LocalExecutor:
    """This machine.

    Attributes:
        slots: the number of items at a time; those that have to be alone run one after the other, after the others.
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

    def slots_for(self, needs: Needs) -> int:
        return 1  # the processes of one kernel use several cores, and partial items would start all of them anew

    @property
    def goes_in_order(self) -> bool:
        return self.slots == 1

    def run(self, items: Sequence[WorkItem[Any]], on_step: OnStep) -> Results:
        together = [i for i, item in enumerate(items) if not item.needs.alone]
        with concurrent.futures.ThreadPoolExecutor(self.slots) as pool:
            waiting = {pool.submit(items[i].run, functools.partial(on_step, items[i])): i for i in together}
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield Done(waiting[done], done.result())
            except BaseException:
                for future in waiting:
                    future.cancel()
                self.end()  # else the pool would wait for them, also for a hang
                while concurrent.futures.wait(waiting, timeout=_BETWEEN_ENDS).not_done:
                    self.end()  # what an item has started since then, in place of what was ended
                raise
        for i, item in enumerate(items):
            if item.needs.alone:
                yield Done(i, item.run(functools.partial(on_step, item)))


def run_items(
    items: Sequence[WorkItem[Any]], executor: Executor, *, journal: Journal | None = None, on_step: OnStep = no_step
) -> contextlib.closing[Results]:
    """Run items, for ``with run_items(…) as done:``; those that the journal holds are yielded first, and do not run."""
    return contextlib.closing(_run(items, executor, journal, on_step))


def _run(items: Sequence[WorkItem[Any]], executor: Executor, journal: Journal | None, on_step: OnStep) -> Results:
    known = {} if journal is None else journal.known(items)
    for number, result in known.items():
        yield Done(number, result)
    left = [number for number in range(len(items)) if number not in known]
    if not left:
        return
    with contextlib.closing(executor.run([items[number] for number in left], on_step)) as results:
        for done in results:
            number = left[done.number]
            if journal is not None and not done.lost:  # what was lost is run again
                journal.add(items[number], done.result)
            yield Done(number, done.result, done.lost)
