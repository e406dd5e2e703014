"""The context of a check: one operator, one kernel, one device, and runs that all checks share."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ParamSpec, TypeVar

import torch

from opwright import tree
from opwright.checks.check import Check, Checker
from opwright.checks.comparison.known import KnownResults
from opwright.checks.comparison.terms import reduction_length
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.comparison.widening import in_float32, lacks_dtype
from opwright.checks.exceptions import Raised, is_beyond_hardware, is_refusal
from opwright.checks.kept_runs import KeptRuns
from opwright.checks.kernel_calls import Calls, CallsHere
from opwright.checks.limits.expected_time import expected_seconds
from opwright.checks.limits.reference_size import LargeTensorError, refuse_large_tensors
from opwright.checks.limits.shortage import WITHOUT_SHORTAGE, is_shortage
from opwright.checks.limits.time_limit import takes_too_long
from opwright.checks.observation import Observation, Prepared, SkippedCase, copy_of
from opwright.checks.request import CaseRecords, Reports, Request
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import DYADIC, Case, is_as_long
from opwright.contract.inputs.layouts import FARS
from opwright.errors import ArgumentError, CheckError, CompileTimeoutError
from opwright.internals.autograd import below_autograd
from opwright.results import Finding, Status
from opwright.runtime.kernel import CheckHooks, gpu_of, hooks_of
from opwright.runtime.op import Op
from opwright.target import Engine, Target
from opwright.workers.copies import on_cpu

__all__ = ["KERNEL", "REFERENCE", "Context"]

# Who runs.
KERNEL, REFERENCE = "the kernel", "the reference"
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class _Started:
    """A call that begins: what it is prepared with, a copy of the arguments, and the time."""

    prepared: Prepared
    before: Any
    began: float


@dataclass
class Context:
    """What a check sees: the kernel under test, the cases, and how both it and the reference are run.

    Attributes:
        checkers: of the checks that examine every case: a run is given to all of them, and not kept for later ones.
        far_cases: those of the layout "far", which only one check runs.
        own_cases: of the cases, those that such checks examine, if another process has the others.
        calls: how the kernel is called, by default in this process.
        arguments_on: where arguments are made, by default on the kernel's device.
        ranks: the processes of a group, for an operator that communicates; or why there are none.
        reference_results: what the reference returned while other kernels were checked; None: nothing is kept.
        failed_checks: the checks that found something wrong in some case.
    """

    op: Op
    kernel: str
    target: Target
    cases: list[Case]
    request: Request = field(default_factory=Request)
    reports: Reports = field(default_factory=Reports)
    checkers: Mapping[str, Checker] = field(default_factory=dict)
    far_cases: list[Case] = field(default_factory=list)
    own_cases: frozenset[Case] | None = None
    calls: Calls = None  # type: ignore[assignment]  # set below
    arguments_on: str = ""
    ranks: Any = ""
    records: CaseRecords = field(default_factory=CaseRecords)
    reference_results: KnownResults | None = None
    failed_checks: set[str] = field(default_factory=set)
    examined: dict[tuple[str, Case], str | SkippedCase | None] = field(default_factory=dict)
    _kept: KeptRuns = field(default_factory=KeptRuns)
    _begun: _Started | None = None

    def __post_init__(self) -> None:
        self.calls = self.calls or CallsHere(self.op, self.kernel, self.device)
        self.arguments_on = self.arguments_on or self.device

    def is_due(self, check: Check) -> bool:
        """Whether a check of the kernel runs: at this level, or because it was asked for. A reference has no kernel."""
        is_asked = self.request.level in check.levels or check.name in self.request.selected
        return self.kernel in self.op.kernels and is_asked

    @property
    def device(self) -> str:
        """The type of device of the tensors that the kernel gets."""
        return self.target.device

    @property
    def is_simulated(self) -> bool:
        """Whether a simulator runs the kernel, and checks every access."""
        return self.target.engine is Engine.SIMULATOR

    @property
    def runs_slowly(self) -> bool:
        """Whether a kernel for GPUs runs on a CPU, where an interpreter or a simulator takes long for many programs."""
        return self.target.engine is not Engine.NATIVE

    @property
    def hooks(self) -> CheckHooks:
        """What checks ask of the kernel's language. (A reference has none.)"""
        return hooks_of(self.op.kernels[self.kernel], self.target)

    def progress(self, check: str, case: str, at: str = "") -> None:
        """Report a step: a check, a case, and where a crash would happen."""
        self.reports.step(check, case, at)

    def observe(self, case: Case) -> Observation | SkippedCase:
        """Run the kernel and the reference on a case. What was run lately is not run again."""
        found = self._kept.get(case)
        if found is None:
            found = self._run(case)
            self.records.returned[case] = _returned_results(found)
            if case.layout not in FARS:  # its memory is given back
                self._kept.keep(case, found)
        return found

    def admits(self, case: Case) -> bool:
        """Whether a case can be run: the kernel is applicable, and the reference defined."""
        self.progress("inputs", str(case))
        return not isinstance(self.prepare(case), SkippedCase)

    def prepare(self, case: Case, *, draw: int = 0) -> Prepared | SkippedCase:
        """The arguments of a case, with one of several draws of values, and what the reference gives."""
        if slow := self.records.too_slow(case):
            return SkippedCase(slow)
        try:
            arguments = arguments_of(self.op.contract, case, self.arguments_on, draw=draw)
            applicable = self.calls.chosen(arguments)
        except (CheckError, ArgumentError) as error:  # no values of these sizes; lists without a tensor
            return SkippedCase(error.message)
        except torch.OutOfMemoryError as error:
            return SkippedCase(f"there is not enough memory for the arguments: {_first_line(error)}")
        if applicable != self.kernel:
            return SkippedCase(self.op.contract.own_inputs.not_applicable)
        if not draw and case in self.records.defined:
            return self._prepared(case, arguments)
        prepared = self.prepare_with(case, arguments)
        if not draw and isinstance(prepared, Prepared):
            self.records.defined.add(case)
        return prepared

    def prepare_with(self, case: Case, arguments: Sequence[Any]) -> Prepared | SkippedCase:
        """Arguments of the sizes of a case, and what the reference gives for them.

        A case for which a step is too short is left out, as it would end the whole check; the author's own cases are
        not. That is found out once, so that all checks leave out the same cases, and none waits for them again.
        """
        prepared, timeout = self._prepared(case, arguments), self.request.timeout

        def first() -> None:
            self.as_reference(refuse_large_tensors, str(case))(self.op.contract.traceable, arguments)
            _ = prepared.expected

        try:
            if case in self.records.defined or case.sample is not None or not self.request.shrinks:
                _ = prepared.expected
            elif took := takes_too_long(first, lambda: self._compute(arguments), timeout):
                self.reports.runs(KERNEL, "")  # the reference may have been stopped as it was about to say so
                self.records.slow[case] = f"the reference takes {took}, too long with --timeout {timeout:g}"
                return SkippedCase(self.records.slow[case])
        except LargeTensorError as error:
            return SkippedCase(str(error))
        except Exception as error:  # the reference refuses arguments by any exception
            return SkippedCase(f"the reference raises {type(error).__name__}: {_first_line(error)}")
        return prepared

    def _prepared(self, case: Case, arguments: Sequence[Any]) -> Prepared:
        compute = functools.partial(self._compute, arguments, case)
        return Prepared(case, tuple(arguments), functools.cache(compute))

    def _compute(self, arguments: Sequence[Any], case: Case | None = None) -> Computation:
        """The reference on the CPU; in float32, where torch lacks an operation in a narrow dtype.

        Args:
            case: that of the arguments, of which results may be known.
        """
        copies = tree.map_tensors(on_cpu, tuple(arguments))
        own = self.as_reference(self.op.contract.reference, str(case or ""))
        known = self.reference_results
        given = {} if case is None or known is None else known.of(case, copies)
        of_form = {} if known is None else known.of_form("reference", copies)

        def terms(_: int) -> int:
            if "terms" in of_form:
                return int(of_form["terms"])
            count = self.as_reference(reduction_length)
            found = reference.once("terms", lambda: count(self.op.contract, copies, reference.rounded))
            if not reference.follows_from_values:
                of_form["terms"] = found
            return found

        reference = Computation(
            own,
            copies,
            terms,
            decides_exactly=case is not None and case.values == DYADIC,
            in_tf32=self.op.contract.tf32,
            given=given,
            of_form=of_form,
        )
        try:
            if not given.get("is widened"):
                _ = reference.rounded
                return reference
        except Exception as error:
            if not lacks_dtype(error):
                raise
            refused = error
        reference = Computation(functools.partial(in_float32, own), copies, terms, is_widened=True, given=given)
        try:
            _ = reference.rounded
        except Exception:  # nor does it compute in float32
            raise refused from None
        given["is widened"] = True
        return reference

    def as_reference(self, run: Callable[P, R], case: str = "") -> Callable[P, R]:
        """A function that is not the kernel's: if it ends the process, or does not end, the kernel is not to blame.

        Args:
            case: whose arguments it takes, if it is known.
        """

        def named(*arguments: P.args, **keywords: P.kwargs) -> R:
            self.reports.runs(REFERENCE, case)
            try:
                return run(*arguments, **keywords)
            finally:
                self.reports.runs(KERNEL, "")

        return named

    def begin(self, case: Case) -> None:
        """Let the kernel run on a case that is observed next, if the reference is defined there, while this process
        does something else."""
        if not self.request.overlaps or self._kept.get(case) is not None:
            return
        with contextlib.suppress(MemoryError, torch.OutOfMemoryError):  # ``observe`` says so
            started = self._started(case)
            if isinstance(started, _Started):
                self.calls.begin(started.prepared.arguments)
                self._begun = started

    def _started(self, case: Case) -> _Started | SkippedCase:
        """What is known before the kernel runs."""
        for known, why in self.records.uncompiled.items():
            if is_as_long(case, known):
                return SkippedCase(why, is_too_large=True)
        if self.runs_slowly and case.sample is None and self.request.shrinks:
            most = self.request.timeout / 2  # the rest is for a machine that gets busier
            if expected := expected_seconds(case, self.records.seconds, most):
                return SkippedCase(f"{self.target} would take about {expected:.0f} s for it (--timeout allows more)")
        prepared = self.prepare(case)
        if isinstance(prepared, SkippedCase):
            return prepared
        return _Started(prepared, copy_of(prepared.arguments), time.monotonic())

    def _run(self, case: Case) -> Observation | SkippedCase:
        begun, self._begun = self._begun, None
        try:
            started = begun if begun is not None and begun.prepared.case == case else self._started(case)
        except (MemoryError, torch.OutOfMemoryError):
            return SkippedCase("there is not enough memory for copies of the arguments")
        if isinstance(started, SkippedCase):
            return started
        prepared, before, began = started.prepared, started.before, started.began
        arguments = prepared.arguments
        try:
            _ = prepared.reference.exact
        except Exception as error:
            return SkippedCase(f"the reference raises {type(error).__name__} in float64: {_first_line(error)}")
        try:
            call = self.calls.observe(arguments)
        except (MemoryError, torch.OutOfMemoryError):
            return SkippedCase("there is not enough memory for copies of the arguments")
        except CompileTimeoutError as error:
            self.records.uncompiled[case] = error.message
            return SkippedCase(error.message, is_too_large=True)
        if self.runs_slowly:
            self.records.seconds[case] = time.monotonic() - began
        if isinstance(call.outputs, Raised):
            if is_beyond_hardware(call.outputs):
                return SkippedCase(f"the hardware refuses it: {_first_line(call.outputs)}", is_too_large=True)
            if call.outputs.kind == "OutOfMemoryError":
                return SkippedCase(f"the kernel has not enough memory: {_first_line(call.outputs)}")
            if case.layout in FARS and "CUDA error" not in str(call.outputs):  # as cuBLAS refuses strides past 2**31
                is_overflow = call.outputs.kind == "SimulatorError"
                return SkippedCase(_why_not_far(call.outputs), is_overflow=is_overflow)
            if self._is_refused(case, call.outputs):
                return SkippedCase(f"the kernel raises {_first_line(call.outputs)}")
            return Observation(case, arguments, prepared.compute, before, call.outputs, call)
        outputs = (*call.outputs, *self.op.contract.signature.written(call.passed))
        return Observation(case, arguments, prepared.compute, before, outputs, call)

    def _is_refused(self, case: Case, raised: Raised) -> bool:
        """Whether a kernel may raise this for a case. One that returns nothing for the task's own inputs, and has
        returned nothing before, takes nothing at all."""
        own_inputs = self.op.contract.own_inputs
        if not own_inputs.may_refuse or self._is_own(case) or not is_refusal(raised):
            return False
        if any(self.records.returned.values()):
            return True
        own = [c for c in self.cases if self._is_own(c)]
        if own_inputs.samples_are_smaller:  # its own sizes may be too large here
            return not any(isinstance(self.observe(c), Observation) and not self.ran(c) for c in own)
        return any(self.ran(c) for c in own)

    def _is_own(self, case: Case) -> bool:
        """Whether a case has the task's own inputs, or its own sizes where the samples are smaller ones."""
        own_inputs = self.op.contract.own_inputs
        if not own_inputs.samples_are_smaller:
            return case.sample is not None
        sizes = dict(case.sizes)
        own = zip(*own_inputs.sizes.values(), strict=True)
        return any(all(sizes.get(n) == v for n, v in zip(own_inputs.sizes, values, strict=True)) for values in own)

    def results(self, arguments: Sequence[Any], *, seed: int | None = None) -> tuple[Any, ...]:
        """What a call returns, followed by the arguments that it has written. A seed is for torch's generators."""
        return self.calls.results(arguments, seed=seed)

    def run_kernel(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """What ``results`` returns, of a call around torch's dispatcher, in which modes see what the kernel does."""
        kernel = self.op.kernels[self.kernel]
        with below_autograd():
            launch = kernel.launch_for_calls_like(arguments, gpu_of(arguments))
            return self.op.contract.results(launch(*arguments), arguments)

    def ran(self, case: Case) -> bool:
        """Whether the kernel returned results for a case."""
        if case not in self.records.returned:
            self.records.returned[case] = _returned_results(self.observe(case))
        return self.records.returned[case]

    def described(self, error: Exception) -> Raised:
        """An exception of the kernel in this process, as a result."""
        return CallsHere(self.op, self.kernel, self.device).described(error)

    def synchronize(self) -> None:
        """Wait for the device, so that an asynchronous error is raised in the step that caused it."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def failed(self, check: str, case: str, message: str) -> Finding:
        """A failing finding (inconclusive, where memory was short): its scalars, and the command to repeat it."""
        if self.op.adopted:
            message = f"{self.op.adopted}: {message}"
        scalars = self._scalars(case)
        if scalars:
            message = f"{message}\nwith {scalars}"
        again = self.request.reproduce.format(check=check, case=case)
        if is_shortage(message):
            return Finding(check, Status.INCONCLUSIVE, case, message, again, remedy=WITHOUT_SHORTAGE)
        return Finding(check, Status.FAIL, case, message, again)

    def _scalars(self, case: str) -> str:
        """The values of the arguments that are no tensors, which follow from the case."""
        run = self._kept.named(case)
        if not isinstance(run, Observation):
            return ""
        pairs = zip(self.op.contract.signature.arguments, run.arguments, strict=True)
        return ", ".join(f"{a.name}={_plain(value)!r}" for a, value in pairs if not (a.is_tensor or a.is_group))


def _returned_results(found: Observation | SkippedCase) -> bool:
    return isinstance(found, Observation) and not isinstance(found.outputs, Raised)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _why_not_far(raised: Raised) -> str:
    """Why a kernel does not take rows that lie far apart; of one in a simulator, the first of its findings."""
    if raised.kind != "SimulatorError":
        return f"the kernel refuses rows that lie so far apart: {_first_line(raised)}"
    finding = " ".join(str(raised).splitlines()[1:2])
    return f"its offsets are wrong past 2³¹ elements, where rows or steps lie so far apart: {finding.strip()[:200]}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
