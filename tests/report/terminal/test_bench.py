"""The tables show the records' contents, and text from kernels cannot break them."""

import io

from opwright.report.terminal.bench import show_bench
from opwright.report.terminal.console import make_console
from opwright.results import BenchReport, Crossover, SizeRange


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
