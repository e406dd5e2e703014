"""The check "sanitizer": faults that values do not show are found with their line, and right kernels left alone."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
import torch

import opwright as ow
from opwright.backends import instrumented
from opwright.checks.context import Context
from opwright.checks.request import Reports
from opwright.checks.sanitizer import sanitizer
from opwright.checks.sanitizer.child import MARK
from opwright.machine import this_machine
from opwright.results import Refused, Status
from opwright.results.outcomes import Instrumented, Tool
from opwright.target import Target
from tests.checks.sanitizer.operators import ENDS, RIGHT, WRONG, double
from tests.sampled import quick


@pytest.fixture(scope="module")
def verdicts():
    # Two builds of each kernel, and a process in which torch is imported under AddressSanitizer.
    kernels = ["reads_on", "overflows", "right_with_tiles"]
    return {v.kernel: v for v in ow.check(double, kernels=kernels, checks=["sanitizer"]).verdicts}


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("kernel", ["reads_on", "overflows"])
def test_a_fault_that_no_value_shows_is_found_with_its_line(verdicts, kernel):
    message, line = WRONG[kernel]
    (failed,) = [f for f in verdicts[kernel].findings if f.status.value == "fail"]
    assert failed.check == "sanitizer"
    assert message in failed.message
    assert line in failed.message
    assert "kernels.cpp:" in failed.message


@pytest.mark.slow
@pytest.mark.compiler
def test_a_right_kernel_is_left_alone(verdicts):
    assert verdicts["right_with_tiles"].status.value == "pass", verdicts["right_with_tiles"].findings


@pytest.mark.exhaustive
@pytest.mark.compiler
def test_each_fault_and_each_right_kernel():
    found = {v.kernel: v for v in ow.check(double, checks=["sanitizer"], kernels=[*WRONG, *RIGHT]).verdicts}
    for kernel, (message, line) in WRONG.items():
        assert any(message in f.message and line in f.message for f in found[kernel].findings), found[kernel].findings
    for kernel in RIGHT:
        assert found[kernel].status.value == "pass", found[kernel].findings


@pytest.mark.exhaustive
@pytest.mark.slow  # builds of four kernels, and processes in which torch is imported under AddressSanitizer
@pytest.mark.compiler
def test_a_kernel_that_ends_its_process_under_the_tool_fails_and_the_others_keep_their_verdicts():
    kernels = [*ENDS, "right_deep"]
    found = {v.kernel: v for v in ow.check(double, checks=["metadata", "sanitizer"], kernels=kernels).verdicts}
    for kernel, message in ENDS.items():
        (failed,) = found[kernel].failures
        assert failed.check == "sanitizer", failed
        assert failed.case, failed
        assert message in failed.message
        assert any(f.check == "metadata" and f.status is Status.PASS for f in found[kernel].findings)
    assert found["right_deep"].status is Status.PASS, found["right_deep"].findings


@pytest.mark.slow
def test_without_being_asked_for_it_is_no_part_of_a_quick_check():
    (verdict,) = ow.check(double, kernels=["in Python"], checks=[]).verdicts
    assert not any(f.check == "sanitizer" for f in verdict.findings)


def test_a_language_that_no_tool_watches_is_told():
    (verdict,) = ow.check(double, kernels=["in Python"], checks=["sanitizer"]).verdicts
    (told,) = [n for n in verdict.not_checked if n.check == "sanitizer"]
    assert "no tool watches what python kernels access" in told.why


# -- how the process ends ---------------------------------------------------------------------------------------------

ENDINGS = {
    "abort": ("import os; os.abort()", Status.FAIL, "ended its process with SIGABRT; its last output:\nof the kernel"),
    "exit": ("raise SystemExit(3)", Status.FAIL, "ended its process with exit code 3"),
    "fault": ("import signal, os; os.kill(os.getpid(), signal.SIGSEGV)", Status.FAIL, "SIGSEGV"),
    # Which the system does where memory is short.
    "killed": ("import signal, os; os.kill(os.getpid(), signal.SIGKILL)", Status.INCONCLUSIVE, "ended early"),
    "hangs": (
        "import time; open(sys.argv[1], 'w').close(); time.sleep(600)",
        Status.INCONCLUSIVE,
        "did not end in time under AddressSanitizer",
    ),
    "afterwards": ("say('returned'); raise SystemExit(1)", Status.INCONCLUSIVE, "ended early"),
    "stack": (
        "print('==1==ERROR: AddressSanitizer: stack-overflow on address 0x7ffd (pc 0x1 bp 0x2 sp 0x3 T0)\\n"
        "    #0 0x55d in deep(int) /a/k.cpp:7', flush=True); os.abort()",
        Status.FAIL,
        "AddressSanitizer: stack-overflow",
    ),
}
PROCESS = """
import json, os, sys
def say(*what):
    print({mark!r}, json.dumps(what), flush=True)
