"""The judge: it makes the cases, knows what is expected, and compares. No kernel runs in its process.

Checks that look at what happens in the process of the kernel run there (``kernel_process.py``), between the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opwright.checks import meaning, state
from opwright.checks.comparison.known import KnownResults
from opwright.checks.context import Context
from opwright.checks.process.ahead import longest_dim
from opwright.checks.process.messages import (
    MOST_FILES,
    Doing,
    Done,
    Found,
    Job,
    KernelEnded,
    Message,
    NotRunnable,
    RankEnded,
    Suspected,
    Unavailable,
    Unchecked,
    read_job,
    write_job,
    write_message,
)
from opwright.checks.process.ranks import RemoteRanks
from opwright.checks.process.remote import NotSimulated, RemoteCalls, SecondProcess
from opwright.checks.process.setup import enter, error_of_check, hide_memory, join_alone, load_operator, prepare_torch
from opwright.checks.process.wire import BrokenAnswer, Connection, Ended
from opwright.checks.table import BESIDE_THE_KERNEL, CHECKS, EACH_CASE, OF_REGISTRATION
from opwright.contract.dtypes import short
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError
from opwright.machine import in_simulator, this_machine
from opwright.results import Finding, NotChecked, Refused, Status
from opwright.runtime.kernel import under_check
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op

__all__ = ["main"]


# The share of a step's time for which the second process of a kernel may say nothing. It may wait for what the first
# one has, which then runs the check in the rest of that time.
_PATIENCE = 0.4


class _Pipe:
    """The connection to the process that checks, which first sends the job."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            self._file.close()

    def receive(self) -> Job:
        return read_job(self._file)

    def ask(self, message: RankEnded) -> str:
        self.send(message)
        return str(json.loads(self._file.readline()))

    def send(self, message: Message) -> None:
        self._file.write(write_message(message))
        self._file.flush()

    def send_result(self, result: Finding | NotChecked) -> None:
        self.send(Found(result) if isinstance(result, Finding) else Unchecked(result))


@dataclass
class _Subject:
    """What a judge keeps from job to job: the operator that all of them are about, and what its reference has given."""

    operator: Op | None = None
    results: KnownResults = field(default_factory=KnownResults)


def main(control: socket.socket) -> None:
    """Run jobs, one after the other, all of which are about one operator. Each comes as the files that it needs:
    connections to the process that checks, to the process in which the kernel runs, to the second one, if the job has
    one, or to those of a group, if the operator communicates; and a file for what is printed."""
    hide_memory()
    subject, random_states = _Subject(), state.random_states()
    while files := _next_files(control):
        *connections, output = files
        _print_to(output)
        state.set_random_states(random_states)
        sockets = [socket.socket(fileno=file) for file in connections]
        _run(subject, *sockets)
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


def _run(subject: _Subject, messages: socket.socket, kernel: socket.socket, *others: socket.socket) -> None:
    link = Connection(kernel)
    with _Pipe(messages) as pipe:
        job = pipe.receive()
        try:
            link.send_bytes(write_job(job))  # both import the operator at the same time
            _judge(pipe, link, job, others, subject)
        except NotSimulated as refused:
            pipe.send(NotRunnable(str(refused)))
            pipe.send(Done())
        except Ended:
            pipe.send(KernelEnded())
        except BrokenAnswer as broken:
            pipe.send(KernelEnded(str(broken)))


def _judge(pipe: _Pipe, link: Connection, job: Job, others: Sequence[socket.socket], subject: _Subject) -> None:
    enter(job)
    pipe.send(Doing("load"))
    why = "the module that defines it holds another version"
    operator = subject.operator
    try:
        if operator is None and (operator := load_operator(job)) is not None:
            join_alone(operator, "cpu")
    except Exception:  # the user's module may raise anything; the parent may send it by value instead
        why = traceback.format_exc(limit=-3)
    if operator is None:
        pipe.send(Unavailable(why))
        return
    subject.operator = operator
    prepare_torch()
    calls = RemoteCalls(link, operator.contract.signature, pipe.send)
    unavailable = calls.why_unavailable()
    if unavailable is not None:
        pipe.send(Unavailable(unavailable))
        return
    if _is_built(pipe, calls, operator, job):
        second = _started_second(pipe, others[0], operator, job) if job.has_second else None
        ranks = _ranks(pipe, others, operator, job) if job.ranks else job.why_no_ranks
        for result in _results(pipe, calls, subject, job, ranks, second):
            pipe.send_result(result)
    pipe.send(Done())


def _ranks(pipe: _Pipe, sockets: Sequence[socket.socket], operator: Op, job: Job) -> RemoteRanks:
    return RemoteRanks(job, sockets, operator.contract.signature, pipe.send, lambda i: pipe.ask(RankEnded(i)))


