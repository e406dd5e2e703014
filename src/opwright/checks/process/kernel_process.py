"""The process in which the kernel runs: it answers the checker's questions, and knows no expected value of them.

Checks that look at what happens within this process, such as writes past a tensor's end, run here as well, on request.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.conduct import cheats, observed
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised, in_words, is_lost_gpu, pass_on_refusal
from opwright.checks.kernel_calls import CallsHere, Layout, Meanwhile
from opwright.checks.limits.resident_memory import end_first_where_memory_is_short
from opwright.checks.limits.shortage import is_shortage, lacks_memory
from opwright.checks.process.compile_ahead import CompileOnce, compile_ahead
from opwright.checks.process.messages import (
    Compiled,
    Doing,
    Found,
    Job,
    Message,
    Notice,
    Unchecked,
    Unconfirmed,
    job_from,
)
from opwright.checks.process.setup import enter, error_of_check, load_operator, prepare_torch, request_of
from opwright.checks.process.timed_compilation import Limit, limit_compilations
from opwright.checks.process.timed_extensions import report_builds
from opwright.checks.request import CaseRecords, Reports
from opwright.checks.settings import state
from opwright.checks.table import CHECKS
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.cases import cases
from opwright.errors import CheckError, CompileError, CompileTimeoutError, NotSimulatedError, OpwrightError
from opwright.internals.compiler import settle_inductor_cache
from opwright.results import Finding, NotChecked
from opwright.runtime.extensions import compiler_caches, load_extensions
from opwright.runtime.kernel import hooks_of, under_check
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.workers.copies import copy_back, same_layout_copy
from opwright.workers.messages import record_of
from opwright.workers.relatives import adopt_orphans, is_ending
from opwright.workers.sandbox import confine
from opwright.workers.supervise import LOST_GPU, NO_GPU
from opwright.workers.wire import Connection, Ended, write_tensors

__all__ = ["chosen_kernel", "give_back", "main", "on_device", "record_of_exception"]


def main(connection: socket.socket) -> None:
    """Answer the questions of one checker process until it closes the connection."""
    link = Connection(connection)
    with contextlib.suppress(Ended):
        job = job_from(link.receive_bytes())
        _log_through(link)
        enter(job)
        end_first_where_memory_is_short()
        adopt_orphans()
        if cheats.NAME in job.checks or (not job.checks and job.level in cheats.CHECK.levels):
            observed.begin()  # before the user's code runs
        caches = compiler_caches() if job.sandbox else []  # where they are by default follows from TMPDIR
        _take_temporary_folder(job.temporary)
        operator = _loaded(job, caches)
        link.answer({"unavailable": operator if isinstance(operator, str) else ""})
        if not isinstance(operator, str) and _is_built(link, operator, job):
            if job.target.device == "cuda" and "triton" in sys.modules:
                _watch_compilations(link, operator, job)
            _start_device(job.target.device)
            if operator.contract.own_inputs.may_refuse:  # its kernels are files that were not written for checks
                report_builds(lambda seconds: _send(link, Compiled(seconds)))
            with operator.only(job.kernel), under_check():
                _Server(link, operator, job).serve()


def _loaded(job: Job, caches: Sequence[str]) -> Op | str:
    """The operator, in a sandbox if that is asked for; or why there is none."""
    try:
        if job.sandbox:
            confine([job.temporary, *caches])
    except CheckError as error:
        return str(error)
    return load_operator(job, job.target.device)


def _take_temporary_folder(folder: str) -> None:
    """Make temporary files in a folder of this process only: so they are seen, and removed with it."""
    settle_inductor_cache()
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None  # it is read again
    state.watch_folder(folder)


def _log_through(link: Connection) -> None:
    """Send opwright's log messages ("compiling …") to the checker process, which hands them on."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _send(link, Notice(record.getMessage()))

    logger = logging.getLogger("opwright")
    logger.handlers, logger.propagate = [Handler()], False
    logger.setLevel(logging.INFO)


def _send(link: Connection, message: Message) -> None:
    link.answer({"message": record_of(message)})


def _is_built(link: Connection, operator: Op, job: Job) -> bool:
    """Compile and load the kernel, and report what is wrong if that fails."""
    prepare_torch()
    load_extensions(build=False)
    if job.kernel == REFERENCE:
        return True
    kernel = operator.kernels[job.kernel]
    return all(_ends_well(link, step) for step in (kernel.build, kernel.load))


