"""Progress: a known total, a line for each kernel on a plain stream, and compile messages that do not pile up."""

import io

from opwright.report.terminal.console import make_console
from opwright.report.terminal.progress import CheckProgress, TaskLine
from opwright.results import Status, Verdict

COMPILING = "compiling NumPy kernel demo::f:k for float32[2-d] (torch.compile)"


def verdict(kernel="k", status=Status.PASS, seconds=1.25):
    return Verdict("demo::f", kernel, "numpy", "cpu", status, seconds=seconds)


def output(drive, *, verbose=False, **console):
    stream = io.StringIO()
    with CheckProgress(make_console(file=stream, width=80, **console), verbose=verbose) as progress:
        drive(progress)
    return stream.getvalue()


def check_one_numpy_kernel(progress):
    progress.plan(12)
    for n in range(50):
        progress.step("demo::f k on cpu", f"values n={n}")
        if n < 9:
            progress.step("demo::f k on cpu", COMPILING)
    progress.done(verdict())
    progress.step("demo::f c on cpu", "compiling f.cpp")
    progress.done(verdict("c", Status.FAIL))
    progress.done(verdict("gone", Status.REFUSED))


def test_a_plain_stream_gets_one_line_a_kernel_with_the_total():
    assert output(check_one_numpy_kernel).splitlines() == [
        " 1/12 PASS    demo::f k on cpu, 1.2 s, compiled 9 times",
        " 2/12 FAIL    demo::f c on cpu, 1.2 s, compiled once",
        " 3/12 REFUSED demo::f gone on cpu",
    ]


def test_the_first_failure_of_each_kernel_is_shown_when_it_is_found():
    def drive(progress):
        for kernel in ("k", "c"):
            progress.step(f"demo::f {kernel} on cpu", "found values n=1025")
            progress.step(f"demo::f {kernel} on cpu", "found values n=3")
            progress.step(f"demo::f {kernel} on cpu", "gradients n=3")
        progress.done(verdict(status=Status.FAIL))

    assert output(drive).splitlines() == [
        "✗ demo::f k on cpu: values n=1025 (the check goes on)",
        "✗ demo::f c on cpu: values n=1025 (the check goes on)",
        "FAIL    demo::f k on cpu, 1.2 s",
    ]


def test_verbose_prints_each_compile_message_once():
    lines = output(check_one_numpy_kernel, verbose=True).splitlines()
    assert [line for line in lines if "compiling" in line] == [f"opwright: {COMPILING}", "opwright: compiling f.cpp"]
    assert len(lines) == 5


def test_a_terminal_shows_the_total_and_what_is_compiled_and_keeps_neither():
    shown = []

    def drive(progress):
        progress.plan(12)
        progress.step("demo::f k on cpu", COMPILING)
        stream = io.StringIO()
        make_console(file=stream, width=80).print(progress._render())
        shown.append(stream.getvalue())
        progress.done(verdict())

    text = output(drive, force_terminal=True)
    assert "0/12" in shown[0]
    assert "demo::f k on cpu: compiling NumPy kernel" in shown[0]
    assert max(map(len, shown[0].splitlines())) <= 80
    assert "PASS" not in text


def test_what_takes_long_in_a_benchmark_is_told_once_on_a_plain_stream():
    stream = io.StringIO()
    with TaskLine(make_console(file=stream, width=80)) as line:
        for _ in range(9):
            line.on_message(COMPILING)
            line.on_message("demo::f n=5: k warm-up")
        line.on_message("measuring what this machine can do [cpu]")
    assert stream.getvalue().splitlines() == [
        f"opwright: {COMPILING}", "opwright: measuring what this machine can do [cpu]",
    ]  # fmt: skip


def test_every_status_has_a_line():
    def drive(progress):
        for status in Status:
            progress.done(verdict(status.value, status))

    words = [line.split()[0] for line in output(drive).splitlines()]
    assert words == ["FAIL", "INCONCLUSIVE", "THIN", "WARNING", "PASS", "REFUSED"]
