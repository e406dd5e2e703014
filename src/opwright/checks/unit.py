"""One unit of a check: one kernel on one device, in its two processes, to one verdict."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opwright.checks.context import KERNEL
from opwright.checks.copies import WITHOUT_SHORTAGE
from opwright.checks.plan import Task
from opwright.checks.process.fork_servers import ForkServer, ServerEndedError, alone, beside_others, judges_kept
from opwright.checks.process.isolation import Ending, run_job
from opwright.checks.process.messages import (
    Doing,
    Found,
    Job,
    Message,
    Notice,
    NotRunnable,
    Suspected,
    Unavailable,
    Unchecked,
)
from opwright.checks.ranks import check as ranks
from opwright.checks.ranks import sharded
from opwright.checks.share import Share
from opwright.checks.table import CHECKS, OF_REGISTRATION
from opwright.checks.verdict import AT_END, Part, Settings, lost, verdict_of
from opwright.contract.fingerprint import digest
from opwright.machine import SIMULATOR, own_cores, this_machine
from opwright.results import Finding, NotChecked, Status, Verdict
from opwright.runtime import serialization
from opwright.runtime.op import Op
from opwright.runtime.source_files import digest_of_sources
from opwright.runtime.targets import find_import_path, name_target
from opwright.sweep.unit import Needs

__all__ = ["CheckUnit", "Progress", "examine"]

# Called with every step: the task, and a short text ("values n=5 …", or a notice).
Progress = Callable[[Task, str], None]


@dataclass(frozen=True)
class CheckUnit:
    """A unit of a sweep (``sweep.unit.Unit``): one kernel on one device.

    Attributes:
        reproduce: the command that repeats a failure, with the placeholders ``{check}`` and ``{case}``. It names the
            sources where the user has them, whatever machine the unit runs on.
    """

    task: Task
    settings: Settings
    reproduce: str

    @classmethod
    def of(cls, task: Task, settings: Settings) -> CheckUnit:
        return cls(task, settings, _how_to_reproduce(task, settings))

    @property
    def name(self) -> str:
        return str(self.task)

    @property
    def key(self) -> str:
        task = self.task
        how = (task.kernel, task.device, task.interpret, task.simulate, task.else_interpret, str(task.refused))
        return digest("check", digest_of_sources(task.op), repr(how), repr(self.settings), self.reproduce)

    @property
    def needs(self) -> Needs:
        return self.needs_for(self.settings.checks)

    def needs_for(self, checks: Sequence[str]) -> Needs:
        """What some checks need: those of ranks, a GPU for each."""
        settings = dataclasses.replace(self.settings, checks=tuple(checks))
        on_gpu = self.task.device == "cuda"
        return Needs(
            here=self.task.refused is not None,
            gpu=on_gpu,
            gpus=max(1, _count_of_ranks(self.task, settings)) if on_gpu else 1,
        )

    @property
    def kind(self) -> type[Verdict]:
        return Verdict

    def run(self, on_step: Callable[[str], None]) -> Verdict:
        task, settings = self.task, self.settings
        part = examine(self, on_step)
        if part.refused and task.else_interpret:
            on_step(f"it is interpreted: {part.refused}")
            return CheckUnit.of(task.interpreted(part.refused), settings).run(on_step)
        return verdict_of(task, settings, part)

    def without_result(self, why: str, remedy: str) -> Verdict:
        return lost(self.task, why, remedy)


@dataclass
class _WorkerReport:
    """The results that a worker has reported."""

    findings: list[Finding] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)
    suspected: Finding | None = None
    # The steps that have begun, with the seconds that each took; and the present one, with when it began.
    seconds: dict[str, float] = field(default_factory=dict)
    step: str = "start"
    since: float = field(default_factory=time.monotonic)
    refused: str = ""
    unavailable: str = ""
    # Whether the worker was ended at the first failure.
    stopped: bool = False

    def enter(self, step: str) -> None:
        """A step begins, which ends the one before."""
        now = time.monotonic()
        self.seconds[self.step] = round(self.seconds.get(self.step, 0.0) + now - self.since, 3)
        self.seconds.setdefault(step, 0.0)
        self.step, self.since = step, now


class _FirstFailure(Exception):
    """Ends a worker whose kernel has failed, where no more is asked."""


# One for each unit that is checked in this process at the moment.
_running: list[object] = []


def examine(
    unit: CheckUnit, on_step: Callable[[str], None], checks: Sequence[str] = (), share: Share | None = None
) -> Part:
    """Run checks of one kernel on this machine.

    Args:
        on_step: called with each step.
        checks: only these of the unit's; all, if there are none.
        share: the cases that checks of every case examine, if not all.
    """
    if unit.task.refused is not None:
        return Part(refused=str(unit.task.refused))
    this = object()
    _running.append(this)
    try:
        with judges_kept():
            return _examine(unit, on_step, tuple(checks) or unit.settings.checks, share)
    finally:
        _running.remove(this)


def _examine(unit: CheckUnit, on_step: Callable[[str], None], checks: tuple[str, ...], share: Share | None) -> Part:
    started = time.monotonic()
    report, ending = _run_in_worker(unit, on_step, checks, share)
    if report.unavailable:
        why = _why_unavailable(unit.task.op, report.unavailable)
        report.findings.append(Finding("load", Status.FAIL, message=why))
    elif ending.went_wrong and not report.refused:
        _add_crash(unit, report, ending)
    return Part(
        findings=tuple(report.findings),
        not_checked=tuple(report.not_checked),
        refused=report.refused,
        ended_at=_where_ended(report, ending),
        is_incomplete=not ending.finished or ending.exit_code != 0 or report.stopped,
        seconds=round(time.monotonic() - started, 3),
        step_seconds=report.seconds,
    )


def _where_ended(report: _WorkerReport, ending: Ending) -> str:
    if report.stopped or (ending.went_wrong and not (ending.finished and not ending.broken)):
        return report.findings[-1].check if report.findings else "start"
    return AT_END if ending.went_wrong else ""


def _why_unavailable(operator: Op, why: str) -> str:
    message = f"the operator cannot be loaded in a worker process: {why.strip()}"
    if find_import_path(operator) is None:
        message += "\n  → define it at the top of a file or module, which the worker can import, instead of sending it"
    return message


def _run_in_worker(
    unit: CheckUnit, on_step: Callable[[str], None], checks: tuple[str, ...], share: Share | None
) -> tuple[_WorkerReport, Ending]:
    """Run in a worker that imports the operator; if its module has another version or none, send it by value."""
    task, settings = unit.task, dataclasses.replace(unit.settings, checks=checks)
    path, ranks = find_import_path(task.op), ranks_of(task, settings)
    job = Job(
        kernel=task.kernel,
        device=task.device,
        level=settings.level,
        fingerprint=task.op.fingerprint,
        import_path=path,
        case=settings.case,
        checks=checks,
        asked=unit.settings.checks,
        share=share,
        reproduce=unit.reproduce,
        environment=_environment(task),
        timeout=settings.timeout,
        compiles_ahead=_compiles_ahead(task, settings),
        has_second=_has_second(settings, ranks),
        **ranks,
    )
    if path is not None:
        report, ending = _run(unit, job, on_step)
        if not report.unavailable:
            return report, ending
    try:
        by_value = dataclasses.replace(job, import_path=None, pickle=serialization.dump(task.op))
    except Exception as error:  # cloudpickle raises whatever the objects' own reducers do
        why = f"{type(error).__name__}: {error}"
        return _WorkerReport(unavailable=why), Ending(0, False, "load", "", KERNEL, "", "", True)
    return _run(unit, by_value, on_step)


def _compiles_ahead(task: Task, settings: Settings) -> bool:
    """Whether a kernel is compiled for each size, and this machine has a core to do so while others run."""
    kernel = task.op.kernels.get(task.kernel)
    is_one_case = bool(settings.case) or settings.level == "smoke"
    return task.simulate and kernel is not None and kernel.compiles_for_sizes and not is_one_case and own_cores() > 1


def _has_second(settings: Settings, ranks: Mapping[str, Any]) -> bool:
    """Whether a second process of the kernel runs some checks beside the first, for which this machine has a core."""
    chosen = set(settings.checks or CHECKS)
    is_short = bool(settings.case) or settings.level == "smoke"
    both = chosen & OF_REGISTRATION and chosen - OF_REGISTRATION
    return bool(both) and not is_short and "ranks" not in ranks and own_cores() >= 2 * len(_running)


# The ranks of an operator that communicates, if no number is given: the fewest of which each has another one.
_USUAL_RANKS = 2


def _count_of_ranks(task: Task, settings: Settings) -> int:
    """How many ranks check an operator: one that communicates, or any if ranks are asked for; 0 for none."""
    communicates = bool(task.op.contract.signature.groups)
    needed_by = {ranks.NAME, ranks.GRADIENTS} if communicates else {sharded.NAME}
    if not (communicates or settings.ranks) or (settings.checks and not needed_by & set(settings.checks)):
        return 0
    return settings.ranks or _USUAL_RANKS


def ranks_of(task: Task, settings: Settings) -> dict[str, Any]:
    """How many ranks check an operator on this machine, or why there are none."""
    count, gpus = _count_of_ranks(task, settings), _count_of_gpus()
    if task.device == "cuda" and gpus < count:
        return {"why_no_ranks": f"{count} ranks need {count} GPUs, and this machine has {gpus}"}
    return {"ranks": count} if count else {}


def _count_of_gpus() -> int:
    """Those that this unit may use: a cluster gives others to each, and what is known of the machine is older."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(this_machine().gpus) if visible is None else len([name for name in visible.split(",") if name])