def _ends_well(link: Connection, step: Callable[[], Any]) -> bool:
    wrong = ""
    try:
        step()
    except NotSimulatedError as error:
        link.answer({"not simulated": f"{error.message} ({error.fix})"})
        return False
    except CompileError as error:
        wrong = str(error)
    except OpwrightError as error:
        wrong = f"{type(error).__name__}: {error}"
    except Exception:  # importing a kernel's file runs the user's code, which may raise anything
        wrong = traceback.format_exc(limit=-3)
    link.answer({"wrong": wrong})
    return not wrong


def _start_device(device: str) -> None:
    """Begin to use a GPU, which takes a third of a second, while the checker process makes the cases."""
    with contextlib.suppress(Exception):  # the first call reports what is wrong
        torch.empty(1, device=device)


# The share of a step's time that Triton may take in any case to compile a kernel for a size.
_SHARE_TO_COMPILE = 1 / 12


# With fewer processors that are free nothing is compiled ahead, and with more, so many kernels at a time.
_FEWEST_AT_ONCE, _MOST_AT_ONCE = 2, 12


def _watch_compilations(link: Connection, operator: Op, job: Job) -> None:
    """Limit the time of Triton's compilations, and begin those of the cases that follow where processors are free."""
    compiler: Any = importlib.import_module("triton.compiler")
    compile_ = CompileOnce(compiler.compile)
    limit = functools.partial(Limit, _SHARE_TO_COMPILE * job.timeout, job.timeout)
    at_once = min(int(len(os.sched_getaffinity(0)) - os.getloadavg()[0]) - 1, _MOST_AT_ONCE)
    kernel = operator.kernels.get(job.kernel)  # None for the reference
    launcher = hooks_of(kernel, job.target).makes_launcher() if kernel is not None else None
    if launcher is not None and not job.case and at_once >= _FEWEST_AT_ONCE:
        pid = compile_ahead(launcher, lambda: _on_meta(operator, job), compile_, at_once=at_once, limit=limit())
        if pid is not None:
            state.expect_process(pid)
    wait = functools.partial(compile_.wait, job.timeout)
    limit_compilations(compile_, limit(), lambda seconds: _send(link, Compiled(seconds)), wait)


def _on_meta(operator: Op, job: Job) -> Iterator[Sequence[Any]]:
    """The arguments of the check's cases, without memory."""
    contract = operator.contract
    found = cases(contract, job.level, operator.kernels[job.kernel].spec.taken_dtypes, far=False)
    for case in found if job.case_range is None else job.case_range.of(found):
        with contextlib.suppress(Exception):  # the check says why a case cannot be made
            yield arguments_of(contract, case, "meta")


