"""References that take long: what they cannot do in time is left out and said, and the kernel is not blamed."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.limits import time_limit
from opwright.checks.limits.time_limit import takes_too_long, time_of
from opwright.checks.observation import Prepared, SkippedCase
from opwright.checks.request import Request
from opwright.contract.inputs.text import parse_case
from opwright.results import Status
from opwright.target import Target
from tests.sampled import quick


@ow.op("slow_references::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    if x.shape[0] == 65_537:
        until = time.process_time() + 1.2
        while time.process_time() < until:
            pass
    while x.shape[0] == 300_007:
        pass
    return 2 * x


@twice.python(name="right")
def _(x):
    return x + x


@twice.python(name="wrong from 2,000 elements on")
def _(x):
    return torch.where(torch.arange(x.shape[0]) == 2_000, x, 2 * x)


@pytest.mark.slow  # a reference that does not return is stopped after ten seconds
def test_cases_on_which_the_reference_takes_too_long_are_left_out_and_named() -> None:
    report = ow.check(twice, checks=["values", "metadata"], device="cpu", timeout=20)
    right, wrong = report.verdicts
    assert right.status is Status.PASS, right.findings
    left_out = [n.reason for n in right.not_checked if "the reference takes" in n.reason]
    assert any("takes more than 10 s" in reason for reason in left_out)
    assert any("takes 1 s" in reason for reason in left_out)
    assert all("too long with --timeout 20" in reason for reason in left_out)
    assert wrong.status is Status.FAIL


class _SlowInDouble(torch.autograd.Function):
    """Twice its argument; the derivative of a long one does not return in float64, as some of torch's take as good as
    forever where a mode sees them."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        while grad.dtype is torch.float64 and len(grad) > 10_000:
            pass
        return 2 * grad


