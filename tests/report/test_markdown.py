"""The comment is short, and text from kernels can neither format it nor mention users."""

from __future__ import annotations

import itertools
import re

import pytest

from opwright.errors import OpwrightError
from opwright.report import markdown
from opwright.results import Comparison, ComparisonVerdict, Finding, NotChecked, Status
from tests.report.sample_records import UNCAPTURED, every_status, make_bench, make_check, make_measurement, make_verdict


def test_an_interrupted_check_says_that_it_is_partial():
    text = markdown.render([make_check(), {**make_check(), "partial": "interrupted: 2 of 9 kernels were checked"}])
    assert "⚠️ **interrupted: 2 of 9 kernels were checked**" in text
    assert "interrupted" not in markdown.render([make_check()])


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


def test_every_status_has_a_mark_and_a_word():
    text = markdown.render([make_check(*every_status())])
    assert (
        "**❌ 1 failed · ⏳ 1 inconclusive · 🌘 1 thin · ⚠️ 2 with warnings · ✅ 1 passed · ➖ 1 cannot run here**"
        in text
    )
    assert "| `sin` | ⚠️ 1 |  |  | ⏳ 1 |" in text


def test_what_did_not_end_has_case_remedy_and_command():
    text = markdown.render([make_check(*every_status())])
    assert "⏳ **inconclusive**: a step did not end in time" in text
    row = next(line for line in text.splitlines() if "gallery::sin cpp" in line)
    for part in ("gradients", "`n=1025 dtype=float64 layout=transposed`", "<br>→ Allow more time with --timeout 300.",
                 "`opwright check add.py:sin --kernel cpp"):  # fmt: skip
        assert part in row


def test_warnings_and_thin_coverage_are_not_folded_and_have_remedies():
    text = markdown.render([make_check(*every_status())])
    shown = text[: text.index("<details>")]
    assert "🌘 **thin**: nothing wrong was found, but too little ran" in shown
    assert "- `gallery::conv1d:tiled`: `152 of 164 cases were skipped" in shown
    assert "→ State sizes that satisfy it: op.sizes(n=14, m=2)." in shown
    assert "- 2 of 6 kernels: `the kernel cannot be captured" in shown
    assert shown.count("cannot be captured") == 1
    assert "**thin**" not in markdown.render([make_check()])


def test_coverage_is_a_table():
    text = markdown.render([make_check(*every_status())])
    assert "| `gallery::conv1d tiled` | cuda | 🌘 | 12 of 164 cases |" in text
    assert "Cases that ran" not in markdown.render([make_check()]), "no coverage is known"


def test_sixty_kernels_with_one_warning_have_one_line():
    verdicts = [make_verdict(kernel=f"k{i}", status=Status.WARNING, findings=(UNCAPTURED,)) for i in range(60)]
    text = markdown.render([make_check(*verdicts)])
    assert "- all kernels: `the kernel cannot be captured" in text
    assert "k7" not in text


def test_many_warnings_are_counted():
    verdicts = [
        make_verdict(kernel=f"k{i}", status=Status.WARNING, findings=(Finding("a", Status.WARNING, message=f"w{i}"),))
        for i in range(60)
    ]
    text = markdown.render([make_check(*verdicts)])
    assert "… and 20 more" in text
    assert "w59" not in text


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
    others = tuple(Finding(hostile, status, hostile, hostile, hostile, remedy=hostile)
                   for status in (Status.INCONCLUSIVE, Status.THIN, Status.WARNING))  # fmt: skip
    verdict = make_verdict(op=hostile, kernel=hostile, status=Status.FAIL, findings=(finding, *others),
                           not_checked=(NotChecked("v", hostile),))  # fmt: skip
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
    with pytest.raises(
        OpwrightError,
        match=r"must have the schema opwright.check/3 or opwright.bench/2 or opwright.judge/1, got 'opwright.show/1'",
    ):
        markdown.render([{"schema": "opwright.show/1"}])
