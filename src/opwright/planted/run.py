"""Runs the self-test: how many planted faults are caught here, and how many right kernels are found fault with."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opwright.checks.run import check
from opwright.checks.unit import LOST
from opwright.machine import this_machine
from opwright.planted.catalogue import FILES, Row, rows
from opwright.results import Planted, SelfTest, Status, Verdict
from opwright.sweep.executor import Executor
from opwright.sweep.journal import open_journal

__all__ = ["selftest"]


def selftest(
    files: Sequence[str] = FILES,
    *,
    device: str = "cpu",
    jobs: int | None = None,
    executor: Executor | None = None,
    resume: Path | str | None = None,
    on_resume: Callable[[str], None] | None = None,
    on_result: Callable[[Planted], None] | None = None,
) -> SelfTest:
    """Check every kernel of the catalogue. Interrupted, it returns what was finished.

    Args:
        files: only these files of it.
        device: the type of device; on ``cpu``, kernels for a GPU run in the simulator and in Triton's interpreter.
        jobs: the number of kernels checked at a time.
        executor, resume, on_resume: as for ``ow.check``.
        on_result: called with each result.

    Raises:
        CheckError: ``jobs`` is no positive number.
    """
    started = time.monotonic()
    results: list[Planted] = []
    by_checks: dict[tuple[str, ...], list[Row]] = {}
    for row in rows(files):
        by_checks.setdefault(row.checks, []).append(row)
    machine = this_machine() if executor is None else executor.machine
    partial = ""

    def done(known: dict[tuple[str, str], Row], verdict: Verdict) -> None:
        result = _result(known[verdict.op, verdict.kernel], verdict)
        results.append(result)
        if on_result is not None:
            on_result(result)

    try:
        with open_journal(resume, machine, on_resume) as journal:
            for checks, group in by_checks.items():
                known = {(row.op.contract.qualname, row.kernel): row for row in group}
                check(
                    *dict.fromkeys(row.op for row in group),
                    kernels=[f"{op}:{kernel}" for op, kernel in known],
                    checks=checks,
                    device=device,
                    jobs=jobs,
                    executor=executor,
                    resume=journal,
                    on_verdict=functools.partial(done, known),
                )
    except KeyboardInterrupt:
        partial = f"interrupted: {len(results)} of {sum(map(len, by_checks.values()))} kernels were checked"
    return SelfTest(machine.to_json(), tuple(results), round(time.monotonic() - started, 1), partial)


def _result(row: Row, verdict: Verdict) -> Planted:
    bad = [f for f in verdict.findings if f.status not in (Status.PASS, Status.REFUSED)]
    lost = any(f.check == LOST for f in bad)  # which says nothing of the kernel, nor that its fault was found
    return Planted(
        defect=row.defect,
        backend=verdict.backend,
        device=verdict.device,
        planted=bool(row.expected),
        caught_by=() if lost else tuple(dict.fromkeys(f.check for f in bad)),
        time_s=verdict.seconds,
        refused=verdict.reason if lost or verdict.status is Status.REFUSED else "",
        message=bad[0].message if bad else "",
        lost=lost,
    )
