"""The tables show what the records hold, and text from kernels cannot break them."""

import io

from opwright.report.terminal import CheckProgress, make_console, show_bench, show_check
from opwright.results import BenchReport, CheckReport, Crossover, Finding, NotChecked, SizeRange, Status, Verdict


def shown(report, width=100):
    stream = io.StringIO()
    show_check(make_console(file=stream, width=width, color_system=None), report)
    return stream.getvalue()


def verdict(**changes):
    content = {
        "op": "demo::f", "kernel": "k", "backend": "cpp", "device": "cpu", "status": Status.PASS,
        "findings": (Finding("values", Status.PASS),), **changes,
    }  # fmt: skip
    return Verdict(**content)


def test_a_failure_shows_case_message_and_command():
    finding = Finding(
        "values", Status.FAIL, "n=5", "1 of 5 elements differ\n  at (4,): expected 1.0, got 0.0", "opwright check x"
    )
    text = shown(CheckReport({}, (verdict(status=Status.FAIL, findings=(finding,)),)))
    for part in ("n=5", "1 of 5 elements differ", "at (4,): expected 1.0, got 0.0", "opwright check x", "1 failed"):
        assert part in text


def test_markup_in_a_kernels_message_is_shown_and_not_obeyed():
    finding = Finding("values", Status.FAIL, message="the kernel raised ValueError: [red]x[/red] [/]")
    text = shown(CheckReport({}, (verdict(status=Status.FAIL, findings=(finding,)),)))
    assert "[red]x[/red] [/]" in text


def test_a_reason_that_several_kernels_share_is_told_once():
    refused = [verdict(kernel=k, status=Status.REFUSED, reason="no GPU", findings=()) for k in "ab"]
    text = shown(CheckReport({}, tuple(refused)))
    assert text.count("no GPU") == 1
    assert "demo::f:a, demo::f:b" in text
    assert "2 cannot run here" in text


def test_what_was_not_checked_is_listed_with_its_reason():
    text = shown(CheckReport({}, (verdict(not_checked=(NotChecked("gradients", "no floating output"),)),)))
    assert "gradients: no floating output" in text


def test_the_table_fits_eighty_columns():
    text = shown(
        CheckReport({}, (verdict(op="gallery::kmeans_assign", kernel="triton_autotuned", backend="triton"),)), 80
    )
    assert max(map(len, text.splitlines())) <= 80


def test_a_benchmark_tells_which_kernel_is_fastest_where_and_what_was_the_same_for_all():
    ranges = (SizeRange(0, 4096, "[red]k"), SizeRange(4096, None, "b"))
    found = Crossover("demo::f", "cpu", "A CPU", "float32", ranges, (1, 9), "2026-11-20", stored=True)
    stream = io.StringIO()
    report = BenchReport({}, (), crossovers=(found,), settings={"threads": "4"})
    show_bench(make_console(file=stream, width=100, color_system=None), report)
    text = stream.getvalue()
    assert "demo::f float32 on A CPU: the fastest by size (calls follow this from now on)" in text
    assert "[red]k" in text
    assert "below 2^12 elements" in text
    assert "the same for all: threads: 4" in text


def test_progress_on_a_plain_stream_is_one_line_a_verdict():
    stream = io.StringIO()
    with CheckProgress(make_console(file=stream, width=80)) as progress:
        progress.step("demo::f k on cpu", "values n=5")
        progress.step("demo::f k on cpu", "compiling f.cpp")
        progress.done(verdict())
    assert stream.getvalue().splitlines() == ["opwright: compiling f.cpp", "PASS     demo::f k on cpu"]
