"""Measures and stores the fastest kernels by size; calls then use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opwright.contract.inputs.case import Size
from opwright.machine import Machine, this_machine
from opwright.results import BenchReport
from opwright.runtime.op import Op
from opwright.runtime.tuning.tuned import Exported, read_exported, write_exported
from opwright.sweep.events import QUIET, Events
from opwright.sweep.executor import Executor, LocalExecutor
from opwright.sweep.journal import Journal
from opwright.sweep.versions import versions_of
from opwright.timing.request import Request
from opwright.timing.run import load_operators, measure, measure_in_items, store_or_say, stored_tables

__all__ = ["tune"]


def tune(
    *targets: Op | str,
    device: str | None = None,
    sizes: Mapping[str, Sequence[Size]] | None = None,
    dtypes: Sequence[str] = (),
    quick: bool = False,
    iters: int | None = None,
    clear: bool = False,
    export: Path | str | None = None,
    executor: Executor | None = None,
    resume: Path | str | Journal | None = None,
    events: Events = QUIET,
) -> BenchReport:
    """Measure the kernels of operators at several sizes, and let calls choose the fastest from now on.

    The table is stored in the cache folder for these kernels on this machine, and later processes use it too; an edit
    of a kernel makes it invalid. If the fastest kernel is not applicable (``when``, dtypes), calls choose as without a
    table. Only correct kernels are compared, and SAME changes nothing.

    Args:
        targets, device, sizes, dtypes, quick, iters, events: as for ``ow.bench``. Without sizes, the operator's own or
            about eight, from launch-bound to larger than the cache.
        clear: remove the tuning, and measure nothing.
        export: also add the tables to this file, which can be committed; ``op.use_tuning`` takes it.
        executor, resume: as for ``ow.bench``. On a cluster, each operator is measured on every type of GPU;
            the tables are stored where they were measured, and here.

    Returns:
        A report whose ``crossovers`` are the fastest kernels by size; empty if there is only one kernel.

    Raises:
        TargetError, CheckError: a target, device, size or dtype does not exist.
        CacheError: the cache folder cannot be written.
    """
    operators = load_operators(targets)
    if clear:
        for operator in operators:
            store_or_say(operator.clear_tuning)
        return BenchReport(this_machine().to_json(), ())
    request = Request(
        operators,
        device=device,
        sizes=sizes or {},
        dtypes=dtypes,
        directions=("forward",),
        baselines=(),
        quick=quick,
        iters=iters,
        progress=events.step,
        on_measurement=events.finished,
        caches=("warm",),
        sweep=True,
    )
    if export is not None and Path(export).exists():
        read_exported(Path(export))  # what is no such file is found before minutes of work
    if executor is None and resume is None:
        report = measure(request)
    else:
        report = measure_in_items(request, executor or LocalExecutor(), resume, events.resumed, store=True)
    report = stored_tables(operators, report)  # also those that other machines have measured
    if export is not None:
        write_exported(
            Path(export), _exported(operators, report, this_machine() if executor is None else executor.machine)
        )
    return report


def _exported(operators: Sequence[Op], report: BenchReport, machine: Machine) -> Iterator[Exported]:
    """The tables of each operator that has some."""
    for operator in operators:
        if own := [c for c in report.crossovers if c.op == operator.contract.qualname]:
            yield dataclasses.replace(operator._exported_tuning(own), versions=versions_of(machine))
