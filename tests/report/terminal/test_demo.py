"""The demo's screen: a matrix first, a line for each system, the wrong kernel with its line, times, and hints."""

from __future__ import annotations

import dataclasses
import io

import pytest

from opwright.report.terminal.console import make_console
from opwright.report.terminal.demo import Missing, Story, System, WrongOnPurpose, show_story
from opwright.results import (
    BenchReport,
    CheckReport,
    Comparison,
    ComparisonVerdict,
    Estimate,
    Finding,
    Status,
    Verdict,
)
from tests.report.sample_records import MACHINE, make_measurement, make_verdict

SIMULATED = "the kernel raised SimulatorError\nscale.cu:5: out-of-bounds: reads 4 bytes\n    out[i] = a * x[i];"


def verdict(language: str, **changes: object) -> Verdict:
    return make_verdict(**{"kernel": language, "backend": language, "device": "cpu", **changes})


def wrong(*findings: Finding) -> WrongOnPurpose:
    found = findings or (Finding("values", Status.FAIL, "n=1", SIMULATED, "opwright check wrong"),)
    failed = Status.FAIL if any(f.status is Status.FAIL for f in found) else Status.PASS
    about = verdict("cuda", op="wrong::scale", device="cpu-sim", status=failed, findings=found)
    return WrongOnPurpose(about, "/somewhere/wrong/scale.cu", "It asks i <= n where it should ask i < n.")


def make_story(**changes: object) -> Story:
    systems = (
        System("1-D convolution", (
            verdict("mojo"), verdict("cpp"), verdict("cuda", device="cpu-sim"),
            verdict("triton", reason="in Triton's interpreter"),
        )),
        System("k-means in NumPy", (verdict("numpy", op="gallery::kmeans"),)),
        System("elementwise add", (
            verdict("cuda", kernel="f32", op="gallery::add", device="cuda"),
            verdict("max", op="gallery::add", status=Status.REFUSED, reason="MAX is not installed"),
        )),
    )  # fmt: skip
    ours = make_measurement(
        kernel="cpp", backend="cpp", device="cpu", gpu_us=None, host_us=Estimate(10, 9, 11, 40),
        comparisons={"reference": Comparison(ComparisonVerdict.FASTER, 0.25, 0.2, 0.3)},
    )  # fmt: skip
    theirs = make_measurement(kernel="reference", backend="torch", gpu_us=None, host_us=Estimate(40, 39, 41, 40))
    content = {
        "systems": systems,
        "checked": CheckReport(MACHINE, tuple(v for system in systems for v in system.verdicts)),
        "wrong": wrong(),
        "times": BenchReport(MACHINE, (ours, theirs), settings={"threads": "2"}),
        "missing": (Missing(("max",), "MAX is not installed", "pip install 'opwright[max]'"),),
        "commands": (("opwright check x", "every check"),),
        "seconds": 41.4,
        **changes,
    }  # fmt: skip
    return Story(**content)


def shown(story: Story, width: int = 80) -> str:
    stream = io.StringIO()
    show_story(make_console(file=stream, width=width, color_system=None), story)
    return stream.getvalue()


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_story_is_told_in_order_and_begins_with_the_matrix():
    text = shown(make_story())
    order = [
        "opwright on NVIDIA H100", "gallery::", "✓ passed   – cannot run here", "✓ 1-D convolution",
        "A kernel that is wrong on purpose", "/somewhere/wrong/scale.cu", "scale.cu:5: out-of-bounds",
        "One comparison of times", "→ pip install 'opwright[max]'", "opwright check x", "6 passed, 1 cannot run here",
    ]  # fmt: skip
    found = [text.index(part) for part in order]
    assert found == sorted(found)
    assert text.endswith("6 passed, 1 cannot run here; the wrong one was found; 41 s\n")


def test_a_system_is_a_line_with_what_ran_in_which_language():
    lines = shown(make_story()).splitlines()
    assert "  ✓ 1-D convolution   Mojo, C++; CUDA simulated; Triton interpreted" in lines
    assert "  ✓ k-means in NumPy  NumPy compiled to C++" in lines
    assert "  ✓ elementwise add   CUDA on the GPU; MAX: cannot run here" in lines