def _started_second(pipe: _Pipe, connection: socket.socket, operator: Op, job: Job) -> SecondProcess:
    connection.settimeout(_PATIENCE * job.timeout)
    link = Connection(connection)

    def relay(message: Message) -> None:
        if not isinstance(message, Suspected):
            pipe.send(message)

    calls = RemoteCalls(link, operator.contract.signature, relay)
    second = SecondProcess(link, calls, builds=job.kernel != REFERENCE)
    second.start(write_job(dataclasses.replace(job, temporary=job.second_temporary)))
    return second


def _is_built(pipe: _Pipe, calls: RemoteCalls, operator: Op, job: Job) -> bool:
    """Wait for the kernel to be compiled and loaded. Sends the reason and returns False if that fails."""
    if job.kernel == REFERENCE:
        return True
    machine = dataclasses.replace(this_machine(), cuda_simulator=in_simulator())  # as it is for this kernel
    probe = operator.kernels[job.kernel].probe(job.device, machine)
    if isinstance(probe, Refused):
        pipe.send(NotRunnable(str(probe)))
        return False
    for step in ("build", "load kernel"):
        pipe.send(Doing(step))
        if (wrong := calls.what_went_wrong()) is not None:
            pipe.send_result(_failed("build", wrong))
            return False
    return True


def _results(
    pipe: _Pipe,
    calls: RemoteCalls,
    subject: _Subject,
    job: Job,
    ranks: RemoteRanks | str,
    second: SecondProcess | None,
) -> Iterator[Finding | NotChecked]:
    step, operator = Doing("start"), subject.operator
    assert operator is not None  # it was loaded

    def progress(check: str, case: str, at: str = "") -> None:
        nonlocal step
        step = Doing(check, case, at=at)
        pipe.send(step)

    def runs(who: str) -> None:
        pipe.send(dataclasses.replace(step, who=who))

    beside = {name: checker for name, checker in EACH_CASE.items() if not job.checks or name in job.checks}
    context = Context(
        operator,
        job.kernel,
        job.device,
        job.level,
        [],
        progress,
        lambda finding: pipe.send(Suspected(finding)),
        runs,
        reproduce=job.reproduce,
        shrinks=not job.case,
        beside=beside,
        calls=calls,
        arguments_on="cpu",
        ranks=ranks,
        timeout=job.timeout,
        slow=subject.results.slow,
        known_results=None if operator.contract.random else subject.results,
    )
    with operator.only(job.kernel), under_check():
        try:
            context.cases, unchecked = _choose_cases(context, job)
        except CheckError as error:  # op.samples, which yielded calls in the parent, need not yield them here
            yield NotChecked("inputs", error.message)
            return
        if job.share is not None:
            context.own_cases = frozenset(job.share.of(context.cases))
        yield from unchecked
        yield from _run_checks(context, calls, job, second)


def _run_checks(
    context: Context, calls: RemoteCalls, job: Job, second: SecondProcess | None
) -> Iterator[Finding | NotChecked]:
    chosen = [name for name in CHECKS if not job.checks or name in job.checks]
    for name in chosen:
        context.progress(name, "")
        try:
            passed = None if second is None else second.passed(name)
            if passed is not None:
                yield from passed
            elif name in BESIDE_THE_KERNEL:
                yield from calls.check(name, context)
            else:
                yield from CHECKS[name](context)
        except Exception:  # an error in a check is never a pass
            yield error_of_check(name, traceback.format_exc(limit=-4))
        if second is not None and not second.has_begun and name != meaning.NAME:
            # The first one has called the kernel, and has what only one process can have.
            second.begin([name for name in chosen if name in OF_REGISTRATION], context)


def _choose_cases(context: Context, job: Job) -> tuple[list[Case], list[NotChecked]]:
    contract = context.op.contract
    if job.case:
        return [dataclasses.replace(parse_case(contract, job.case), ranks=1)], []
    if job.kernel == REFERENCE:
        return cases(contract, job.level, admits=context.admits), []
    kernel = context.op.kernels[job.kernel]
    reasons = kernel.unchecked_dtypes(job.device)
    longest = longest_dim(simulated=in_simulator()) if context.runs_slowly else 1 << 22
    # An interpreter copies what a view spans, and the simulator of CUDA has a record for each byte of it.
    far = not context.runs_slowly or (in_simulator() and kernel.backend == "triton")
    derived = cases(contract, job.level, kernel.spec.dtypes, admits=context.admits, longest=longest, far=far)
    chosen = [c for c in derived if not reasons.keys() & {dtype for _, dtype in c.dtypes}]
    drawn = {dtype for c in derived for _, dtype in c.dtypes}
    unchecked = [NotChecked(short(d), why) for d, why in reasons.items() if d in drawn]
    return chosen, unchecked


def _failed(check: str, message: str) -> Finding:
    return Finding(check, Status.FAIL, message=message)
