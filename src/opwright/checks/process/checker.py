"""The checker process: it makes the cases, knows what is expected, and compares. No kernel runs in it.

Checks that look at what happens in the process of the kernel run there (``kernel_process.py``), between the others.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opwright.captured.replay import use_recorded
from opwright.checks.check import Process
from opwright.checks.comparison.known import KnownResults
from opwright.checks.context import Context
from opwright.checks.process.kernel_client import NotSimulated, RemoteCalls
from opwright.checks.process.messages import (
    Doing,
    Done,
    Found,
    Job,
    KernelEnded,
    Message,
    NotRunnable,
    RankEnded,
    Unavailable,
    Unchecked,
    Unconfirmed,
    job_from,
    write_job,
)
from opwright.checks.process.rank_client import RemoteRanks
from opwright.checks.process.setup import enter, error_of_check, hide_memory, load_operator, prepare_torch, request_of
from opwright.checks.request import CaseRecords, Reports
from opwright.checks.settings import state
from opwright.checks.table import CHECKS
from opwright.contract.dtypes import short
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.layouts import FARS
from opwright.contract.inputs.sizes import boundaries
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError, CompileTimeoutError
from opwright.machine import this_machine
from opwright.results import Finding, NotChecked, Refused, Status
from opwright.runtime.kernel import hooks_of, under_check
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.workers.messages import write_message
from opwright.workers.roles import MOST_FILES
from opwright.workers.wire import BrokenAnswer, Connection, Ended

__all__ = ["main"]


class _Pipe:
    """The connection to the process that runs the job, which it first sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._link = connection, Connection(connection)

    def receive(self) -> Job:
        return job_from(self._link.receive_bytes())

    def ask(self, message: RankEnded) -> str:
        self.send(message)
        return self._link.receive_bytes().decode()

    def send(self, message: Message) -> None:
        self._socket.sendall(write_message(message))

    def send_result(self, result: Finding | NotChecked) -> None:
        self.send(Found(result) if isinstance(result, Finding) else Unchecked(result))


@dataclass
class _Kept:
    """What this process keeps from job to job: the operator that all of them are about, and its reference's results."""

    operator: Op | None = None
    results: KnownResults = field(default_factory=KnownResults)


def main(control: socket.socket) -> None:
    """Run jobs, one after the other, all of which are about one operator. Each comes as the files that it needs:
    connections to the process that runs the job, to the kernel's process, and to those of a group, if the operator
    communicates; and a file for what is printed."""
    hide_memory()
    kept, random_states = _Kept(), state.random_states()
    while files := _next_files(control):
        *connections, output = files
        _print_to(output)
        state.set_random_states(random_states)
        sockets = [socket.socket(fileno=file) for file in connections]
        _run(kept, *sockets)
        _print_to(os.open(os.devnull, os.O_WRONLY))
        for one in sockets:
            one.close()


def _next_files(control: socket.socket) -> list[int]:
    data, files, _, _ = socket.recv_fds(control, 1, MOST_FILES)
    return files if data else []


def _print_to(file: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)


def _run(kept: _Kept, messages: socket.socket, kernel: socket.socket, *others: socket.socket) -> None:
    pipe, link = _Pipe(messages), Connection(kernel)
    job = pipe.receive()
    try:
        link.send_bytes(write_job(job))  # both import the operator at the same time
        _check(pipe, link, job, others, kept)
    except NotSimulated as refused:
        pipe.send(NotRunnable(str(refused)))
        pipe.send(Done())
    except Ended:
        pipe.send(KernelEnded())
    except BrokenAnswer as broken:
        pipe.send(KernelEnded(str(broken)))


def _check(pipe: _Pipe, link: Connection, job: Job, others: Sequence[socket.socket], kept: _Kept) -> None:
    enter(job)
    pipe.send(Doing("load"))
    operator = load_operator(job, "cpu") if kept.operator is None else kept.operator
    if operator is kept.operator and not isinstance(operator, str):
        use_recorded(operator, job.inputs)
    if isinstance(operator, str):
        pipe.send(Unavailable(operator))
        return
    kept.operator = operator
    prepare_torch()
    calls = RemoteCalls(link, operator.contract, pipe.send)
    unavailable = calls.why_unavailable()
    if unavailable is not None:
        pipe.send(Unavailable(unavailable))
        return
    if _is_built(pipe, calls, operator, job):
        ranks: RemoteRanks | str = job.why_no_ranks
        if job.ranks:
            ranks = RemoteRanks(job, others, operator.contract, pipe.send, lambda i: pipe.ask(RankEnded(i)))
        for result in _results(pipe, calls, kept, job, ranks):
            pipe.send_result(result)
    pipe.send(Done())


