"""One unit of a check: one kernel on one device, in its two processes, to one verdict."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opwright.checks.calls import determinism
from opwright.checks.context import KERNEL
from opwright.checks.copies import WITHOUT_SHORTAGE
from opwright.checks.coverage import too_little
from opwright.checks.memory import long_offsets, peak_memory
from opwright.checks.outputs import properties
from opwright.checks.plan import Task
from opwright.checks.process.fork_servers import ForkServer, ServerEndedError, alone, beside_others
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
from opwright.checks.sanitizer import check as sanitizer
from opwright.checks.table import CHECKS, OF_REGISTRATION
from opwright.contract.fingerprint import digest
from opwright.contract.inputs.arguments import always_its_default
from opwright.machine import this_machine
from opwright.results import Finding, NotChecked, Origin, Status, Verdict, worst
from opwright.runtime import serialization
from opwright.runtime.op import Op
from opwright.runtime.source_files import digest_of_sources
from opwright.runtime.targets import find_import_path, name_target
from opwright.sweep.unit import Needs

__all__ = ["BY_MACHINE", "LOST", "CheckUnit", "Progress", "Settings", "check_unit"]

# The name of the finding about a kernel that no machine could finish to check.
LOST = "cluster"
# Custom parts that no check compares with the reference.
_CHECKED_BY_NONE = frozenset({"autocast", "bytes"})
# Checks that a machine may lack memory, tools, a system or GPUs for, which is no fault of the kernel.
BY_MACHINE = frozenset({
    long_offsets.NAME, peak_memory.NAME, sanitizer.NAME, ranks.NAME, ranks.GRADIENTS, sharded.NAME,
})  # fmt: skip
# Called with every step: the task, and a short text ("values n=5 …", or a notice).
Progress = Callable[[Task, str], None]


@dataclass(frozen=True)
class Settings:
    """How kernels are checked: the options of ``ow.check``."""

    level: str = "quick"
    case: str = ""
    checks: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    timeout: float = 60.0
    fail_fast: bool = False
    # How many processes check an operator that communicates; 0 for the usual number.
    ranks: int = 0


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
        return Needs(here=self.task.refused is not None, gpu=self.task.device == "cuda")

    @property
    def kind(self) -> type[Verdict]:
        return Verdict

    def run(self, on_step: Callable[[str], None]) -> Verdict:
        return check_unit(self, lambda task, text: on_step(text))

    def without_result(self, why: str, remedy: str) -> Verdict:
        finding = Finding(LOST, Status.INCONCLUSIVE, message=why, remedy=remedy)
        return Verdict(
            op=self.task.op.contract.qualname,
            kernel=self.task.kernel,
            backend=self.task.backend,
            device=self.task.where,
            status=Status.INCONCLUSIVE,
            reason=why,
            parts={name: part.origin.value for name, part in self.task.op.parts.items()},
            findings=(finding,),
        )


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


def check_unit(unit: CheckUnit, progress: Progress) -> Verdict:
    """Check one kernel on this machine; ``progress`` is called with each step."""
    this = object()
    _running.append(this)
    try:
        return _check_unit(unit, progress)
    finally:
        _running.remove(this)


def _check_unit(unit: CheckUnit, progress: Progress) -> Verdict:
    started = time.monotonic()
    task, settings = unit.task, unit.settings
    if task.refused is not None:
        return _refusal(task, str(task.refused), settings)
    report, ending = _run_in_worker(unit, progress)
    if report.refused and task.else_interpret:
        progress(task, f"it is interpreted: {report.refused}")
        return _check_unit(CheckUnit.of(task.interpreted(report.refused), settings), progress)
    if report.refused:
        return _refusal(task, report.refused, settings)
    if report.unavailable:
        report.findings.append(Finding("load", Status.FAIL, message=_why_unavailable(task.op, report.unavailable)))
    elif ending.went_wrong:
        _add_crash(unit, report, ending)
    ended_early = not ending.finished or ending.exit_code != 0 or report.stopped
    _list_unchecked(task.op, report, settings, ended_early=ended_early)
    if not settings.case:  # a single one was asked for
        report.findings += too_little(task.op, report.findings, report.not_checked)
    return Verdict(
        op=task.op.contract.qualname,
        kernel=task.kernel,
        backend=task.backend,
        device=task.where,
        status=_status(settings, report),
        reason=_reason(task, report),
        parts={name: part.origin.value for name, part in task.op.parts.items()},
        findings=tuple(report.findings),
        not_checked=tuple(report.not_checked),
        seconds=round(time.monotonic() - started, 3),
        step_seconds=report.seconds,
    )


def _why_unavailable(operator: Op, why: str) -> str:
    message = f"the operator cannot be loaded in a worker process: {why.strip()}"
    if find_import_path(operator) is None:
        message += "\n  → define it at the top of a file or module, which the worker can import, instead of sending it"
    return message


def _status(settings: Settings, report: _WorkerReport) -> Status:
    if report.findings:
        return worst(f.status for f in report.findings)
    return Status.REFUSED if settings.checks and BY_MACHINE.issuperset(settings.checks) else Status.FAIL


def _reason(task: Task, report: _WorkerReport) -> str:
    if failed := [f.check for f in report.findings if f.status is Status.FAIL]:
        return f"failed: {', '.join(dict.fromkeys(failed))}"
    if not report.findings:
        why = [f"{n.check}: {n.reason}" for n in report.not_checked if n.why != "not selected"]
        return f"nothing could be checked{': ' * bool(why)}{'; '.join(dict.fromkeys(why))}"
    if task.simulate:
        return "in the Triton simulator" if task.backend == "triton" else "in the CUDA simulator"
    if not task.interpret:
        return ""
    return f"in Triton's interpreter: {task.why.splitlines()[0]}" if task.why else "in Triton's interpreter"


def _refusal(task: Task, reason: str, settings: Settings) -> Verdict:
    required = task.backend in settings.require
    return Verdict(
        op=task.op.contract.qualname,
        kernel=task.kernel,
        backend=task.backend,
        device=task.where,
        status=Status.FAIL if required else Status.REFUSED,
        reason=f"required, but {reason}" if required else reason,
        parts={name: part.origin.value for name, part in task.op.parts.items()},
        findings=(Finding("required", Status.FAIL, message=f"required, but {reason}"),) if required else (),
        not_checked=tuple(NotChecked(name, "the kernel was refused") for name in CHECKS),
    )


def _concerns(operator: Op, check: str) -> bool:
    """Whether an operator has what a check is about."""
    if check == sharded.NAME:  # only if ranks were asked for, and then it reports
        return False
    if check in (ranks.NAME, ranks.GRADIENTS):
        return bool(operator.contract.signature.groups)
    if check == determinism.NAME:
        return operator.contract.deterministic
    if check == properties.NAME:
        return bool(operator.properties)
    parts = {"vmap": "vmap", "sharding": "sharding", "flops": "flops", "second derivatives": "autograd"}
    part = parts.get(check)
    return part is None or operator.parts[part].origin is Origin.CUSTOM


def _run_in_worker(unit: CheckUnit, progress: Progress) -> tuple[_WorkerReport, Ending]:
    """Run in a worker that imports the operator; if its module has another version or none, send it by value."""
    task, settings = unit.task, unit.settings
    path, ranks = find_import_path(task.op), ranks_of(task, settings)
    job = Job(
        kernel=task.kernel,
        device=task.device,
        level=settings.level,
        fingerprint=task.op.fingerprint,
        import_path=path,
        case=settings.case,
        checks=settings.checks,
        reproduce=unit.reproduce,
        environment=_environment(task),
        timeout=settings.timeout,
        compiles_ahead=_compiles_ahead(task, settings),
        has_second=_has_second(settings, ranks),
        **ranks,
    )
    if path is not None:
        report, ending = _run(unit, job, progress)
        if not report.unavailable:
            return report, ending
    try:
        by_value = dataclasses.replace(job, import_path=None, pickle=serialization.dump(task.op))
    except Exception as error:  # cloudpickle raises whatever the objects' own reducers do
        why = f"{type(error).__name__}: {error}"
        return _WorkerReport(unavailable=why), Ending(0, False, "load", "", KERNEL, "", "", True)
    return _run(unit, by_value, progress)


def _compiles_ahead(task: Task, settings: Settings) -> bool:
    """Whether a kernel is compiled for each size, and this machine has a core to do so while others run."""
    kernel = task.op.kernels.get(task.kernel)
    is_one_case = bool(settings.case) or settings.level == "smoke"
    return task.simulate and kernel is not None and kernel.compiles_for_sizes and not is_one_case and _cores() > 1


def _has_second(settings: Settings, ranks: Mapping[str, Any]) -> bool:
    """Whether a second process of the kernel runs some checks beside the first, for which this machine has a core."""
    chosen = set(settings.checks or CHECKS)
    is_short = bool(settings.case) or settings.level == "smoke"
    both = chosen & OF_REGISTRATION and chosen - OF_REGISTRATION
    return bool(both) and not is_short and "ranks" not in ranks and _cores() >= 2 * len(_running)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# The ranks of an operator that communicates, if no number is given: the fewest of which each has another one.
_USUAL_RANKS = 2


def ranks_of(task: Task, settings: Settings) -> dict[str, Any]:
    """How many ranks check an operator on this machine: one that communicates, or any if ranks are asked for."""
    communicates = bool(task.op.contract.signature.groups)
    needed_by = {ranks.NAME, ranks.GRADIENTS} if communicates else {sharded.NAME}
    if not (communicates or settings.ranks) or (settings.checks and not needed_by & set(settings.checks)):
        return {}
    count, gpus = settings.ranks or _USUAL_RANKS, len(this_machine().gpus)
    if task.device == "cuda" and gpus < count:
        return {"why_no_ranks": f"{count} ranks need {count} GPUs, and this machine has {gpus}"}
    return {"ranks": count}


def _environment(task: Task) -> dict[str, str]:
    """The environment variables for a worker: opwright's own, and the simulator's switch."""
    ours = {k: v for k, v in os.environ.items() if k.startswith("OPWRIGHT_")}
    return {**ours, "OPWRIGHT_CUDA_SIMULATOR": "1"} if task.simulate else ours


def _run(unit: CheckUnit, job: Job, progress: Progress) -> tuple[_WorkerReport, Ending]:
    """Run in a worker; once more and alone if the processes that check it were disturbed, perhaps by another kernel."""
    interpret = unit.task.interpret
    with beside_others(interpret=interpret) as server:
        try:
            report, ending = _run_in(server, unit, job, progress)
            if not ending.disturbed:
                return report, ending
        except ServerEndedError:
            if not server.has_ended:  # it does not start
                raise
    with alone(interpret=interpret) as server:
        return _run_in(server, unit, job, progress)


def _run_in(server: ForkServer, unit: CheckUnit, job: Job, progress: Progress) -> tuple[_WorkerReport, Ending]:
    report, task, settings = _WorkerReport(), unit.task, unit.settings

    def on_message(message: Message) -> None:
        match message:
            case Doing(check, case):
                report.enter(check)
                progress(task, f"{check} {case}".strip())
            case Notice(text):
                progress(task, text)
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
    return report, _with_skipped_checks(report, ending, settings)


def _with_skipped_checks(report: _WorkerReport, ending: Ending, settings: Settings) -> Ending:
    """The ending; broken, if the worker says that it has finished, but some check has not begun."""
    if not ending.finished or report.refused or report.unavailable or any(f.check == "build" for f in report.findings):
        return ending
    left = [name for name in settings.checks or CHECKS if name not in report.seconds]
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


def _list_unchecked(operator: Op, report: _WorkerReport, settings: Settings, *, ended_early: bool) -> None:
    """Add every check without a result, with the reason, and everything that no check covers.

    A check that ended without a result has nothing to check, such as a rule that is not custom.
    """
    reported = {f.check for f in report.findings} | {n.check for n in report.not_checked}
    last = report.findings[-1].check if report.findings else "the start"
    for name in CHECKS:
        selected = not settings.checks or name in settings.checks
        if name not in reported and (ended_early or not selected) and _concerns(operator, name):
            why = f"the worker ended at {last!r}" if selected else "not selected"
            report.not_checked.append(NotChecked(name, why))
    custom = {p.name for p in operator.parts.values() if p.origin is Origin.CUSTOM}
    for name in sorted(_CHECKED_BY_NONE & custom):
        report.not_checked.append(NotChecked(name, "custom, and no check compares it with the reference yet"))
    arguments = [a for a in operator.contract.signature.arguments if a.name != operator.contract.random]
    for argument in filter(always_its_default, arguments):
        tried = f"only its default {argument.default!r}" if argument.has_default else "only None"
        why = f"{tried} was tried: add other values with Annotated[..., ow.values(...)]"
        report.not_checked.append(NotChecked(f"argument {argument.name!r}", why))