say("case", "n=7")
say("returned")
say("case", "n=8")
print("of the kernel", flush=True)
{ending}
"""


class _Clock:
    """Stands still until a file is there, and what was printed before it has been read; then an hour has gone by."""

    def __init__(self, file):
        self.file, self.questions = file, 0

    def monotonic(self):
        self.questions += self.file.exists()
        return 3600.0 if self.questions > 6 else 0.0


@pytest.mark.parametrize("name", ENDINGS)
def test_how_the_process_ends(name, monkeypatch, tmp_path):
    ending, status, message = ENDINGS[name]
    hangs = tmp_path / "hangs"
    monkeypatch.setattr(sanitizer, "time", _Clock(hangs))
    monkeypatch.setattr(sanitizer, "_TICK_S", 0.1)
    told: list[str] = []
    context = Context(double, "in Python", Target("cpu"), [], reports=Reports(lambda name, *_: told.append(name)))
    command = [sys.executable, "-c", PROCESS.format(mark=MARK, ending=ending), str(hangs)]
    ended = sanitizer._run(context, Instrumented(Tool.ADDRESS_SANITIZER), command, [])
    (found,) = sanitizer._wrong(context, Tool.ADDRESS_SANITIZER, ended)
    assert (found.status, found.case) == (status, "n=8")
    assert message in found.message
    assert told  # a check that says nothing would be taken for one that hangs


def test_the_exit_code_of_compute_sanitizer_is_not_the_kernels():
    context = Context(double, "in Python", Target("cpu"), [])
    lines = [f'{MARK} ["case", "n=8"]', "========= Internal Sanitizer Error: no memory"]
    (found,) = sanitizer._wrong(context, Tool.COMPUTE_SANITIZER, sanitizer._Ending(lines, 255))
    assert found.status is Status.INCONCLUSIVE
    assert "Internal Sanitizer Error" in found.message


# -- compute-sanitizer ------------------------------------------------------------------------------------------------


def _lines(*cases):
    """What a process prints: a case, with what the tool says in it, and what the kernel raised."""
    for case, said, raised in cases:
        yield f"{MARK} {json.dumps(['case', case])}"
        yield f"{MARK} {json.dumps(['memory', 'x', 4096, 132])}"
        yield from said.splitlines()
        if raised:
            yield f"{MARK} {json.dumps(['raised', raised])}"
        yield f"{MARK} {json.dumps(['returned'])}"
    yield f"{MARK} {json.dumps(['end'])}"


OUTSIDE = """\
========= Invalid __global__ read of size 4 bytes
=========     at reads_on(const float *, float *, int)+0x90 in /a/k.cu:9
=========     by thread ({thread},0,0) in block (0,0,0)
=========     Address 0x1084 is out of bounds
========="""


def test_an_error_that_is_printed_late_is_of_the_case_that_raised():
    context = Context(double, "in Python", Target("cpu"), [])
    late = OUTSIDE.format(thread=33) + "\n" + OUTSIDE.format(thread=34)
    lines = list(_lines(("n=1", "", ""), ("n=33", "", "unspecified launch failure"), ("n=64", late, "the same")))
    (found,) = sanitizer._wrong(context, Tool.COMPUTE_SANITIZER, sanitizer._Ending(lines, 0))
    assert (found.status, found.case) == (Status.FAIL, "n=33")
    assert "reads 4 bytes of global memory, just after the end of 'x'\nk.cu:9" in found.message
    assert "reads_on, block (0,0,0), thread (33,0,0)" in found.message


def test_an_error_is_of_the_case_in_which_the_process_ended():
    context = Context(double, "in Python", Target("cpu"), [])
    lines = list(_lines(("n=1", "", ""), ("n=33", OUTSIDE.format(thread=33), "")))[
        :-2
    ]  # neither returned nor at its end
    (found,) = sanitizer._wrong(context, Tool.COMPUTE_SANITIZER, sanitizer._Ending(lines, 1))
    assert (found.status, found.case) == (Status.FAIL, "n=33")
    assert "just after the end of 'x'" in found.message


def test_a_run_without_errors_says_nothing():
    context = Context(double, "in Python", Target("cpu"), [])
    ending = sanitizer._Ending(list(_lines(("n=1", "========= ERROR SUMMARY: 0 errors", ""))), 0)
    assert list(sanitizer._wrong(context, Tool.COMPUTE_SANITIZER, ending)) == []


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts a program in the place of compute-sanitizer."""

    def put(script):
        program = tmp_path / "compute-sanitizer"
        program.write_text(f"#!{sys.executable}\n{textwrap.dedent(script)}")
        program.chmod(0o755)
        monkeypatch.setattr(instrumented, "_compute_sanitizer", lambda: str(program))

    return put


