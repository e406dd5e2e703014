"""The comment is short, and text from kernels can neither format it nor mention users."""

from __future__ import annotations

import itertools
import re

import pytest

from opwright.errors import OpwrightError
from opwright.report import markdown
from opwright.results import Comparison, ComparisonVerdict, Finding, NotChecked, Status
from tests.report.sample_records import make_bench, make_check, make_measurement, make_verdict


def test_failures_come_with_case_and_command():
    text = markdown.render([make_check()])
    assert "❌ 1 failed · ✅ 1 passed · ➖ 1 cannot run here" in text
    row = next(line for line in text.splitlines() if "forgets_tail" in line)
    for part in (
        "values",
        "`n=5 dtype=float32 layout=contiguous`",
        "expected 1.0, got 0.0",
        "`opwright check add.py:add",
    ):
        assert part in row
    assert "- `gallery::add:mojo`: `no Mojo here`" in text
    assert "- `gallery::add:triton`: `no floating output` (gradients)" in text


def test_a_benchmark_shows_time_share_and_verdicts():
    text = markdown.render([make_bench(errors=("its timed output is wrong",))])
    row = next(line for line in text.splitlines() if "cuda_vec4" in line)
    assert "6.35 µs [6.309 – 6.423] cold" in row
    assert "64.9 %" in row
    assert "🟢 FASTER 0.953 [0.947, 0.959]" in row
    assert "**against `reference`:** 🟢 19 FASTER" in text
    assert "⚠️ `its timed output is wrong`" in text
    assert "12 of 492 samples discarded" in text
    assert "| `gallery::add` | NVIDIA H100 80GB HBM3 | float32 | from 2^21 elements | `triton_autotuned` |" in text
    assert "TF32 in cuBLAS: off" in text


def test_a_matrix_comes_first_with_each_cell_in_its_column():
    verdicts = [
        make_verdict(), make_verdict(kernel="forgets_tail", status=Status.FAIL),
        make_verdict(op="gallery::a|b", backend="c|d"), make_verdict(op="gallery::a|b", status=Status.REFUSED),
    ]  # fmt: skip
    lines = markdown.render([make_check(*verdicts)]).splitlines()
    assert lines[4:8] == [
        "| gallery:: | triton | c\\|d |",
        "| --- | --- | --- |",
        "| `add` | ❌ 1 ✅ 1 |  |",
        "| `a\\|b` | ➖ 1 | ✅ 1 |",
    ]


def test_reasons_are_counted_and_few_of_many_kernels_are_named():
    asked = NotChecked("opcheck", "not asked for")
    verdicts = [make_verdict(kernel=f"k{i}", not_checked=(asked,)) for i in range(50)]
    text = markdown.render([make_check(*verdicts)])
    assert "- all kernels: `not asked for` (opcheck)" in text
    assert "k49" not in text
    others = markdown.render([make_check(*verdicts, make_verdict(op="gallery::sin"))])
    assert "- 50 of 51 kernels: `not asked for` (opcheck; `gallery::add`)" in others


def test_what_was_not_passed_is_not_mentioned():
    assert "of the limit" not in markdown.render([make_check()])
    assert "reproduce" not in markdown.render([make_bench()])
    assert markdown.render([], title="Empty") == "### Empty\n"


def test_hostile_text_stays_in_its_code_span():
    hostile = "a|b `x` ``y``\n\n# @everyone <img src=x> </details> | c |"
    finding = Finding("values", Status.FAIL, hostile, hostile, hostile)
    verdict = make_verdict(
        op=hostile, kernel=hostile, status=Status.FAIL, findings=(finding,), not_checked=(NotChecked("v", hostile),)
    )
    measured = make_measurement(op=hostile, kernel=hostile, roofline_fraction=0.5, case={"n": hostile},
                                notes=(hostile,),
                                comparisons={hostile: Comparison(ComparisonVerdict.SAME, 1, 1, 1)})  # fmt: skip
    text = markdown.render([make_check(verdict), make_bench(measured, errors=(hostile,))], title=hostile)
    for column in ("reproduce", "of the limit"):
        assert len(set(_bars(text, column))) == 1, text
    outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)  # as CommonMark finds code spans
    for part in ("<img", "@everyone", "# @"):
        assert not re.search(rf"(?<!\\){part}", outside), outside
    assert outside.count("<details>") == len(re.findall(r"(?<!\\)</details>", outside))


def _bars(text, column):
    """How many cells each line has of the table with this column."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| kernel") and column in line)
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    return [len(re.findall(r"(?<!\\)\|", line)) for line in table]


def test_long_messages_are_cut_and_long_tables_counted():
    findings = tuple(Finding("values", Status.FAIL, "n=1", "x" * 5000, f"opwright {'y' * 500}") for _ in range(60))
    text = markdown.render([make_check(make_verdict(status=Status.FAIL, findings=findings))])
    assert "… and 20 more" in text
    assert "x" * 300 not in text
    assert "y" * 500 in text, "a command that is cut off is none"
    assert len(text) < 65_536


def test_an_unknown_schema_is_refused():
    with pytest.raises(OpwrightError, match=r"opwright.show/1.*\n.*opwright.check/3, opwright.bench/2"):
        markdown.render([{"schema": "opwright.show/1"}])