def _environment(task: Task) -> dict[str, str]:
    """The environment variables for a worker: opwright's own, the GPU that a cluster has given to this unit, and the
    simulator's switch. The process that it is forked from may have been started for another unit."""
    ours = {k: v for k, v in os.environ.items() if k.startswith("OPWRIGHT_") or k == "CUDA_VISIBLE_DEVICES"}
    return {**ours, SIMULATOR: "1"} if task.simulate else ours


def _run(unit: CheckUnit, job: Job, on_step: Callable[[str], None]) -> tuple[_WorkerReport, Ending]:
    """Run in a worker; once more and alone if the processes that check it were disturbed, perhaps by another kernel."""
    interpret = unit.task.interpret
    with beside_others(interpret=interpret) as server:
        try:
            report, ending = _run_in(server, unit, job, on_step)
            if not ending.disturbed:
                return report, ending
        except ServerEndedError:
            if not server.has_ended:  # it does not start
                raise
    with alone(interpret=interpret) as server:
        return _run_in(server, unit, job, on_step)


def _run_in(
    server: ForkServer, unit: CheckUnit, job: Job, on_step: Callable[[str], None]
) -> tuple[_WorkerReport, Ending]:
    report, settings = _WorkerReport(), unit.settings

    def on_message(message: Message) -> None:
        match message:
            case Doing(check, case):
                report.enter(check)
                on_step(f"{check} {case}".strip())
            case Notice(text):
                on_step(text)
            case Found(finding):
                report.findings.append(finding)
                report.suspected = None
            case Suspected(finding):
                report.suspected = finding
            case Unchecked(what):
                report.not_checked.append(what)
            case NotRunnable(reason):
                report.refused = reason
            case Unavailable(why):
                report.unavailable = why
        failed = isinstance(message, Found | Suspected) and message.finding.status is Status.FAIL
        if settings.fail_fast and failed:
            raise _FirstFailure

    try:
        ending = run_job(server, job, settings.timeout, on_message)
        report.enter("end")
    except _FirstFailure:
        report.stopped = True
        report.findings += [report.suspected] if report.suspected is not None else []
        return report, Ending(0, False, "", "", KERNEL, "", "", True)
    return report, _with_skipped_checks(report, ending, job.checks)