def test_a_tool_that_is_not_there_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setattr(instrumented, "_compute_sanitizer", lambda: None)
    found = instrumented.compute_sanitizer(barriers=True)
    assert isinstance(found, Refused)
    assert "pip install nvidia-cuda-sanitizer-api" in str(found)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("print('========= Error: Device not supported')", "Error: Device not supported"),  # as in some containers
        ("raise SystemExit(9)", "exit code 9"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
    ],
)
def test_a_tool_that_does_not_see_a_faults_on_gpu_is_not_believed(tool, monkeypatch, script, why):
    monkeypatch.setattr(instrumented, "_TRIAL_S", 1 if "sleep" in script else 60)
    tool(script)
    found = instrumented.compute_sanitizer(barriers=False)
    assert isinstance(found, Refused)
    assert why in str(found)
    assert "does not see a wrong access" in str(found)


SEES = """
import sys
said = {"memcheck": "Invalid __global__ read of size 4 bytes", "racecheck": "Error: Race reported between"}
print("=========", said.get(sys.argv[sys.argv.index("--tool") + 1]))
"""


def test_of_its_tools_those_run_that_see_a_fault_made_for_them(tool):
    tool(SEES)
    for barriers, names in ((False, ["memcheck"]), (True, ["memcheck", "racecheck"])):
        found = instrumented.compute_sanitizer(barriers=barriers)
        assert isinstance(found, Instrumented)
        assert [*found.commands] == names
        assert [command[command.index("--tool") + 1] for command in found.commands.values()] == names


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", quick(instrumented.faults_on_gpu.FAULTS, 0, 1))
def test_a_fault_made_for_a_tool_compiles_and_nothing_but_it_is_wrong(name, monkeypatch):
    text = instrumented.faults_on_gpu.kernel(name)
    assert ow.cuda_module(text).compile("sm_90").entries
    with pytest.raises(ow.errors.SimulatorError) as caught:
        ow.cuda_module(text)["fault"][1, 64](torch.ones(64), torch.ones(64))
    kind = {"memcheck": "out-of-bounds", "racecheck": "race", "synccheck": "barrier"}[name]
    assert {f.kind for f in caught.value.findings} == {kind}


def test_the_tool_as_it_is_installed_refuses_a_machine_without_a_gpu():
    if instrumented._compute_sanitizer() is None or this_machine().has_gpu:
        pytest.skip("there is no compute-sanitizer, or a GPU")
    found = instrumented.compute_sanitizer(barriers=True)
    assert isinstance(found, Refused)


@pytest.mark.gpu
def test_on_a_gpu():
    from tests.checks.sanitizer import operators_on_gpu as on_gpu

    usable = instrumented.compute_sanitizer(barriers=True)
    if isinstance(usable, Refused):
        pytest.skip(str(usable))
    found = {v.kernel: v for v in ow.check(on_gpu.double, device="cuda", checks=["sanitizer"]).verdicts}
    for kernel in on_gpu.RIGHT:
        assert found[kernel].status is Status.PASS, (found[kernel].findings, found[kernel].not_checked)
    for kernel, messages in on_gpu.WRONG.items():
        (failed,) = found[kernel].failures
        for message in messages:
            assert message in failed.message