@ow.op("slow_references::slow_gradient")
def slow_gradient(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return _SlowInDouble.apply(x)


@pytest.mark.slow  # gradients that do not return are stopped after two seconds each
def test_gradients_that_take_too_long_are_left_out_and_others_compared() -> None:
    slow_gradient.python(lambda x: x + x, name="right")
    (verdict,) = ow.check(slow_gradient, checks=["gradients", "afterwards"], device="cpu", timeout=6).verdicts
    assert verdict.status is Status.PASS, verdict.findings
    assert {f.check for f in verdict.findings} == {"gradients", "afterwards"}
    assert any("gradient takes more than 2 s, too long with --timeout 6" in n.reason for n in verdict.not_checked)
    slow_gradient.register_autograd(lambda ctx, grad: torch.where(torch.arange(len(grad)) == 3, grad, 2 * grad))
    (verdict,) = ow.check(slow_gradient, checks=["gradients"], device="cpu", timeout=6).verdicts
    assert verdict.status is Status.FAIL


@pytest.mark.slow  # each call of the reference takes 1.2 seconds, and there are many
def test_a_case_that_was_asked_for_runs_all_the_same() -> None:
    (verdict,) = ow.check(
        twice, checks=["values"], device="cpu", timeout=20, kernels=["right"], case="n=65537 layout=contiguous"
    ).verdicts
    assert verdict.status in (Status.PASS, Status.THIN), verdict.findings
    assert not any("the reference takes" in n.reason for n in verdict.not_checked)


# As within one call of torch: the time limit raises an error only after it.
def cannot_be_stopped(seconds: float) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(seconds)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@ow.op("slow_references::root")
def root(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    if x.is_meta:  # where a check counts its operations
        time.sleep(60)
    return x.sqrt().sum() + x


@root.python(name="in another order")
def _(x):
    return x + x.flip(0).sqrt().sum()


@pytest.mark.slow  # waits for a time limit
def test_cases_whose_operations_cannot_be_counted_in_time_are_left_out() -> None:
    (verdict,) = ow.check(root, checks=["values"], device="cpu", timeout=5).verdicts
    assert verdict.status is Status.PASS, verdict.findings
    assert any("the reference does not return within 5 s for n=" in n.reason for n in verdict.not_checked)


@ow.op("slow_references::never")
def never(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    if type(x) is torch.Tensor:  # not where it is traced
        cannot_be_stopped(60)
    return 2 * x


@pytest.mark.slow  # waits for a time limit, some times
def test_a_reference_that_never_returns_is_no_kernel_that_hangs() -> None:
    never.python(lambda x: x + x, name="right")
    (verdict,) = ow.check(never, checks=["values"], device="cpu", timeout=3).verdicts
    assert verdict.status is Status.INCONCLUSIVE
    assert "the reference did not return within 3 s" in verdict.findings[0].message


@ow.op("slow_references::uninterrupted")
def uninterrupted(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    cannot_be_stopped(60 if x.shape[0] > 10_000 else 0)
    return 2 * x


@uninterrupted.python(name="right")
def _(x):
    return x + x


@uninterrupted.python(name="wrong from 200 elements on")
def _(x):
    return torch.where(torch.arange(x.shape[0]) == 200, x, 2 * x)


@pytest.mark.slow  # a reference of 60 seconds is ended after five
def test_a_case_on_which_the_reference_was_ended_is_left_out_with_all_longer_ones() -> None:
    right, wrong = ow.check(uninterrupted, checks=["values", "memory"], device="cpu", timeout=5).verdicts
    assert right.status is Status.PASS, right.findings
    assert any("the reference does not return within 5 s" in n.reason for n in right.not_checked)
    assert wrong.status is Status.FAIL
    assert {f.status for f in wrong.findings} <= {Status.PASS, Status.FAIL}


@ow.op("slow_references::of_three")
def of_three(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    cannot_be_stopped(60 if x.shape[0] == 3 else 0)
    return 2 * x


@of_three.python(name="wrong from three elements on")
def _(x):
    return x + x + (x.shape[0] >= 3)


@pytest.mark.slow  # waits for a time limit
def test_a_short_case_that_is_left_out_with_all_longer_ones_leaves_too_little() -> None:
    (verdict,) = ow.check(of_three, checks=["values"], device="cpu", timeout=3).verdicts
    assert verdict.status is Status.THIN
    assert any("did not return for n=3" in f.message for f in verdict.findings)


class _UninterruptedInDouble(torch.autograd.Function):
    """Twice its argument; the derivative of a long one does not return in float64, and cannot be stopped."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        cannot_be_stopped(60 if grad.dtype is torch.float64 and len(grad) > 1_030 else 0)
        return 2 * grad


@ow.op("slow_references::uninterrupted_gradient")
def uninterrupted_gradient(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return _UninterruptedInDouble.apply(x)


@uninterrupted_gradient.python(name="wrong from 1,100 elements on")
def _(x):
    return torch.where(torch.arange(x.shape[0]) == 1_100, x, 2 * x)


@pytest.mark.slow  # a gradient of 60 seconds is ended after three
def test_a_failure_on_a_case_that_is_left_out_afterwards_is_not_lost() -> None:
    (verdict,) = ow.check(uninterrupted_gradient, checks=["values", "gradients"], device="cpu", timeout=3).verdicts
    assert verdict.status is Status.FAIL
    assert [f.status for f in verdict.findings if f.check == "values"] == [Status.FAIL]
    assert any("the reference does not return within 3 s" in n.reason for n in verdict.not_checked)


@ow.op("slow_references::once")
def once(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    if x.shape[0] > 4_000 and type(x) is torch.Tensor and not _called:
        _called.append(x.shape[0])
        cannot_be_stopped(4)
    return 2 * x


_called: list[int] = []


@pytest.mark.slow  # waits for a time limit
def test_what_did_not_return_in_less_time_is_tried_with_more() -> None:
    once.python(lambda x: x + x, name="right")
    (short,) = ow.check(once, checks=["values"], device="cpu", timeout=2).verdicts
    assert any("the reference does not return within 2 s" in n.reason for n in short.not_checked)
    (long,) = ow.check(once, checks=["values"], device="cpu", timeout=40).verdicts
    assert long.status is Status.PASS
    assert not any("does not return" in n.reason for n in long.not_checked)


# 12 seconds are within a step of 20, but not two calls.
@ow.op("slow_references::thrice")
def thrice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    until = time.process_time() + 12 * (x.shape[0] > 1_000)
    while time.process_time() < until:
        pass
    return 3 * x


@thrice.python(name="right")
def _(x):
    return x + x + x


@pytest.mark.slow  # a reference of 12 seconds is stopped after ten, in the kernel's process and in the checker process
@pytest.mark.parametrize("check", ["memory", pytest.param("values", marks=pytest.mark.exhaustive)])
def test_a_reference_that_is_too_slow_to_be_called_twice_in_a_step_is_no_kernel_that_hangs(check: str) -> None:
    (verdict,) = ow.check(thrice, checks=[check], device="cpu", timeout=20).verdicts
    assert {f.status for f in verdict.findings} == {Status.PASS}, verdict.findings
    reasons = [n.reason for n in verdict.not_checked if "the reference takes" in n.reason]
    assert any("takes more than 10 s, too long with --timeout 20" in reason for reason in reasons), reasons


class Clock:
    """Time that passes only where a test says so; the alarms that were set."""

    def __init__(self) -> None:
        self.now = self.used = 0.0
        self.alarms: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used

    def passes(self, seconds: float, *, used: float | None = None) -> Callable[[], None]:
        """A function that takes so long, and uses the processor so long."""

        def run() -> None:
            self.now += seconds
            self.used += seconds if used is None else used

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    def setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        clock.alarms += [seconds] if seconds else []
        return 0.0, 0.0

    monkeypatch.setattr(time_limit, "time", clock)
    monkeypatch.setattr(signal, "setitimer", setitimer)
    return clock


# Of the first call and the second: seconds, and those of the processor; --timeout; what is said; when they are stopped.
CALLS = [
    ((0.9, 0.9), (0.9, 0.9), 6, "", [4.8]),
    ((4, 4), (4, 4), 6, "4 s", [4.8, 0.8]),
    ((4, 4), (0.5, 0.5), 6, "", [4.8, 0.8]),  # which has compiled something
    ((4, 4), (1.2, 1.2), 60, "", [30, 26]),  # a fortieth is 1.5
    ((4, 4), (1.6, 1.6), 60, "2 s", [30, 26]),
    ((4, 16), (1.6, 6.4), 60, "2 s", [30, 26]),  # in several threads
    ((40, 1.2), (0, 0), 60, "", [30]),  # the machine is busy
    ((40, 0), (0, 0), 60, "", [30]),  # it waits
    ((9, 9), (9, 9), 12, "9 s", [9.6, 0.6]),
    ((9, 9), (9, 9), 16, "9 s", [10, 1]),
    ((11, 11), (9, 9), 12, "11 s", [9.6]),  # one call of torch, within which nothing is stopped
]


@pytest.mark.parametrize(("first", "second", "timeout", "said", "stops"), CALLS)
def test_both_calls_end_before_the_step_and_only_their_own_time_counts(
    clock: Clock, first: tuple[float, float], second: tuple[float, float], timeout: float, said: str, stops: list[float]
) -> None:
    run, again = clock.passes(first[0], used=first[1]), clock.passes(second[0], used=second[1])
    assert takes_too_long(run, again, timeout) == said
    assert clock.alarms == pytest.approx(stops)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All time is a function's own, however busy the machine is; and afterwards, no alarm is left."""
    monkeypatch.setattr(time, "process_time", time.monotonic)
    before = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) is before


def forever() -> None:
    while True:
        pass


def swallows() -> None:
    try:
        forever()
    except:  # noqa: E722  # as such code is found
        forever()


def swallows_and_returns() -> None:
    try:
        forever()
    except BaseException:
        return


def raises_another() -> None:
    try:
        forever()
    except BaseException as error:
        raise RuntimeError("no result") from error


def takes_long_to_clean_up() -> None:
    try:
        forever()
    finally:
        forever()


class Destroyed:
    def __del__(self) -> None:
        forever()


def swallows_in_a_destructor() -> None:
    Destroyed()
    forever()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# Each waits for a second.
@pytest.mark.parametrize(
    "run",
    quick(
        [forever, swallows, swallows_and_returns, raises_another, takes_long_to_clean_up, swallows_in_a_destructor],
        1,
        3,
        5,
    ),
)
def test_what_does_not_return_is_stopped_whatever_it_catches(counted: None, run: Callable[[], None]) -> None:
    assert time_of(run, 0.1) == math.inf
    until = time.monotonic() + 0.6  # no alarm comes later
    while time.monotonic() < until:
        pass


def test_what_returns_or_raises_is_left_alone(counted: None) -> None:
    assert time_of(lambda: None, 60) < 60
    with pytest.raises(ZeroDivisionError):
        time_of(lambda: 1 // 0, 60)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, shells have it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            time_of(lambda: signal.raise_signal(signal.SIGINT), 60)
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_alarm_comes_all_the_same() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    alarm = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        assert time_of(forever, 0.1) == math.inf
        while not rung:
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *alarm)


def test_a_function_that_other_work_slows_down_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alarms come, but it has not used the processor."""
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    returned = []

    def light() -> None:
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            pass
        returned.append(1)

    assert time_of(light, 0.1, 0.05) == 0
    assert returned


@pytest.fixture
def context() -> Context:
    return Context(timed, "right", Target("cpu"), [], Request("quick", timeout=6))


# Called by the reference below, and how often it was.
SLOW: list[Callable[[], None]] = []
CALLED: list[int] = []


@ow.op("slow_references::timed")
def timed(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    CALLED.append(x.shape[0])
    for run in SLOW:
        run()
    return x * 4


@timed.python(name="right")
def _(x):
    return x * 4


def test_a_slow_case_is_left_out_of_all_checks_and_not_run_again(
    clock: Clock, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SLOW", [clock.passes(2)])
    case = parse_case(timed.contract, "n=7 layout=contiguous")
    CALLED.clear()
    for draw in (0, 1, 0):
        left_out = context.prepare(case, draw=draw)
        assert isinstance(left_out, SkippedCase)
        assert left_out.why == "the reference takes 2 s, too long with --timeout 6"
    assert len(CALLED) == 2
    assert not context.admits(case)


def test_a_case_that_one_check_ran_is_not_left_out_of_another(
    clock: Clock, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = parse_case(timed.contract, "n=7 layout=contiguous")
    assert isinstance(context.prepare(case), Prepared)
    monkeypatch.setitem(globals(), "SLOW", [clock.passes(2)])
    assert isinstance(context.prepare(case, draw=1), Prepared)
    assert not context.records.slow


def test_a_case_of_the_author_s_is_not_timed(clock: Clock, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SLOW", [clock.passes(100)])
    context.request = dataclasses.replace(context.request, shrinks=False)
    assert isinstance(context.prepare(parse_case(timed.contract, "n=7 layout=contiguous")), Prepared)
    assert not clock.alarms
