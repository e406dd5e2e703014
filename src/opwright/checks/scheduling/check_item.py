"""A work item of a check: one task, attempted in workers until there is a verdict."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opwright.captured.replay import digest_of_calls
from opwright.checks.case_range import CaseRange
from opwright.checks.check import Process
from opwright.checks.context import KERNEL, REFERENCE
from opwright.checks.exceptions import is_lost_gpu
from opwright.checks.limits.shortage import WITHOUT_SHORTAGE
from opwright.checks.process.messages import (
    Doing,
    Found,
    Job,
    Message,
    Notice,
    NotRunnable,
    Unavailable,
    Unchecked,
    Unconfirmed,
)
from opwright.checks.process.run_job import run_job
from opwright.checks.scheduling.attempt import Attempt
from opwright.checks.scheduling.coverage import too_short_a_case
from opwright.checks.scheduling.plan import Task
from opwright.checks.scheduling.ranks import count_of_ranks, ranks_of
from opwright.checks.scheduling.reproduce import how_to_reproduce
from opwright.checks.scheduling.verdict import Outcome, Settings, lost, verdict_of
from opwright.checks.table import CHECKS
from opwright.contract.fingerprint import digest
from opwright.contract.inputs.text import parse_case
from opwright.results import Finding, Status, Verdict
from opwright.runtime import serialization
from opwright.runtime.op import Op
from opwright.runtime.source_files import digest_of_sources
from opwright.runtime.targets import find_import_path
from opwright.sweep.work_item import Needs
from opwright.workers.fork_server_client import ForkServer, ServerEndedError
from opwright.workers.pool import exclusive_server, shared_server, workers_kept
from opwright.workers.supervise import LOST_GPU, Ending

__all__ = ["CheckItem", "examine"]


@dataclass(frozen=True)
class CheckItem:
    """A work item of a sweep (``sweep.work_item.WorkItem``): one kernel on one device.

    Attributes:
        reproduce: the command that repeats a failure, with the placeholders ``{check}`` and ``{case}``. It names the
            sources where the user has them, whatever machine the item runs on.
    """

    task: Task
    settings: Settings
    reproduce: str

    @classmethod
    def of(cls, task: Task, settings: Settings) -> CheckItem:
        return cls(task, settings, how_to_reproduce(task, settings))

    @property
    def name(self) -> str:
        return str(self.task)

    @property
    def key(self) -> str:
        task = self.task
        how = (task.kernel, task.target, task.fallback, str(task.refused))
        return digest(
            "check",
            digest_of_sources(task.op),
            repr(how),
            repr(self.settings),
            self.reproduce,
            digest_of_calls(self.settings.inputs),
        )

    @property
    def needs(self) -> Needs:
        return self.needs_for(self.settings.checks)

    def needs_for(self, checks: Sequence[str]) -> Needs:
        """What some checks need: those of ranks, a GPU for each."""
        settings = dataclasses.replace(self.settings, checks=tuple(checks))
        on_gpu = self.task.target.device == "cuda"
        return Needs(
            here=self.task.refused is not None,
            gpu=on_gpu,
            gpus=max(1, count_of_ranks(self.task, settings)) if on_gpu else 1,
        )

    @property
    def kind(self) -> type[Verdict]:
        return Verdict

    def run(self, on_step: Callable[[str], None]) -> Verdict:
        task, settings = self.task, self.settings
        outcome = examine(self, on_step)
        if outcome.refused and task.fallback is not None:
            on_step(f"the {task.fallback.engine} runs it: {outcome.refused}")
            return CheckItem.of(task.on_fallback(outcome.refused), settings).run(on_step)
        return verdict_of(task, settings, outcome)

    def without_result(self, why: str, remedy: str) -> Verdict:
        return lost(self.task, why, remedy)

    def failed_so_far(self) -> Verdict | None:
        """A verdict of failures that were found on this machine, if the check of them was interrupted."""
        findings = _found_so_far.get(self.name, ())
        if not any(finding.status is Status.FAIL for finding in findings):
            return None
        return verdict_of(self.task, self.settings, Outcome(findings=findings, is_incomplete=True))

    def forget_failures(self) -> None:
        """Forget what an earlier check in this process has found of a kernel of the same name."""
        _found_so_far.pop(self.name, None)


# By the names of items. What their processes leave as they are ended is not among it.
_found_so_far: dict[str, tuple[Finding, ...]] = {}


class _FirstFailure(Exception):
    """Ends a worker whose kernel has failed, where no more is asked."""


def examine(
    item: CheckItem, on_step: Callable[[str], None], checks: Sequence[str] = (), case_range: CaseRange | None = None
) -> Outcome:
    """Run checks of one kernel on this machine.

    Args:
        on_step: called with each step.
        checks: only these of the item's; all, if there are none.
        case_range: the cases that checks of every case examine, if not all.
    """
    if item.task.refused is not None:
        return Outcome(refused=str(item.task.refused))
    started = time.monotonic()
    with workers_kept():
        attempt = _attempt(item, on_step, tuple(checks) or item.settings.checks, case_range)
    if attempt.unavailable:
        attempt.findings.append(
            Finding("load", Status.FAIL, message=_why_unavailable(item.task.op, attempt.unavailable))
        )
    elif attempt.ending.went_wrong and not attempt.refused:
        _add_crash(item, attempt)
    return Outcome(
        findings=tuple(attempt.findings),
        not_checked=tuple(attempt.not_checked),
        refused=attempt.refused,
        ended_at=attempt.ended_at,
        is_incomplete=not attempt.ending.finished or attempt.ending.exit_code != 0 or attempt.stopped,
        seconds=round(time.monotonic() - started, 3),
        step_seconds=attempt.seconds,
    )


def _why_unavailable(operator: Op, why: str) -> str:
    message = f"the operator cannot be loaded in a worker process: {why.strip()}"
    if find_import_path(operator) is None:
        message += "\n  → define it at the top of a file or module, which the worker can import, instead of sending it"
    return message


def _attempt(
    item: CheckItem, on_step: Callable[[str], None], checks: tuple[str, ...], case_range: CaseRange | None
) -> Attempt:
    """Run in workers that import the operator; if its module has another version or none, send it by value."""
    task, settings = item.task, dataclasses.replace(item.settings, checks=checks)
    path = find_import_path(task.op)
    job = Job(
        kernel=task.kernel,
        target=task.target,
        level=settings.level,
        fingerprint=task.op.fingerprint,
        import_path=path,
        case=settings.case,
        checks=checks,
        asked=item.settings.checks,
        case_range=case_range,
        reproduce=item.reproduce,
        environment=_environment(),
        timeout=settings.timeout,
        sandbox=settings.sandbox,
        memory=settings.memory,
        inputs=settings.inputs,
        **ranks_of(task, settings),
    )
    if path is not None:
        attempt = _run(item, job, on_step)
        if not attempt.unavailable:
            return attempt
    try:
        by_value = dataclasses.replace(job, import_path=None, pickle=serialization.dump(task.op))
    except Exception as error:  # cloudpickle raises whatever the objects' own reducers do
        return Attempt(unavailable=f"{type(error).__name__}: {error}")
    return _run(item, by_value, on_step)


def _environment() -> dict[str, str]:
    """The environment variables for a worker: opwright's own, and the GPU that a cluster has given to this item. The
    process that it is forked from may have been started for another item."""
    return {k: v for k, v in os.environ.items() if k.startswith("OPWRIGHT_") or k == "CUDA_VISIBLE_DEVICES"}


# Cases on which the reference of an operator did not return in so many seconds, and how many are left out.
_unreturned: dict[tuple[str, float], tuple[str, ...]] = {}
_MOST_UNRETURNED = 3


def _run(item: CheckItem, job: Job, on_step: Callable[[str], None]) -> Attempt:
    """Run in workers; again without a case on which the reference does not return, and cannot be stopped within one
    call of torch. What a kernel has failed by then, perhaps on this case, it has failed."""
    known, failures = (job.fingerprint, job.timeout), list[Finding]()
    while True:
        unreturned = _unreturned.get(known, ())
        attempt = _run_for_blame(item, dataclasses.replace(job, unreturned=unreturned), on_step)
        doing, ending = attempt.doing, attempt.ending
        hung = ending.hung and not (ending.broken or ending.disturbed)
        left_out = () if job.case or doing.who != REFERENCE or "sample=" in doing.case else (doing.case,)
        if not (hung and any(left_out)) or len(unreturned) == _MOST_UNRETURNED:
            attempt.add_failures(failures)
            cases = [parse_case(item.task.op.contract, text) for text in unreturned]
            if attempt.findings and (why := too_short_a_case(cases)):
                remedy = f"allow more time with --timeout {5 * job.timeout:g}"
                attempt.findings.append(Finding(attempt.findings[-1].check, Status.THIN, message=why, remedy=remedy))
            return attempt
        failures += [f for f in attempt.failures if f not in failures]
        _unreturned[known] = (*unreturned, *left_out)


def _run_for_blame(item: CheckItem, job: Job, on_step: Callable[[str], None]) -> Attempt:
    """Run in workers. If one ended that should not have while the kernel ran beside the reference, run again with one
    after the other, to see which of them has ended it, and on which case. An end that says less is not taken for it."""
    attempt = _run_undisturbed(item, job, on_step)
    check = CHECKS.get(attempt.doing.check)
    if not attempt.ending.went_wrong or attempt.ending.hung or check is None or check.process is Process.KERNEL:
        return attempt
    again = _run_undisturbed(item, dataclasses.replace(job, overlaps=False), on_step)
    ending = again.ending
    says_as_much = ending.went_wrong and not ((ending.hung and not ending.broken) or ending.is_shortage)
    if says_as_much or attempt.ending.is_shortage:
        again.add_failures(attempt.failures)
        attempt = again
    return attempt


def _run_undisturbed(item: CheckItem, job: Job, on_step: Callable[[str], None]) -> Attempt:
    """Run in workers; once more and alone if the processes that check it were disturbed, perhaps by another kernel."""
    interpret = item.task.interpret
    with shared_server(interpret=interpret) as server:
        try:
            attempt = _run_in(server, item, job, on_step)
            if not attempt.ending.disturbed:
                return attempt
        except ServerEndedError:
            if not server.has_ended:  # it does not start
                raise
    with exclusive_server(interpret=interpret) as server:
        return _run_in(server, item, job, on_step)


def _run_in(server: ForkServer, item: CheckItem, job: Job, on_step: Callable[[str], None]) -> Attempt:
    attempt, settings = Attempt(), item.settings
    _found_so_far.pop(item.name, None)

    def on_message(message: Message) -> None:
        match message:
            case Doing(check, case):
                attempt.enter(check)
                attempt.doing = message
                on_step(f"{check} {case}".strip())
            case Notice(text):
                on_step(text)
            case Found(finding):
                attempt.findings.append(finding)
                attempt.unconfirmed = None
            case Unconfirmed(finding):
                attempt.unconfirmed = finding
            case Unchecked(what):
                attempt.not_checked.append(what)
            case NotRunnable(reason):
                attempt.refuse(reason)
            case Unavailable(why):
                attempt.unavailable = why
        _found_so_far[item.name] = (*attempt.findings, *filter(None, [attempt.unconfirmed]))
        if isinstance(message, Found | Unconfirmed) and message.finding.status is Status.FAIL:
            on_step(f"found {message.finding.check} {message.finding.case}".strip())
            if settings.fail_fast:
                raise _FirstFailure

    try:
        attempt.ending = run_job(server, job, settings.timeout, on_message)
        attempt.enter("end")
    except _FirstFailure:
        attempt.stopped = True
        attempt.findings += [attempt.unconfirmed] if attempt.unconfirmed is not None else []
    else:
        _break_if_skipped(attempt, job.checks)
    return attempt


def _break_if_skipped(attempt: Attempt, checks: Sequence[str]) -> None:
    """Note a broken ending, if the worker says that it has finished, but some check has not begun."""
    nothing_ran = (
        attempt.refused or attempt.stopped or attempt.unavailable or any(f.check == "build" for f in attempt.findings)
    )
    no_inputs = any(n.check == "inputs" for n in attempt.not_checked)
    no_inputs |= any(f.check == "inputs" and f.status is Status.INCONCLUSIVE for f in attempt.findings)
    if not attempt.ending.finished or nothing_ran or no_inputs:
        return
    if any(name not in attempt.seconds for name in checks or CHECKS):
        attempt.ending = dataclasses.replace(attempt.ending, broken="an end before the last check")


def _add_crash(item: CheckItem, attempt: Attempt) -> None:
    doing, ending, timeout = attempt.doing, attempt.ending, item.settings.timeout
    who = KERNEL if ending.over_memory else doing.who  # only its process has a limit
    reproduce = item.reproduce.format(check=doing.check, case=doing.case).removesuffix(" --case ''")
    if attempt.unconfirmed is not None:  # a simpler case of it ended the worker
        attempt.findings.append(attempt.unconfirmed)
    is_told = any(f.status is Status.FAIL and is_lost_gpu(f.message) for f in attempt.findings)
    if ending.exit_code == LOST_GPU and is_told:
        return  # by the call that caused it
    is_of_kernel = doing.who == KERNEL and not ending.is_shortage
    attempt.findings.append(
        Finding(
            doing.check,
            Status.FAIL if is_of_kernel and (ending.broken or not ending.hung) else Status.INCONCLUSIVE,
            doing.case,
            ending.describe(who, doing.at, timeout),
            reproduce if doing.check in CHECKS else "",
            remedy=_remedy(who, ending, timeout),
        )
    )


def _remedy(who: str, ending: Ending, timeout: float) -> str:
    if ending.hung and not ending.broken:
        return f"allow more time with --timeout {5 * timeout:g}"
    if ending.is_shortage:
        gib = f"{ending.over_memory / (1 << 29):.3g}"
        return f"allow more with --memory {gib}" if ending.over_memory else WITHOUT_SHORTAGE
    if who == KERNEL:
        return ""
    return "state the values that the reference takes with ow.values(...), or refuse others in it"