class _Server:
    """Answers questions about one kernel."""

    def __init__(self, link: Connection, operator: Op, job: Job) -> None:
        self._link, self._device, self._parent = link, job.target.device, os.getppid()
        self._calls = CallsHere(operator, job.kernel, job.target.device)
        self._context = Context(
            operator,
            job.kernel,
            job.target,
            [],
            request_of(job),
            Reports(
                lambda check, case, at="": _send(link, Doing(check, case, at=at)),
                lambda finding: _send(link, Unconfirmed(finding)),
            ),
        )

    def serve(self) -> None:
        """Answer until the checker process has no more questions."""
        answers: Mapping[str, Callable[..., None]] = {
            "chosen": self._answer_chosen,
            "observe": self._answer_observe,
            "results": self._answer_results,
            "gradients": self._answer_gradients,
            "check": self._answer_check,
        }
        while True:
            try:
                kind, values = self._link.receive_question()
                self._end_if_gpu_is_lost()
                answers[kind](**values)
            except NotSimulatedError as error:
                self._answer({"not simulated": error.message})
            except CompileTimeoutError as error:
                self._answer({"compiled too long": error.message})
            except Exception as error:  # a fault of the checker, which the kernel is not to blame for
                failed = {"failed": traceback.format_exc(limit=-4)}
                # Of copies, that is: what the kernel itself lacks is answered.
                self._answer({"no memory": str(error)} if lacks_memory(error) else failed)

    def _answer(self, *answer: Any) -> None:
        """Answer, unless the kernel has killed the process that this one was forked from, and ends with: the checker
        must not go on to the reference meanwhile, which would then seem to have done it."""
        while is_ending(self._parent):
            time.sleep(0.1)
        self._link.answer(*answer)

    def _end_if_gpu_is_lost(self) -> None:
        """After a kernel's access to memory that is not there, CUDA answers this process nothing but that error; with
        too many processes beside it, that there is no memory for another."""
        if self._device != "cuda":
            return
        try:
            torch.cuda.synchronize()
        except Exception as error:  # AcceleratorError, or RuntimeError in older versions
            print((str(error).splitlines() or [""])[0], flush=True)  # the report shows a process's last output
            os._exit(NO_GPU if is_shortage(str(error)) else LOST_GPU)

    def _answer_chosen(self, arguments: Sequence[Any]) -> None:
        self._answer(chosen_kernel(self._calls, arguments, self._device))

    def _answer_observe(self, arguments: tuple[Any, ...]) -> None:
        passed = on_device(arguments, self._device)
        call = self._calls.observe_in(passed)
        header: dict[str, Any] = {"changed": dict(call.changed)}
        if not (isinstance(call.outputs, Raised) and is_lost_gpu(str(call.outputs))):  # else the copies are lost, too
            give_back(passed, arguments)
        if isinstance(call.outputs, Raised):
            self._answer({**header, "raised": record_of_exception(call.outputs)})
            return
        described, payload = write_tensors(call.outputs)
        promised = call.promised if isinstance(call.promised, str) else [*map(_record, call.promised)]
        header |= {"outputs": described, "layouts": [*map(_record, call.layouts)], "promised": promised}
        self._answer({**header, "shared": call.shared}, payload)

    def _answer_results(self, arguments: tuple[Any, ...], seed: int | None) -> None:
        passed = on_device(arguments, self._device)
        try:
            outputs = self._calls.returned(passed, seed=seed)
            self._calls.synchronize()
        except Exception as error:  # an exception of the kernel is an answer
            pass_on_refusal(error, self._calls.op.contract)
            self._answer({"raised": record_of_exception(self._calls.described(error))})
            return
        give_back(passed, arguments)
        described, payload = write_tensors(outputs)
        self._answer({"outputs": described}, payload)

    def _answer_gradients(
        self,
        arguments: Sequence[Any],
        incoming: Sequence[torch.Tensor | None],
        tracked: Sequence[bool],
        meanwhile: Sequence[Any] | None,
    ) -> None:
        passed, grads = on_device(list(arguments), self._device), on_device(list(incoming), self._device)
        also = None if meanwhile is None else Meanwhile(*(on_device(values, self._device) for values in meanwhile))
        found = self._calls.gradients(passed, tracked, grads, also)
        give_back(passed, list(arguments))
        give_back(grads, list(incoming))
        header: dict[str, Any] = {"undefined": found.is_undefined, "changed": dict(found.changed)}
        if isinstance(found.of_inputs, str):
            self._answer({**header, "wrong": found.of_inputs})
            return
        raised, again = (found.again, ()) if isinstance(found.again, str) else ("", found.again)
        described, payload = write_tensors([*found.of_inputs, *again])
        self._answer({**header, "gradients": described, "raised again": raised}, payload)

    def _answer_check(self, name: str, cases: list[Case], records: CaseRecords) -> None:
        """Run a check in this process."""
        context = self._context
        context.cases = cases
        context.records.update(records)
        try:
            for result in CHECKS[name].run(context):
                _send(self._link, Found(result) if isinstance(result, Finding) else Unchecked(result))
        except (CompileTimeoutError, NotSimulatedError) as error:  # of a kernel that only this check launches
            _send(self._link, Unchecked(NotChecked(name, error.message)))
        except Exception:  # an error in a check is never a pass
            self._end_if_gpu_is_lost()
            _send(self._link, Found(error_of_check(name, traceback.format_exc(limit=-4))))
        with contextlib.suppress(RuntimeError):
            context.synchronize()
        self._answer({"ended": name})


def chosen_kernel(calls: CallsHere, arguments: Sequence[Any], device: str) -> dict[str, str]:
    """The name of the kernel that runs on the checker's arguments, or why none can."""
    try:
        return {"chosen": calls.chosen(on_device(arguments, device))}
    except OpwrightError as error:  # such as a list without a tensor
        return {"refused": error.message}
    except Exception as error:  # ``when`` may raise anything
        return {"refused": in_words(error)}


def on_device(arguments: Any, device: str) -> Any:
    """The checker's tensors themselves, on a CPU; else copies on the device."""
    if device == "cpu":
        return arguments
    return tree.map_tensors(lambda t: same_layout_copy(t, device=device), arguments)


def give_back(copies: Any, arguments: Any) -> None:
    """Write what became of copies into what the checker sees."""
    if copies is not arguments:
        for copy, original in zip(tree.tensors(copies), tree.tensors(arguments), strict=True):
            copy_back(copy, original)


def record_of_exception(raised: Raised) -> dict[str, str]:
    return {"kind": raised.kind, "text": str(raised.args[0]), "at": raised.at}


def _record(layout: Layout | None) -> dict[str, Any] | None:
    if layout is None:
        return None
    dtype = str(layout.dtype).removeprefix("torch.")
    return {"shape": layout.shape, "strides": layout.strides, "dtype": dtype, "device": layout.device}