def _with_skipped_checks(report: _WorkerReport, ending: Ending, checks: Sequence[str]) -> Ending:
    """The ending; broken, if the worker says that it has finished, but some check has not begun."""
    if not ending.finished or report.refused or report.unavailable or any(f.check == "build" for f in report.findings):
        return ending
    left = [name for name in checks or CHECKS if name not in report.seconds]
    nothing_can_run = any(n.check == "inputs" for n in report.not_checked)
    return ending if nothing_can_run or not left else dataclasses.replace(ending, broken="an end before the last check")


def _how_to_reproduce(task: Task, settings: Settings) -> str:
    target = name_target(task.op)
    if target is None:
        where = f"{task.op.contract.function.__name__}, kernels={[task.kernel]!r}, device={task.where!r}"
        where += ", interpreter=True" if task.interpret else ""
        return f"ow.check({where}, checks=['{{check}}'], case='{{case}}')"
    level = f" --level {settings.level}" if settings.level != "quick" else ""
    level += f" --ranks {settings.ranks}" if settings.ranks else ""
    device = f" --device {task.where}" + (" --interpreter" if task.interpret else "")
    names = f"{shlex.quote(target)} --kernel {shlex.quote(task.kernel)}".replace("{", "{{").replace("}", "}}")
    return f"opwright check {names}{device}{level} --only '{{check}}' --case '{{case}}'"


def _add_crash(unit: CheckUnit, report: _WorkerReport, ending: Ending) -> None:
    reproduce, settings = unit.reproduce.format(check=ending.doing, case=ending.case), unit.settings
    reproduce = reproduce.removesuffix(" --case ''")
    if report.suspected is not None:  # a simpler case of it ended the worker
        report.findings.append(report.suspected)
    is_of_kernel = ending.who == KERNEL and not ending.is_shortage
    report.findings.append(
        Finding(
            ending.doing,
            Status.FAIL if is_of_kernel and (ending.broken or not ending.hung) else Status.INCONCLUSIVE,
            ending.case,
            ending.describe(settings.timeout),
            reproduce if ending.doing in CHECKS else "",
            remedy=_remedy(ending, settings.timeout),
        )
    )


def _remedy(ending: Ending, timeout: float) -> str:
    if ending.hung and not ending.broken:
        return f"allow more time with --timeout {5 * timeout:g}"
    if ending.is_shortage:
        return WITHOUT_SHORTAGE
    if ending.who == KERNEL:
        return ""
    return "state the values that the reference takes with ow.values(...), or refuse others in it"
