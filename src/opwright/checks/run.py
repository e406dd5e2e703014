"""Checks operators: selects kernels and devices, runs each in a process of its own, and makes one report."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.captured.replay import refuse_on_others, replaying
from opwright.checks.ranks.context import MOST_RANKS
from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.plan import Task, plan, refuse_unknown_kernels
from opwright.checks.scheduling.sweeping import Sweep
from opwright.checks.scheduling.verdict import Settings
from opwright.checks.table import CHECKS
from opwright.contract.inputs.samples import sample_cases
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError
from opwright.languages import LANGUAGES
from opwright.machine import Machine, this_machine
from opwright.results import CheckReport, Finding, Status, Verdict
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target
from opwright.sweep.events import QUIET, Events
from opwright.sweep.executor import Executor, LocalExecutor, usual_slots
from opwright.sweep.journal import Journal, open_journal
from opwright.target import Target
from opwright.workers.pool import end_workers, workers_kept

__all__ = [
    "LEVELS",
    "Interrupted",
    "assert_checked",
    "check",
    "executor_for",
    "refuse_timeout",
    "refuse_unknown_checks",
]

LEVELS = ("smoke", "quick", "full")
_LONGEST = 24 * 60 * 60


def check(
    *targets: Op | str,
    kernels: Sequence[str] | None = None,
    reference: bool = False,
    device: str | None = None,
    interpreter: bool = False,
    level: str = "quick",
    case: str = "",
    checks: Sequence[str] = (),
    require: Sequence[str] = (),
    timeout: float = 60.0,
    jobs: int | None = None,
    fail_fast: bool = False,
    ranks: int | None = None,
    inputs: Path | str | None = None,
    executor: Executor | None = None,
    resume: Path | str | Journal | None = None,
    sandbox: bool = False,
    memory: float = 0,
    events: Events = QUIET,
) -> CheckReport:
    """Verify every kernel of some operators against their references.

    Args:
        targets: operators, or their names: a file, ``module``, ``module:op``.
        kernels: only these, by name, or as reports name them (``gallery::add:cpp``); ``"reference"`` is the reference
            itself, which runs if no kernel is applicable.
        reference: also check the reference itself, with the parts that are derived from it. An operator without
            kernels is always checked in this way.
        device: only this type of device; by default the GPU, if there is one, and the CPU. ``cpu-sim`` runs CUDA
            and Triton kernels in simulators, as a CPU-only machine does by default.
        interpreter: without a GPU, run Triton kernels in Triton's interpreter in place of the simulator.
        level: ``quick``; ``smoke`` (three cases in one dtype, to see whether it works at all); or ``full`` (more sizes
            and layouts; compiles through Inductor).
        case: only this case, as written in a failing finding.
        checks: only these checks.
        require: languages, such as ``cuda``: an operator without a kernel in one, or whose kernel cannot run, fails.
        timeout: seconds that one step of a kernel may take before it counts as hung.
        jobs: the number of kernels checked at a time; by default one for each core up to four, or for each two up to
            eight.
        fail_fast: end a kernel's check at its first failure, which is then not made smaller.
        ranks: the number of processes in the group of an operator that communicates, each with a GPU of its own if
            kernels run on GPUs; by default 2. If it is given, DTensor's placements are also checked in so many.
        inputs: a file of ``ow.capture``: its calls of the operators are the only cases.
        executor: where kernels are checked, such as ``opwright.cluster.RayCluster``; by default, on this machine.
        resume: a file to which each verdict is written when it is there. Verdicts that are in it already, of the same
            sources, settings and versions, are taken from it.
        sandbox: confine the processes of kernels, as ``opwright judge`` does: Linux only.
        memory: end the processes of a kernel that have more GiB resident; 0 for no limit.
        events: functions that are called on the way.

    Returns:
        A report with ``passed`` and ``verdicts``. A kernel cannot end this process, because each runs in a worker. A
        crash or a hang is a finding about that kernel.

    Raises:
        TargetError, CheckError: a target, kernel, check, level, backend or case does not exist, or
            ``op.samples`` yields what is not a call; ``timeout`` or ``jobs`` is out of range.
        Interrupted: by Ctrl-C; it holds the report of what is finished.
    """
    _refuse_unknown(level, checks, require)
    refuse_timeout(timeout)
    _refuse_ranks(ranks)
    _refuse_device(device)
    operators = [o for t in targets for o in ([t] if isinstance(t, Op) else load_target(t))]
    if inputs is not None:
        inputs = str(Path(inputs).resolve())
    where = executor_for(executor, jobs)
    refuse_on_others(inputs, is_local=isinstance(where, LocalExecutor))
    settings = Settings(
        level, case, tuple(checks), tuple(require), timeout, fail_fast, ranks or 0, sandbox=sandbox,
        inputs=inputs or "", memory=int(memory * (1 << 30)),
    )  # fmt: skip
    with replaying(operators, inputs):
        return _checked(
            operators, settings, kernels, device, where, resume, events, reference=reference, interpreter=interpreter
        )


def _checked(
    operators: Sequence[Op],
    settings: Settings,
    kernels: Sequence[str] | None,
    device: str | None,
    where: Executor,
    resume: Path | str | Journal | None,
    events: Events,
    *,
    reference: bool,
    interpreter: bool,
) -> CheckReport:
    case, require = settings.case, settings.require
    for operator in operators:  # an invalid case or sample is the caller's mistake, not a kernel's
        sample_cases(operator.contract)
        if case:
            parse_case(operator.contract, case)
    refuse_unknown_kernels(operators, kernels or (), [REFERENCE])
    machine = where.machine
    tasks = [
        t for o in operators for t in plan(o, machine, kernels, device, reference=reference, interpreter=interpreter)
    ]
    unmet = [v for o in operators for v in _unmet(o, require, tasks, machine)]
    events.planned(len(tasks))
    items = [CheckItem.of(task, settings) for task in tasks]
    for item in items:
        item.forget_failures()
    verdicts: dict[int, Verdict] = {}
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(workers_kept())
            journal = stack.enter_context(open_journal(resume, machine, events.resumed))
            sweep = Sweep(items, where, journal=journal, on_step=events.step)
            for number, verdict in stack.enter_context(contextlib.closing(sweep.verdicts())):
                verdicts[number] = verdict
                events.finished(verdict)
    except KeyboardInterrupt:
        failed = (item.failed_so_far() for i, item in enumerate(items) if i not in verdicts)
        found = (*[verdicts[i] for i in sorted(verdicts)], *filter(None, failed), *unmet)
        partial = f"interrupted: {len(verdicts)} of {len(tasks)} kernels were checked"
        raise Interrupted(CheckReport(machine.to_json(), found, partial=partial)) from None
    return CheckReport(machine.to_json(), (*[verdicts[i] for i in range(len(tasks))], *unmet))


def assert_checked(*targets: Op | str, strict: bool = False, **options: Any) -> CheckReport:
    """Verify operators as ``ow.check`` does, and raise an error if not all kernels passed: a whole test, or its last
    line.

    A kernel that does not end in time raises the error too, and so does an operator none of whose kernels can run on
    this machine. Kernels that cannot run here raise nothing if another one ran.

    Args:
        strict: also raise it for warnings and too little coverage, as ``--strict`` does.
        options: those of ``ow.check``.

    Returns:
        The report, if all passed.

    Raises:
        CheckFailedError: an AssertionError with the smallest failing case and the command that repeats it.
        TargetError, CheckError: as ``ow.check``.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    report = check(*targets, **options)
    report.raise_if_failed(strict=strict)
    return report


