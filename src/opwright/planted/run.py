"""Runs the self-test: how many planted faults are caught here, and how many right kernels are found fault with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from opwright.checks.limits.shortage import WITHOUT_SHORTAGE
from opwright.checks.run import executor_for
from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.plan import plan
from opwright.checks.scheduling.verdict import BY_MACHINE, LOST, Settings
from opwright.machine import Machine
from opwright.planted.catalogue import FILES, Row, rows
from opwright.results import Planted, SelfTest, Status, Verdict
from opwright.sweep.events import QUIET, Events
from opwright.sweep.executor import Executor, run_items
from opwright.sweep.journal import open_journal

__all__ = ["selftest"]


def selftest(
    files: Sequence[str] = FILES,
    *,
    device: str = "cpu",
    jobs: int | None = None,
    executor: Executor | None = None,
    resume: Path | str | None = None,
    events: Events = QUIET,
) -> SelfTest:
    """Check every kernel of the catalogue. Interrupted, it returns what was finished.

    Args:
        files: only these files of it.
        device: the type of device; on ``cpu``, kernels for a GPU run in the simulator and in Triton's interpreter.
        jobs: the number of kernels checked at a time.
        executor, resume, events: as for ``ow.check``.

    Raises:
        CheckError: ``jobs`` is not positive.
    """
    started = time.monotonic()
    where = executor_for(executor, jobs)
    # Those that need several processes take longest: first, so that no core waits for one of them at the end.
    chosen = sorted(rows(files), key=lambda row: not row.op.contract.signature.groups)
    items = [(row, item) for row in chosen for item in _items(row, where.machine, device)]
    events.planned(len(items))
    results: list[Planted] = []
    partial = ""
    try:
        with (
            open_journal(resume, where.machine, events.resumed) as journal,
            run_items([item for _, item in items], where, journal=journal) as finished,
        ):
            for done in finished:
                row, _ = items[done.number]
                results.append(_result(row, done.result))
                events.finished(results[-1])
    except KeyboardInterrupt:
        partial = f"interrupted: {len(results)} of {len(items)} kernels were checked"
    return SelfTest(where.machine.to_json(), tuple(results), round(time.monotonic() - started, 1), partial)


def _items(row: Row, machine: Machine, device: str) -> list[CheckItem]:
    """The check of a wrong kernel ends at its first failure, as its other cases and a simpler one prove no more."""
    settings = Settings(checks=row.checks, fail_fast=bool(row.expected))
    return [CheckItem.of(task, settings) for task in plan(row.op, machine, [row.kernel], device)]


def _result(row: Row, verdict: Verdict) -> Planted:
    bad = [f for f in verdict.findings if f.status not in (Status.PASS, Status.REFUSED)]
    short = bool(bad) and all(f.remedy == WITHOUT_SHORTAGE for f in bad)  # other work had the memory
    lost = short or any(f.check == LOST for f in bad)  # which says nothing of the kernel, nor that its fault was found
    refused = verdict.reason if lost or verdict.status is Status.REFUSED else ""
    return Planted(
        defect=row.defect,
        backend=verdict.backend,
        device=verdict.device,
        planted=bool(row.expected),
        caught_by=() if lost else tuple(dict.fromkeys(f.check for f in bad)),
        time_s=verdict.seconds,
        refused=("memory was short" if short else refused) or ("" if bad else _why_not_looked_for(row, verdict)),
        message=bad[0].message if bad else "",
        lost=lost,
    )


def _why_not_looked_for(row: Row, verdict: Verdict) -> str:
    """Why the check that has to find the fault could not be made on this machine, such as one of ranks on one GPU. A
    check that could be made, but not on this kernel, has missed it."""
    if row.expected not in BY_MACHINE or any(f.check == row.expected for f in verdict.findings):
        return ""
    return next((n.why for n in verdict.not_checked if n.check == row.expected and not n.cases), "")
