"""The main function of a worker: load the operator, then run every check, and report each step."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import sys
import traceback
from collections.abc import Iterator

import torch

from opwright.checks.context import Context
from opwright.checks.process.messages import (
    Doing,
    Done,
    Found,
    Job,
    Message,
    Notice,
    NotRunnable,
    Suspected,
    Unavailable,
    Unchecked,
    read_job,
    write_message,
)
from opwright.checks.table import CHECKS, EACH_CASE
from opwright.contract.dtypes import short
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.text import parse_case
from opwright.errors import CheckError, CompileError, OpwrightError
from opwright.results import Finding, NotChecked, Refused, Status
from opwright.runtime import serialization
from opwright.runtime.kernel import under_check
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import import_operator

__all__ = ["main"]


class _Pipe:
    """The connection to the parent, which first sends the job."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")

    def receive(self) -> Job:
        return read_job(self._file)

    def send(self, message: Message) -> None:
        self._file.write(write_message(message))
        self._file.flush()

    def send_result(self, result: Finding | NotChecked) -> None:
        self.send(Found(result) if isinstance(result, Finding) else Unchecked(result))


def main(connection: socket.socket) -> None:
    """Run one job."""
    pipe = _Pipe(connection)
    job = pipe.receive()
    _log_through(pipe)
    os.chdir(job.cwd)
    sys.path[:] = job.sys_path
    os.environ.update(job.environment)
    pipe.send(Doing("load"))
    try:
        operator = _load_operator(job)
    except Exception:  # the user's module may raise anything; the parent may send it by value instead
        pipe.send(Unavailable(traceback.format_exc(limit=-3)))
        return
    if operator is None:
        pipe.send(Unavailable("the module that defines it holds another version"))
        return
    _prepare_torch()
    if _build(pipe, operator, job):
        for result in _results(pipe, operator, job):
            pipe.send_result(result)
    pipe.send(Done())


def _log_through(pipe: _Pipe) -> None:
    """Send opwright's log messages ("compiling …") to the parent, which shows them."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            pipe.send(Notice(record.getMessage()))

    logger = logging.getLogger("opwright")
    logger.handlers, logger.propagate = [Handler()], False
    logger.setLevel(logging.INFO)


def _load_operator(job: Job) -> Op | None:
    if job.pickle:
        return serialization.load(job.pickle)
    assert job.import_path is not None  # a job has either
    operator = import_operator(job.import_path)
    return operator if operator is not None and operator.fingerprint == job.fingerprint else None


def _prepare_torch() -> None:
    # Memory from the allocator often holds an earlier, correct result. Filled with NaN, it cannot hide an
    # element that a kernel forgot to write.
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default, torch computes convolutions of float32 in TF32 on a GPU, and adds parts of products of float16 and
    # bfloat16 in these dtypes. A kernel that calls torch is judged by its own steps, not by these defaults.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def _build(pipe: _Pipe, operator: Op, job: Job) -> bool:
    """Compile and load the kernel. Sends the reason and returns False if that fails."""
    if job.kernel == REFERENCE:
        return True
    kernel = operator.kernels[job.kernel]
    probe = kernel.probe(job.device)
    if isinstance(probe, Refused):
        pipe.send(NotRunnable(str(probe)))
        return False
    pipe.send(Doing("build"))
    try:
        kernel.load()
    except CompileError as error:
        pipe.send_result(_failed("build", str(error)))
        return False
    except OpwrightError as error:
        pipe.send_result(_failed("build", f"{type(error).__name__}: {error}"))
        return False
    except Exception:  # importing a kernel's file runs the user's code, which may raise anything
        pipe.send_result(_failed("build", traceback.format_exc(limit=-3)))
        return False
    return True


def _results(pipe: _Pipe, operator: Op, job: Job) -> Iterator[Finding | NotChecked]:
    step = Doing("start")

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
    )
    with operator.only(job.kernel), under_check():
        try:
            context.cases, unchecked = _choose_cases(context, job)
        except CheckError as error:  # op.samples, which yielded calls in the parent, need not yield them here
            yield NotChecked("inputs", error.message)
            return
        yield from unchecked
        yield from _run_checks(context, job)


def _run_checks(context: Context, job: Job) -> Iterator[Finding | NotChecked]:
    for name, check in CHECKS.items():
        if job.checks and name not in job.checks:
            continue
        context.progress(name, "")
        try:
            yield from check(context)
        except Exception:  # an error in a check is never a pass
            yield _failed(name, "the check itself failed with an error:\n" + traceback.format_exc(limit=-4))
        with contextlib.suppress(RuntimeError):
            context.synchronize()


def _choose_cases(context: Context, job: Job) -> tuple[list[Case], list[NotChecked]]:
    contract = context.op.contract
    if job.case:
        return [parse_case(contract, job.case)], []
    if job.kernel == REFERENCE:
        return cases(contract, job.level, admits=context.admits), []
    kernel = context.op.kernels[job.kernel]
    reasons = kernel.unchecked_dtypes(job.device)
    longest = (2049 if kernel.backend == "triton" else 65_537) if context.runs_slowly else 1 << 22
    derived = cases(
        contract, job.level, kernel.spec.dtypes, admits=context.admits, longest=longest, far=not context.runs_slowly
    )
    chosen = [c for c in derived if not reasons.keys() & {dtype for _, dtype in c.dtypes}]
    drawn = {dtype for c in derived for _, dtype in c.dtypes}
    unchecked = [NotChecked(short(d), why) for d, why in reasons.items() if d in drawn]
    return chosen, unchecked


def _failed(check: str, message: str) -> Finding:
    return Finding(check, Status.FAIL, message=message)