def test_the_checks_that_only_one_system_has_stand_in_its_line():
    found = tuple(Finding(name, Status.PASS) for name in ("values", "torch.compile", "gradients"))
    systems = (System("sine", (verdict("cpp", findings=found),)),)
    assert "C++; under torch.compile; with gradients" in shown(make_story(systems=systems))


def test_a_system_that_fails_is_marked_and_its_failure_is_shown():
    finding = Finding("values", Status.FAIL, "n=5", "1 of 5 elements differ", "opwright check y")
    failing = verdict("mojo", status=Status.FAIL, findings=(finding,))
    systems = (System("1-D convolution", (failing, verdict("cpp"))),)
    text = shown(make_story(systems=systems, checked=CheckReport(MACHINE, (failing, verdict("cpp")))))
    assert "✗ 1-D convolution  C++; Mojo: failed" in text
    assert "✗ gallery::add mojo on cpu: values" in text
    assert "opwright check y" in text
    assert "1 failed, 1 passed" in text


def test_a_system_of_which_nothing_runs_is_not_marked_as_passed():
    refused = verdict("mojo", status=Status.REFUSED, reason="Mojo is not installed")
    assert "– 1-D convolution  Mojo: cannot run here" in shown(
        make_story(systems=(System("1-D convolution", (refused,)),))
    )


def test_kernels_with_warnings_ran_and_say_so():
    warning = Finding("streams", Status.WARNING, message="it synchronises", remedy="leave it to the caller")
    endless = Finding("values", Status.INCONCLUSIVE, message="no end within 60 s")
    warned = verdict("cuda", device="cpu-sim", status=Status.WARNING, findings=(warning,))
    hung = verdict("mojo", status=Status.INCONCLUSIVE, findings=(endless,))
    systems = (System("sine", (warned, verdict("cpp"))), System("cosine", (warned, hung)))
    text = shown(make_story(systems=systems, checked=CheckReport(MACHINE, (warned, hung, verdict("cpp")))))
    assert "! sine    C++; CUDA simulated: with warnings" in text
    assert "? cosine  CUDA simulated: with warnings; Mojo: inconclusive" in text
    assert "gallery::add:cuda: it synchronises (streams)\n      → leave it to the caller" in text
    assert "? gallery::add mojo on cpu: values" in text
    assert "1 inconclusive, 1 with warnings, 1 passed; the wrong one was found" in flat(text)
    assert "--strict" not in text, "the demo has no such option"


def test_a_wrong_kernel_that_is_not_found_is_said_to_be_missed():
    text = shown(make_story(wrong=wrong(Finding("values", Status.PASS))))
    assert "✗ It was not found (pass)" in text
    assert "the wrong one was NOT found" in text


def test_times_come_with_interval_and_verdict_and_say_on_what():
    text = flat(shown(make_story()))
    assert "gallery::add, n=1024x1024 dtype=float32 (CPU, 2 threads)" in text
    assert "cpp 10.0 µs [9.000 – 11.00] FASTER × 0.250 [0.200, 0.300]" in text
    assert "warm caches. Ratios are to the reference." in text
    assert "reference (torch) 40.0 µs [39.00 – 41.00]" in text


def test_times_that_vary_too_much_say_so():
    told = "the times vary too much to compare them"
    assert told not in flat(shown(make_story()))
    report = make_story().times
    ours = dataclasses.replace(
        report.measurements[0], comparisons={"reference": Comparison(ComparisonVerdict.UNCLEAR, 0.9, 0.2, 3.0)}
    )
    assert told in flat(shown(make_story(times=dataclasses.replace(report, measurements=(ours,)))))


def test_errors_of_the_timing_are_shown_and_no_times_are_no_crash():
    story = make_story()
    broken = dataclasses.replace(story.times, errors=("its timed output is wrong",), measurements=())
    assert "✗ its timed output is wrong" in shown(dataclasses.replace(story, times=broken))
    assert "No comparison of times" in shown(dataclasses.replace(story, times=None))


@pytest.mark.parametrize("width", [50, 80, 200])
def test_everything_but_commands_files_and_messages_fits(width):
    text = shown(make_story(), width)
    verbatim = ("again:", "scale.cu", "→")
    assert not [line for line in text.splitlines() if len(line) > width and not any(v in line for v in verbatim)]
    assert len(text.splitlines()) < 70