def _is_built(pipe: _Pipe, calls: RemoteCalls, operator: Op, job: Job) -> bool:
    """Wait for the kernel to be compiled and loaded. Sends the reason and returns False if that fails."""
    if job.kernel == REFERENCE:
        return True
    probe = operator.kernels[job.kernel].probe(job.target)
    if isinstance(probe, Refused):
        pipe.send(NotRunnable(str(probe)))
        return False
    for step in ("build", "load kernel"):
        pipe.send(Doing(step))
        if (wrong := calls.what_went_wrong()) is not None:
            pipe.send_result(Finding("build", Status.FAIL, message=wrong))
            return False
    return True


def _results(
    pipe: _Pipe, calls: RemoteCalls, kept: _Kept, job: Job, ranks: RemoteRanks | str
) -> Iterator[Finding | NotChecked]:
    step, operator = Doing("start"), kept.operator
    assert operator is not None  # it was loaded

    def progress(check: str, case: str, at: str = "") -> None:
        nonlocal step
        step = Doing(check, case, at=at)
        pipe.send(step)

    def runs(who: str, case: str) -> None:
        pipe.send(dataclasses.replace(step, who=who, case=case or step.case))

    checkers = {c.name: c.examines for c in CHECKS.values() if c.examines and (not job.checks or c.name in job.checks)}
    context = Context(
        operator,
        job.kernel,
        job.target,
        [],
        request_of(job),
        Reports(progress, lambda finding: pipe.send(Unconfirmed(finding)), runs),
        checkers=checkers,
        calls=calls,
        arguments_on="cpu",
        ranks=ranks,
        records=CaseRecords(slow=kept.results.slow, unreturned=_unreturned(operator, job)),
        reference_results=None if operator.contract.random else kept.results,
    )
    with operator.only(job.kernel), under_check():
        try:
            chosen, unchecked = _choose_cases(context, job)
        except CheckError as error:  # op.samples, which yielded calls in the parent, need not yield them here
            yield NotChecked("inputs", error.message)
            return
        except Exception:  # an error in making inputs, for which the kernel must not be blamed
            yield error_of_check("inputs", traceback.format_exc(limit=-4))
            return
        context.far_cases = [case for case in chosen if case.layout in FARS]
        context.cases = chosen if job.case else [case for case in chosen if case.layout not in FARS]
        if job.case_range is not None:
            context.own_cases = frozenset(job.case_range.of(context.cases))
        yield from unchecked
        yield from _run_checks(context, calls, job)


def _unreturned(operator: Op, job: Job) -> dict[Case, str]:
    why = f"the reference does not return within {job.timeout:g} s"
    return {parse_case(operator.contract, text): f"{why} for {text}" for text in job.unreturned}


def _run_checks(context: Context, calls: RemoteCalls, job: Job) -> Iterator[Finding | NotChecked]:
    for name in [name for name in CHECKS if not job.checks or name in job.checks]:
        context.progress(name, "")
        try:
            if CHECKS[name].process is Process.KERNEL:
                yield from calls.check(name, context)
            else:
                yield from CHECKS[name].run(context)
        except CompileTimeoutError as error:
            yield NotChecked(name, error.message)
        except Exception:  # an error in a check is never a pass
            yield error_of_check(name, traceback.format_exc(limit=-4))


# No dim is longer on a GPU, or of a kernel for CPUs.
_LONGEST = 1 << 22


def _choose_cases(context: Context, job: Job) -> tuple[list[Case], list[NotChecked]]:
    contract = context.op.contract
    if job.case:
        return [dataclasses.replace(parse_case(contract, job.case), ranks=1)], []
    if job.kernel == REFERENCE:
        return cases(contract, job.level, admits=context.admits), []
    kernel = context.op.kernels[job.kernel]
    reasons = hooks_of(kernel, job.target).unchecked_dtypes(this_machine())
    longest = _LONGEST
    if context.runs_slowly:  # in a simulator or in an interpreter
        longest = 65_537 if context.is_simulated else 2049
    far = not context.runs_slowly or context.is_simulated  # an interpreter copies what a view spans
    derived = cases(contract, job.level, kernel.spec.taken_dtypes, admits=context.admits, longest=longest, far=far)
    chosen = [c for c in derived if not reasons.keys() & {dtype for _, dtype in c.dtypes}]
    drawn = {dtype for c in derived for _, dtype in c.dtypes}
    unchecked = [NotChecked(short(d), why) for d, why in reasons.items() if d in drawn]
    most = max(boundaries(job.level, _LONGEST))
    if longest < most and any(size for case in chosen for _, size in case.sizes):
        where = "a simulator" if context.is_simulated else "an interpreter"
        why = f"in {where}, no dim is longer than {longest:,}; on a GPU, checks go up to {most:,}"
        unchecked.append(NotChecked("long dims", why))
    return chosen, unchecked
