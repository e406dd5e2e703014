"""The context of a check: one operator, one kernel, one device, and runs that all checks share."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ParamSpec, TypeVar

import torch

from opwright import tree
from opwright.checks.comparison.known import KnownResults
from opwright.checks.comparison.terms import reduction_length
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.comparison.widening import in_float32, lacks_dtype
from opwright.checks.copies import WITHOUT_SHORTAGE, is_shortage, on_cpu
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import Calls, CallsHere
from opwright.checks.observation import Observation, Prepared, SkippedCase, copy_of
from opwright.checks.time_limit import takes_too_long
from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.case import EIGHTHS, Case
from opwright.contract.inputs.layouts import FAR
from opwright.contract.inputs.sizes import elements, smaller
from opwright.errors import ArgumentError, CheckError
from opwright.internals.autograd import below_autograd
from opwright.results import Coverage, Finding, NotChecked, Status
from opwright.runtime.kernel import gpu_of
from opwright.runtime.op import Op

__all__ = [
    "KERNEL", "MOST_FAILURES", "REFERENCE", "Check", "Checker", "Context", "kind_of", "kind_of_reason",
]  # fmt: skip

# Who runs.
KERNEL, REFERENCE = "the kernel", "the reference"
P = ParamSpec("P")
R = TypeVar("R")


# A checker examines one observation and returns a description of the error, or None; or why it cannot.
Checker = Callable[["Context", Any], "str | SkippedCase | None"]
# A check yields its findings, and what it could not check.
Check = Callable[["Context"], Iterator[Finding | NotChecked]]


@dataclass
class Context:
    """Everything that one worker checks."""

    op: Op
    kernel: str
    device: str
    level: str
    cases: list[Case]
    # Called before each step: the check, the case, and where a crash would happen.
    progress: Callable[..., None]
    # Called with a failure before simpler cases of it are tried, one of which may end the process.
    suspects: Callable[[Finding], None] = lambda finding: None
    # Called with who runs from now on: the kernel, unless it says that the reference does.
    runs: Callable[[str], None] = lambda who: None
    # The command that repeats a failing case, with the placeholders {check} and {case}.
    reproduce: str = ""
    # The checks that were asked for; all, if none was.
    selected: tuple[str, ...] = ()
    # A case that was asked for is shown as it is, not replaced by a smaller one.
    shrinks: bool = True
    # How many simpler cases are tried in place of one that fails.
    tries: int = 60
    # Of the cases, those that a check of every case examines: another process of the kernel has the others. None: all.
    own_cases: frozenset[Case] | None = None
    # The checkers of other checks that examine every case, too.
    beside: Mapping[str, Checker] = field(default_factory=dict)
    # How the kernel is called, by default in this process; and where the arguments are made, by default on its device.
    calls: Calls = None  # type: ignore[assignment]  # set below
    # The processes of a group, for an operator that communicates; or why there are none.
    ranks: Any = ""
    arguments_on: str = ""
    # The seconds that one step may take.
    timeout: float = 60.0
    # Cases for which the reference is known to be defined; those left out as it takes too long, with the reason; and
    # whether the kernel returned results on a case.
    admitted: set[Case] = field(default_factory=set)
    slow: dict[Case, str] = field(default_factory=dict)
    # Cases whose gradients are not compared, as the reference's take too long, with the reason.
    slow_gradients: dict[Case, str] = field(default_factory=dict)
    # What the reference has given while other kernels were judged; None: nothing is kept.
    known_results: KnownResults | None = None
    known: dict[Case, bool] = field(default_factory=dict)
    _observed: dict[Case, Observation | SkippedCase] = field(default_factory=dict)
    _weights: dict[Case, int] = field(default_factory=dict)
    # The checks that found something wrong.
    wrong: set[str] = field(default_factory=set)
    # What checkers said of cases.
    _judged: dict[tuple[str, Case], str | SkippedCase | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = self.calls or CallsHere(self.op, self.kernel, self.device)
        self.arguments_on = self.arguments_on or self.device

    @property
    def runs_slowly(self) -> bool:
        """Whether a kernel for GPUs runs on a CPU, where an interpreter or a simulator takes long for many programs."""
        kernel = self.op.kernels.get(self.kernel)
        return self.device == "cpu" and kernel is not None and kernel.spec.devices == ("cuda",)

    def observe(self, case: Case) -> Observation | SkippedCase:
        """Run the kernel and the reference on a case. What was run lately is not run again."""
        found = self._observed.get(case)
        if found is None:
            found = self._run(case)
            self.known[case] = _returned_results(found)
            if case.layout != FAR:  # its memory is given back
                self._keep(case, found)
        return found

    def _keep(self, case: Case, found: Observation | SkippedCase) -> None:
        self._observed[case], self._weights[case] = found, _weight(found)
        while len(self._observed) > 1 and sum(self._weights.values()) > _MOST_KEPT:
            oldest = next(iter(self._observed))
            del self._observed[oldest], self._weights[oldest]

    def admits(self, case: Case) -> bool:
        """Whether a case can be run: the kernel is applicable, and the reference defined."""
        self.progress("inputs", str(case))
        return not isinstance(self.prepare(case), SkippedCase)

    def prepare(self, case: Case, *, draw: int = 0) -> Prepared | SkippedCase:
        """The arguments of a case, with one of several draws of values, and what the reference gives."""
        if case in self.slow:
            return SkippedCase(self.slow[case])
        try:
            arguments = arguments_of(self.op.contract, case, self.arguments_on, draw=draw)
            applicable = self.calls.chosen(arguments)
        except (CheckError, ArgumentError) as error:  # no values of these sizes; lists without a tensor
            return SkippedCase(error.message)
        except torch.OutOfMemoryError as error:
            return SkippedCase(f"there is not enough memory for the arguments: {_first_line(error)}")
        if applicable != self.kernel:
            return SkippedCase("the kernel is not applicable (dtypes, when)")
        if not draw and case in self.admitted:
            return self._prepared(case, arguments)
        prepared = self.prepare_with(case, arguments)
        if not draw and isinstance(prepared, Prepared):
            self.admitted.add(case)
        return prepared

    def prepare_with(self, case: Case, arguments: Sequence[Any]) -> Prepared | SkippedCase:
        """Arguments of the sizes of a case, and what the reference gives for them.

        A case for which a step is too short is left out, as it would end the whole check; the author's own cases are
        not. That is found out once, so that all checks leave out the same cases, and none waits for them again.
        """
        prepared = self._prepared(case, arguments)
        try:
            if case in self.admitted or case.sample is not None or not self.shrinks:
                _ = prepared.expected
            elif took := takes_too_long(lambda: prepared.expected, lambda: self._compute(arguments), self.timeout):
                self.runs(KERNEL)  # the reference may have been stopped as it was about to say so
                self.slow[case] = f"the reference takes {took}, too long with --timeout {self.timeout:g}"
                return SkippedCase(self.slow[case])
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
        own = self.as_reference(self.op.contract.reference)
        known = self.known_results
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

        exactly = case is not None and case.values == EIGHTHS
        reference = Computation(own, copies, terms, decides_exactly=exactly, given=given, of_form=of_form)
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

    def as_reference(self, run: Callable[P, R]) -> Callable[P, R]:
        """A function that is not the kernel's: if it ends the process, or does not end, the kernel is not to blame."""

        def named(*arguments: P.args, **keywords: P.kwargs) -> R:
            self.runs(REFERENCE)
            try:
                return run(*arguments, **keywords)
            finally:
                self.runs(KERNEL)

        return named

    def _run(self, case: Case) -> Observation | SkippedCase:
        prepared = self.prepare(case)
        if isinstance(prepared, SkippedCase):
            return prepared
        arguments = prepared.arguments
        try:
            _ = prepared.reference.exact
        except Exception as error:
            return SkippedCase(f"the reference raises {type(error).__name__} in float64: {_first_line(error)}")
        try:
            before, call = copy_of(arguments), self.calls.observe(arguments)
        except (MemoryError, torch.OutOfMemoryError):
            return SkippedCase("there is not enough memory for copies of the arguments")
        if isinstance(call.outputs, Raised):
            if call.outputs.kind == "OutOfMemoryError":
                return SkippedCase(f"the kernel has not enough memory: {_first_line(call.outputs)}")
            if case.layout == FAR and "CUDA error" not in str(call.outputs):  # as cuBLAS refuses strides past 2**31
                return SkippedCase(_why_not_far(call.outputs))
            return Observation(case, arguments, prepared.compute, before, call.outputs, call)
        outputs = (*call.outputs, *self.op.contract.signature.written(call.passed))
        return Observation(case, arguments, prepared.compute, before, outputs, call)

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
        if case not in self.known:
            self.known[case] = _returned_results(self.observe(case))
        return self.known[case]

    def described(self, error: Exception) -> Raised:
        """An exception of the kernel in this process, as a result."""
        return CallsHere(self.op, self.kernel, self.device).described(error)

    def synchronize(self) -> None:
        """Wait for the device, so that an asynchronous error is raised in the step that caused it."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def check_each_case(
        self, check: str, checker: Checker, *, cases: Sequence[Case] | None = None, runs: bool = True
    ) -> Iterator[Finding | NotChecked]:
        """Apply a checker to every case (or some); yield each kind of failure with its smallest case, or one finding
        with the number of passed cases.

        Args:
            runs: whether the kernel runs first; else the checker gets a case that is only prepared, and runs it itself.
        """
        observe = self.observe if runs else self.prepare
        chosen = [c for c in (self.cases if cases is None else cases) if self.own_cases is None or c in self.own_cases]
        skipped: dict[str, list[tuple[Case, str]]] = {}
        failures: list[tuple[str, Case]] = []
        passed = passed_empty = ran = 0
        for case in chosen:
            wrong = self._judge(check, checker, case, failures) if runs else self._judge_alone(check, checker, case)
            if isinstance(wrong, SkippedCase):
                skipped.setdefault(kind_of_reason(wrong.why), []).append((case, wrong.why))
                continue
            ran += 1
            if wrong is None:
                passed += 1
                passed_empty += elements(self.op.contract, case) == 0
            elif not any(_explains(known, (kind_of(wrong), case)) for known in failures):
                self.suspects(self.failed(check, str(case), wrong))
                case, wrong = self._shrink(check, checker, case, wrong, observe)
                failures.append((kind_of(wrong), case))
                coverage = Coverage(ran, len(chosen))
                yield dataclasses.replace(self.failed(check, str(case), wrong), coverage=coverage)
                if len(failures) == MOST_FAILURES:
                    break
        for group in skipped.values():
            example, why = group[0]
            yield NotChecked.in_cases(check, len(group), str(example), why)
        if failures:
            self.wrong.add(check)
            return
        if passed > passed_empty or (passed and len(chosen) == 1):
            yield Finding(check, Status.PASS, message=f"{passed} cases", coverage=Coverage(ran, len(chosen)))
        elif passed:
            yield NotChecked(check, "only empty inputs could be run, which verify nothing")
        else:
            yield NotChecked(check, "no case could be run")

    def _judge(
        self, check: str, checker: Checker, case: Case, failures: Sequence[tuple[str, Case]]
    ) -> str | SkippedCase | None:
        """What a checker says of a case. The checkers beside it examine the same run, as many cases are too large to
        be kept for them."""
        if (check, case) not in self._judged:
            for name, each in {check: checker, **self.beside}.items():
                if (name, case) not in self._judged:
                    self.progress(name, str(case))
                    run = self.observe(case)
                    known = failures if name == check else ()
                    self._judged[name, case] = run if isinstance(run, SkippedCase) else _said(self, each, run, known)
        return self._judged[check, case]

    def _judge_alone(self, check: str, checker: Checker, case: Case) -> str | SkippedCase | None:
        self.progress(check, str(case))
        prepared = self.prepare(case)
        return prepared if isinstance(prepared, SkippedCase) else checker(self, prepared)

    def _shrink(
        self, check: str, checker: Checker, case: Case, wrong: str, observe: Callable[[Case], Any]
    ) -> tuple[Case, str]:
        """Replace the case by simpler ones as long as they fail in the same way."""
        kind, tries = kind_of(wrong), self.tries
        improved = self.shrinks
        while improved and tries > 0:
            improved = False
            for candidate in smaller(self.op.contract, case):
                tries -= 1
                self.progress(check, str(candidate))
                if tries < 0:
                    break
                observation = observe(candidate)
                again = None if isinstance(observation, SkippedCase) else checker(self, observation)
                if isinstance(again, str) and kind_of(again) == kind:
                    case, wrong, improved = candidate, again, True
                    break
        return case, wrong

    def failed(self, check: str, case: str, message: str) -> Finding:
        """A failing finding (inconclusive, where memory was short): its scalars, and the command to repeat it."""
        scalars = self._scalars(case)
        if scalars:
            message = f"{message}\nwith {scalars}"
        again = self.reproduce.format(check=check, case=case)
        if is_shortage(message):
            return Finding(check, Status.INCONCLUSIVE, case, message, again, remedy=WITHOUT_SHORTAGE)
        return Finding(check, Status.FAIL, case, message, again)

    def _scalars(self, case: str) -> str:
        """The values of the arguments that are no tensors, which follow from the case."""
        run = next((run for observed, run in self._observed.items() if str(observed) == case), None)
        if not isinstance(run, Observation):
            return ""
        pairs = zip(self.op.contract.signature.arguments, run.arguments, strict=True)
        return ", ".join(f"{a.name}={_plain(value)!r}" for a, value in pairs if not (a.is_tensor or a.is_group))


# The maximum number of elements in the observations that are kept.
_MOST_KEPT = 1 << 23
# A checker stops after so many kinds of failures.
MOST_FAILURES = 4


def kind_of(wrong: str) -> str:
    """What a message says, without numbers and places, so that equal kinds are probably one defect."""
    first = (wrong.splitlines() or [""])[0]
    return re.sub(r"#(, #)+", "#", re.sub(r"\d+([.e+-]+\d+)*", "#", first)).split(", ")[0]


def _explains(known: tuple[str, Case], other: tuple[str, Case]) -> bool:
    """Whether a failure that was found is as simple as another one of its kind."""
    (kind, simple), (other_kind, case) = known, other
    return (
        kind == other_kind
        and (simple.layout == "contiguous" or case.layout != "contiguous")
        and simple.values in ("", case.values)
        and simple.scalars in ("", case.scalars)
    )


def _said(
    context: Context, checker: Checker, run: Observation, failures: Sequence[tuple[str, Case]]
) -> str | SkippedCase | None:
    """What a checker says of a run: at once, where that is another case of a known failure."""
    if failures:
        run.reference.is_hasty = True
        try:
            wrong = checker(context, run)
        finally:
            run.reference.is_hasty = False
        if not isinstance(wrong, str) or any(_explains(known, (kind_of(wrong), run.case)) for known in failures):
            return wrong
    return checker(context, run)


def _returned_results(found: Observation | SkippedCase) -> bool:
    return isinstance(found, Observation) and not isinstance(found.outputs, Raised)


def _weight(found: Observation | SkippedCase) -> int:
    """The number of elements of arguments and results that an observation keeps."""
    if isinstance(found, SkippedCase):
        return 0
    return sum(t.numel() for t in tree.tensors([list(found.arguments), list(found.expected)]))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def kind_of_reason(why: str) -> str:
    """The common part of reasons that differ only in a size: the text before the first digit."""
    return re.split(r"\d", why, maxsplit=1)[0]


def _why_not_far(raised: Raised) -> str:
    """Why a kernel does not take rows that lie far apart; of one in a simulator, the first of its findings."""
    if raised.kind != "SimulatorError":
        return f"the kernel refuses rows that lie so far apart: {_first_line(raised)}"
    finding = " ".join(str(raised).splitlines()[1:2])
    return f"its offsets are wrong past 2³¹ elements, where rows lie so far apart: {finding.strip()[:200]}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
