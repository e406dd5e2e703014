"""Runs mutation testing: a sample of a kernel's mutants, each checked like a kernel, and a search for what kills the
survivors."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.checks.run import executor_for, refuse_timeout
from opwright.checks.scheduling.plan import Task, plan, refuse_unknown_kernels
from opwright.errors import CheckError
from opwright.mutation.edits import Edit
from opwright.mutation.judging import shown
from opwright.mutation.sources import Source, sources_of
from opwright.mutation.work_items import KernelItem, MutantItem, SearchesItem, SearchItem
from opwright.results import Fate, KernelMutation, Mutant, MutationReport
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target
from opwright.sweep.events import QUIET, Events
from opwright.sweep.executor import Executor, run_items
from opwright.sweep.journal import Journal, open_journal
from opwright.sweep.work_item import WorkItem, no_step

__all__ = ["MUTANTS", "mutate"]

# How many mutants of a kernel are run by default: about a minute's worth.
MUTANTS = 20
# A mutant has at least so many seconds for one step.
_LEAST_TIMEOUT = 5.0


def mutate(
    *targets: Op | str,
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    mutants: int = MUTANTS,
    seed: int = 0,
    timeout: float = 60.0,
    jobs: int | None = None,
    executor: Executor | None = None,
    resume: Path | str | Journal | None = None,
    events: Events = QUIET,
) -> MutationReport:
    """Put small faults into kernels, and find which of them the operators' contracts let live.

    Each mutant is a kernel with one change, and is checked like one, in a process of its own; no file is changed. A
    survivor passes every check. For each one, further sizes, draws and values are searched for inputs on which the
    kernel passes and the survivor fails.

    Args:
        targets, kernels, device, jobs, executor, resume, events: as for ``ow.check``.
        mutants: the largest number of mutants of each kernel, which are drawn at random.
        seed: of this draw.
        timeout: seconds that one step of a mutant may take at most; less, if the kernel itself is quick.

    Raises:
        TargetError, CheckError: a target or kernel does not exist; a number is out of range; C++ is to be mutated
            without tree-sitter.
    """
    refuse_timeout(timeout)
    if mutants < 1:
        raise CheckError(f"mutants={mutants} is out of range", fix="use 1 or more")
    operators = [o for t in targets for o in ([t] if isinstance(t, Op) else load_target(t))]
    refuse_unknown_kernels(operators, kernels or ())
    where = executor_for(executor, jobs)
    machine = where.machine
    tasks = [t for o in operators for t in plan(o, machine, kernels, device) if t.kernel != REFERENCE]
    events.planned(len(tasks))
    done: list[KernelMutation] = []
    partial = ""
    try:
        with contextlib.ExitStack() as stack:
            journal = stack.enter_context(open_journal(resume, machine, events.resumed))
            settings = _Settings(mutants, seed, timeout, where, journal, events.finished)
            for task in tasks:
                done.append(_mutate_kernel(task, settings))
    except KeyboardInterrupt:
        partial = f"interrupted: {len(done)} of {len(tasks)} kernels were mutated"
    return MutationReport(machine.to_json(), tuple(done), seed, partial=partial)


def no_result(result: Any) -> None:
    """Do nothing with a result."""


@dataclass(frozen=True)
class _Settings:
    mutants: int
    seed: int
    timeout: float
    executor: Executor
    journal: Journal | None
    on_mutant: Callable[[str], None]

    def run(self, items: Sequence[WorkItem[Any]], on_result: Callable[[Any], None] = no_result) -> list[Any]:
        """The results of items, in their order."""
        found: dict[int, Any] = {}
        with run_items(items, self.executor, journal=self.journal, on_step=no_step) as results:
            for done in results:
                found[done.number] = done.result
                on_result(done.result)
        return [found[number] for number in range(len(items))]


def _mutate_kernel(task: Task, settings: _Settings) -> KernelMutation:
    started = time.monotonic()
    operator, name = task.op, task.kernel
    made = KernelMutation(operator.contract.qualname, name, task.backend, str(task.target))
    if task.refused is not None:
        return dataclasses.replace(made, refused=str(task.refused))
    sources, left = sources_of(operator, name)
    candidates = [(dataclasses.replace(source, edits=()), edit) for source in sources for edit in source.edits]
    made = dataclasses.replace(made, possible=len(candidates), not_mutated=tuple(dict.fromkeys(left)))
    if not candidates:
        return dataclasses.replace(made, refused="there is nothing to mutate in it")
    (itself,) = settings.run([KernelItem(task, settings.timeout)])
    if itself.unsuitable:
        return dataclasses.replace(made, refused=itself.unsuitable)
    timeout = min(settings.timeout, max(_LEAST_TIMEOUT, 3 * itself.seconds))
    chosen = random.Random(settings.seed).sample(candidates, min(settings.mutants, len(candidates)))
    found = _run_all(task, timeout, chosen, settings)
    in_order = sorted(found, key=lambda m: (m.file, m.line, m.diff))
    return dataclasses.replace(made, mutants=tuple(in_order), seconds=round(time.monotonic() - started, 1))


def _run_all(task: Task, timeout: float, chosen: Sequence[tuple[Source, Edit]], settings: _Settings) -> list[Mutant]:
    count = itertools.count(1)
    found = settings.run(
        [MutantItem(task, timeout, source, edit) for source, edit in chosen],
        lambda mutant: settings.on_mutant(f"{task}: mutant {next(count)} of {len(chosen)} {mutant.fate}"),
    )
    found = [dataclasses.replace(m, file=shown(source)) for m, (source, _) in zip(found, chosen, strict=True)]
    survivors = [number for number, mutant in enumerate(found) if mutant.fate is Fate.SURVIVED]
    if survivors:
        settings.on_mutant(f"{task}: searching for inputs that kill {len(survivors)} survivors")
        (searches,) = settings.run([SearchesItem(task, timeout)])
        searched = settings.run([SearchItem(task, timeout, *chosen[number], searches.usable) for number in survivors])
        for number, one in zip(survivors, searched, strict=True):
            found[number] = dataclasses.replace(found[number], killer=one.killer)
    return found
