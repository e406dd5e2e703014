"""Checks operators: selects kernels and devices, runs each in a process of its own, and makes one report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from opwright.checks.plan import Task, plan, refuse_unknown_kernels
from opwright.checks.process.fork_servers import end_workers, judges_kept
from opwright.checks.ranks.check import MOST_RANKS
from opwright.checks.sweeping import Sweep
from opwright.checks.table import CHECKS
from opwright.checks.unit import CheckUnit, Progress
from opwright.checks.verdict import Settings
from opwright.contract.inputs.samples import sample_cases
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError
from opwright.machine import Machine, this_machine
from opwright.results import CheckReport, Finding, Status, Verdict
from opwright.runtime.languages import LANGUAGES, REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target
from opwright.sweep.executor import Executor, Here, usual_slots
from opwright.sweep.journal import Journal, open_journal

__all__ = ["LEVELS", "Interrupted", "check", "executor_for", "refuse_timeout"]

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
    executor: Executor | None = None,
    resume: Path | str | Journal | None = None,
    on_resume: Callable[[str], None] | None = None,
    on_plan: Callable[[int], None] | None = None,
    progress: Progress | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
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
        require: backends whose refusal is a failure.
        timeout: seconds that one step of a kernel may take before it counts as hung.
        jobs: the number of kernels checked at a time; by default one for each core up to four, or for each two up to
            eight.
        fail_fast: end a kernel's check at its first failure, which is then not made smaller.
        ranks: the number of processes in the group of an operator that communicates, each with a GPU of its own if
            kernels run on GPUs; by default 2. If it is given, DTensor's placements are also checked in so many.
        executor: where kernels are checked, such as ``opwright.cluster.RayCluster``; by default, on this machine.
        resume: a file to which each verdict is written when it is there. Verdicts that are in it already, of the same
            sources, settings and versions, are taken from it.
        on_resume: called with what was taken from it, in words.
        on_plan: called once, with the number of kernels to check.
        progress, on_verdict: called with each step, and with each verdict.

    Returns:
        A report with ``passed`` and ``verdicts``. A kernel cannot end this process: each runs in
        a worker, and a crash or a hang is a finding about that kernel.

    Raises:
        TargetError, CheckError: a target, kernel, check, level, backend or case does not exist, or
            ``op.samples`` yields what is no call; ``timeout`` or ``jobs`` is out of range.
        Interrupted: by Ctrl-C; it holds the report of what is finished.
    """
    _refuse_unknown(level, checks, require)
    refuse_timeout(timeout)
    _refuse_ranks(ranks)
    operators = [o for t in targets for o in ([t] if isinstance(t, Op) else load_target(t))]
    for operator in operators:  # an invalid case or sample is the caller's mistake, not a kernel's
        sample_cases(operator.contract)
        if case:
            parse_case(operator.contract, case)
    refuse_unknown_kernels(operators, kernels or (), [REFERENCE])
    where = executor_for(executor, jobs)
    machine = where.machine
    tasks = [
        t for o in operators for t in plan(o, machine, kernels, device, reference=reference, interpreter=interpreter)
    ]
    unmet = [v for o in operators for v in _unmet(o, require, tasks, machine)]
    settings = Settings(level, case, tuple(checks), tuple(require), timeout, fail_fast, ranks or 0)
    if on_plan is not None:
        on_plan(len(tasks))
    units = [CheckUnit.of(task, settings) for task in tasks]
    verdicts: dict[int, Verdict] = {}
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(judges_kept())
            journal = stack.enter_context(open_journal(resume, machine, on_resume))
            sweep = Sweep(units, where, journal=journal, on_step=progress or (lambda task, what: None))
            for number, verdict in stack.enter_context(contextlib.closing(sweep.verdicts())):
                verdicts[number] = verdict
                if on_verdict is not None:
                    on_verdict(verdict)
    except KeyboardInterrupt:
        found = (*[verdicts[i] for i in sorted(verdicts)], *unmet)
        partial = f"interrupted: {len(verdicts)} of {len(tasks)} kernels were checked"
        raise Interrupted(CheckReport(machine.to_json(), found, partial=partial)) from None
    return CheckReport(machine.to_json(), (*[verdicts[i] for i in range(len(tasks))], *unmet))


def executor_for(executor: Executor | None, jobs: int | None) -> Executor:
    """Where units run that have processes of their own: by default this machine, ``jobs`` at a time, or as it can.

    Raises:
        CheckError: ``jobs`` is no positive number.
    """
    if jobs is not None and jobs < 1:
        raise CheckError(f"jobs={jobs} is no number of kernels", fix="use 1 or more")
    return executor or Here(jobs or usual_slots(this_machine()), end_workers)


class Interrupted(KeyboardInterrupt):
    """A check was interrupted.

    Attributes:
        report: the verdicts that were finished; ``partial`` says that they are not all.
    """

    def __init__(self, report: CheckReport) -> None:
        super().__init__(report.partial)
        self.report = report


def _refuse_unknown(level: str, checks: Sequence[str], require: Sequence[str]) -> None:
    if level not in LEVELS:
        raise CheckError(f"there is no level {level!r}", fix=f"use {' or '.join(LEVELS)}")
    if unknown := [c for c in checks if c not in CHECKS]:
        raise CheckError(f"there is no check {unknown[0]!r}", fix=f"there are {', '.join(CHECKS)}")
    if unknown := [b for b in require if b not in LANGUAGES]:
        raise CheckError(f"there is no backend {unknown[0]!r}", fix=f"there are {', '.join(LANGUAGES)}")


def refuse_timeout(timeout: float) -> None:
    """Raise CheckError if a time limit is no positive number of seconds, or more than the system's clocks take."""
    if not 0 < timeout <= _LONGEST:
        raise CheckError(
            f"timeout={timeout:g} is no time limit", fix=f"use a positive number of seconds, at most {_LONGEST} (a day)"
        )


def _refuse_ranks(ranks: int | None) -> None:
    if ranks is not None and not 2 <= ranks <= MOST_RANKS:
        raise CheckError(f"ranks={ranks} is no number of processes of a group", fix=f"use 2 to {MOST_RANKS}")


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