def executor_for(executor: Executor | None, jobs: int | None) -> Executor:
    """Where items run that have processes of their own: by default this machine, ``jobs`` at a time, or as it can.

    Raises:
        CheckError: ``jobs`` is less than 1.
    """
    if jobs is not None and jobs < 1:
        raise CheckError(f"jobs must be at least 1, got {jobs}", fix="leave it out, or pass a number of kernels")
    return executor or LocalExecutor(jobs or usual_slots(this_machine()), end_workers)


class Interrupted(KeyboardInterrupt):
    """A check was interrupted.

    Attributes:
        report: the verdicts that were finished, and those of kernels that had failed; ``partial`` says that they are
            not all.
    """

    def __init__(self, report: CheckReport) -> None:
        super().__init__(report.partial)
        self.report = report


def _refuse_unknown(level: str, checks: Sequence[str], require: Sequence[str]) -> None:
    if level not in LEVELS:
        raise CheckError(f"level must be {' or '.join(LEVELS)}, got {level!r}", fix="use quick, or leave it out")
    refuse_unknown_checks(checks)
    if unknown := [b for b in require if b not in LANGUAGES]:
        raise CheckError(
            f"require must be one of {', '.join(LANGUAGES)}, got {unknown[0]!r}", fix="name the language of a kernel"
        )


def refuse_unknown_checks(checks: Sequence[str]) -> None:
    """Raise CheckError for the first name that no check has."""
    if unknown := [c for c in checks if c not in CHECKS]:
        near = difflib.get_close_matches(unknown[0], CHECKS, n=1)
        raise CheckError(
            f"a check must be one that `opwright check --list` prints, got {unknown[0]!r}",
            fix=f"write {near[0]!r}" if near else "run it to see their names",
        )


def refuse_timeout(timeout: float) -> None:
    """Raise CheckError if a time limit is no positive number of seconds, or more than the system's clocks take."""
    if not 0 < timeout <= _LONGEST:
        raise CheckError(
            f"timeout must be more than 0 and at most {_LONGEST:,} s, got {timeout:g}", fix="pass seconds for one step"
        )


def _refuse_device(device: str | None) -> None:
    """Raise CheckError if torch has no such type of device: no kernel would run there, whatever the machine has."""
    if device is None:
        return
    try:
        is_type = torch.device(Target.named(device).device).index is None
    except RuntimeError:
        is_type = False
    if not is_type:
        raise CheckError(f"device must be cpu, cuda or cpu-sim, got {device!r}", fix="leave it out for all of these")


def _refuse_ranks(ranks: int | None) -> None:
    if ranks is not None and not 2 <= ranks <= MOST_RANKS:
        raise CheckError(f"ranks must be between 2 and {MOST_RANKS}, got {ranks}", fix="pass the number of processes")


def _unmet(operator: Op, require: Sequence[str], tasks: Sequence[Task], machine: Machine) -> Iterator[Verdict]:
    """A failing verdict for each required backend without a kernel among those to be checked."""
    present = {task.backend for task in tasks if task.op is operator}
    for backend in dict.fromkeys(require):
        if backend not in present:
            has = any(k.backend == backend for k in operator.kernels.values())
            why = f"no {backend} kernel is selected" if has else f"it has no {backend} kernel"
            yield Verdict(
                op=operator.contract.qualname,
                kernel=f"({backend})",
                backend=backend,
                device="cuda" if machine.has_gpu else "cpu",
                status=Status.FAIL,
                reason=f"required, but {why}",
                findings=(Finding("required", Status.FAIL, message=f"required, but {why}"),),
            )
