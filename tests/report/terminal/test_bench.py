"""The tables show the records' contents, and text from kernels cannot break them."""

import io

import pytest

from opwright.report.terminal.bench import show_bench
from opwright.report.terminal.console import make_console
from opwright.results import BenchReport, Comparison, ComparisonVerdict, Crossover, Estimate, SizeRange
from tests.report.sample_records import make_measurement


def test_a_benchmark_tells_which_kernel_is_fastest_where_and_what_was_the_same_for_all():
    ranges = (SizeRange(0, 4096, "[red]k"), SizeRange(4096, None, "b"))
    found = Crossover("demo::f", "cpu", "A CPU", "float32", ranges, (1, 9), "2026-11-20", stored=True)
    stream = io.StringIO()
    report = BenchReport({}, (), crossovers=(found,), settings={"threads": "4"})
    show_bench(make_console(file=stream, width=100, color_system=None), report)
    text = stream.getvalue()
    assert "demo::f float32 on A CPU: the fastest by size (calls use this from now on)" in text
    assert "[red]k" in text
    assert "below 2^12 elements" in text
    assert "the same for all: threads: 4" in text


def shown(width, *measured):
    stream = io.StringIO()
    show_bench(make_console(file=stream, width=width, color_system=None), BenchReport({}, measured))
    return stream.getvalue()


def compared(*names):
    faster = Comparison(ComparisonVerdict.FASTER, 0.5, 0.49, 0.51)
    return make_measurement(kernel="triton_autotuned", comparisons=dict.fromkeys(names, faster))


@pytest.mark.parametrize("width", [50, 80, 100])
def test_columns_that_do_not_fit_are_in_a_further_table_and_nothing_is_cut(width):
    text = shown(width, compared("reference", "torch.compile", "liger", "vendor"))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for word in ("triton_autotuned", "float32", "vs torch.compile", "vs vendor", "10.0 ±2%"):
        assert text.count(word) >= 1, word
    assert text.count("FASTER 0.50") == 4


def test_a_wide_terminal_has_one_table():
    assert shown(200, compared("reference", "torch.compile")).count("triton_autotuned") == 1


def test_a_column_without_a_value_is_left_out():
    assert "of limit" in shown(100, make_measurement(roofline_fraction=0.5))
    assert "of limit" not in shown(100, make_measurement(roofline_fraction=None))


def test_a_time_that_tells_nothing_is_called_noisy_with_what_to_do():
    text = shown(100, make_measurement(gpu_us=Estimate(10.0, 2.0, 900.0, 40)))
    assert "10.0 noisy" in text
    assert "close other programs" in text
    assert "noisy" not in shown(100, make_measurement())


def test_a_busy_machine_is_named_with_what_to_do():
    stream = io.StringIO()
    report = BenchReport({}, (make_measurement(),), settings={"load before": "4.4 on 2 cores"})
    show_bench(make_console(file=stream, width=100, color_system=None), report)
    text = " ".join(stream.getvalue().split())
    assert "the machine was busy when this began (load 4.4 on 2 cores): verdicts may be wrong; repeat this" in text
    assert "was busy" not in shown(100, make_measurement())
