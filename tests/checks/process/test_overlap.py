"""The kernel runs on a case while the one before is compared: nothing is called twice, and who fails is named."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.kernel_calls import Call, CallsHere
from opwright.checks.outputs import values
from opwright.checks.request import Request
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.text import parse_case
from opwright.results import Finding, Status
from opwright.target import Target

RAISES = 5000


@ow.op("overlap::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    if type(x) is torch.Tensor and x.shape[0] == RAISES:
        raise ValueError("not of this size")
    if type(x) is torch.Tensor and x.shape[0] in (127, 128, 129):
        time.sleep(0.3)  # so that a kernel that ends meanwhile does so while this runs
    return 2 * x


@twice.python(name="right")
def _(x):
    return x + x


@twice.python(name="ends")
def _(x):
    if x.shape[0] == 128:
        os._exit(7)
    return x + x


@twice.python(name="ends the process that checks it")
def _(x):
    if x.shape[0] == 128:
        os.kill(os.getppid(), 9)
    return x + x


@twice.python(name="ends once and then hangs")
def _(x):
    mark = os.environ.get("OPWRIGHT_TEST_MARK", "")
    if mark and x.shape[0] == 128:
        if os.path.exists(mark):
            time.sleep(60)
        with open(mark, "w"):
            os._exit(7)
    return x + x


@ow.op("overlap::slow_twice")
def slow_twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    if (
        type(x) is torch.Tensor
        and x.shape[0] >= 3
        and not Path(os.environ.get("OPWRIGHT_TEST_ONCE", "") + ".over").exists()
    ):
        time.sleep(0.4)
    return 2 * x


def _siblings() -> list[int]:
    """The processes with the same parent, of which one compares this one's results."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found += [int(folder.name)] if parent == os.getppid() and int(folder.name) != os.getpid() else []
    return found


def _stop_them_for_a_while() -> None:
    for number, seconds in ((signal.SIGSTOP, 4.5), (signal.SIGCONT, 0)):
        time.sleep(0.2)
        for pid in _siblings():
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        time.sleep(seconds)
    Path(os.environ["OPWRIGHT_TEST_ONCE"] + ".over").touch()


@slow_twice.python(name="stops who checks it, once")
def _(x):
    once = Path(os.environ["OPWRIGHT_TEST_ONCE"])
    if x.shape[0] == 2 and not once.exists():
        once.touch()
        threading.Thread(target=_stop_them_for_a_while, daemon=True).start()
    return x + x + (x.shape[0] >= 3)


class Noted(CallsHere):
    """Calls in this process, in the order in which they are begun and observed."""

    def __init__(self) -> None:
        super().__init__(twice, "right", "cpu")
        self.begun: list[int] = []
        self.observed: list[int] = []
        self.arguments: dict[int, object] = {}

    def begin(self, arguments) -> None:
        self.begun.append(len(arguments[0]))
        self.arguments[len(arguments[0])] = arguments

    def observe(self, arguments) -> Call:
        size = len(arguments[0])
        self.observed.append(size)
        if size in self.arguments:
            assert self.arguments[size] is arguments  # what was begun is what is observed
        return super().observe(arguments)


@pytest.mark.parametrize("overlaps", [True, False])
def test_each_case_is_begun_once_while_the_one_before_is_compared(overlaps: bool) -> None:
    calls = Noted()
    context = Context(twice, "right", Target("cpu"), [], Request(overlaps=overlaps), calls=calls)
    small = (case for case in cases(twice.contract, "quick") if case.is_plain and case.layout == "contiguous")
    chosen = {size: case for case in small for _, size in case.sizes if size < 200}
    context.cases = list(chosen.values())
    assert len(context.cases) > 3
    for case in context.cases:
        assert context.admits(case)
    (found,) = check_each_case(context, "values", values.find_error)
    assert isinstance(found, Finding)
    assert found.status is Status.PASS
    assert calls.observed == [*chosen]
    assert calls.begun == ([*chosen][1:] if overlaps else [])


def test_a_case_on_which_the_reference_raises_is_not_begun() -> None:
    calls = Noted()
    context = Context(twice, "right", Target("cpu"), [], calls=calls)
    for size in (RAISES, 5):
        context.begin(parse_case(twice.contract, f"n={size}"))
    assert calls.begun == [5]


@pytest.mark.slow  # whole checks, one of them twice
@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("ends", "exit code 7"),
        pytest.param("ends the process that checks it", "the kernel ", marks=pytest.mark.exhaustive),
    ],
)
def test_a_kernel_that_ends_beside_the_reference_is_named_with_its_case(kernel: str, said: str) -> None:
    right, wrong = ow.check(twice, checks=["values"], kernels=["right", kernel], device="cpu").verdicts
    assert right.status is Status.PASS
    assert wrong.status is Status.FAIL
    finding = wrong.findings[-1]
    assert said in finding.message
    assert finding.case.startswith("n=128 ")


@pytest.mark.slow  # waits for a time limit
def test_a_kernel_that_ends_and_hangs_when_it_runs_again_has_ended(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_TEST_MARK", str(tmp_path / "mark"))
    (verdict,) = ow.check(
        twice, checks=["metadata"], kernels=["ends once and then hangs"], device="cpu", timeout=4
    ).verdicts
    assert verdict.status is Status.FAIL
    assert "exit code 7" in verdict.findings[-1].message


@pytest.mark.slow  # 80 s: the stopped check runs into its time limit, and again alone, with a reference that sleeps
@pytest.mark.exhaustive  # its seconds follow from how busy the machine is
def test_a_checker_that_is_stopped_is_no_slow_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the cases would be left out on which the kernel is wrong."""
    monkeypatch.setenv("OPWRIGHT_TEST_ONCE", str(tmp_path / "once"))
    (verdict,) = ow.check(slow_twice, checks=["values"], device="cpu", timeout=3, level="smoke").verdicts
    assert (tmp_path / "once").exists()
    assert verdict.status is Status.FAIL
    assert not any("does not return" in n.reason for n in verdict.not_checked)
