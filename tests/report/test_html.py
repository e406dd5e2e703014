"""The page has the records' contents, loads nothing else, and text from kernels cannot change it."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from opwright.errors import OpwrightError
from opwright.report import html
from opwright.report.pictures import figures
from opwright.results import BenchReport, Estimate, Status
from tests.report.sample_judged import make_judged
from tests.report.sample_records import (
    HOSTILE,
    MACHINE,
    UNCAPTURED,
    every_status,
    hostile_records,
    make_bench,
    make_check,
    make_measurement,
    make_verdict,
    many_verdicts,
)


class Tags(HTMLParser):
    """The page's elements and their attributes, as a browser would take them."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def count(self, tag):
        return sum(name == tag for name, _ in self.found)


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page[page.index("<body") :]))


def test_the_page_says_what_the_records_say():
    page = html.render([make_check(), make_bench()], title="Add on an H100")
    output = text_of(page)
    for part in (
        "Add on an H100", "NVIDIA H100 80GB HBM3 · torch 2.13.0+cu130", "forgets_tail",
        "n=5 dtype=float32 layout=contiguous",
        "at (4,): expected 1.0, got 0.0", "gradients", "no floating output", "no Mojo here", "33 cases",
        "cuda_vec4", "n=16384x16384", "FASTER", "itself", "12 of 492 samples discarded", "-0.0207704, 1.3144712",
        "custom", "missing", "g++ 12.2.0", "opwright.check/3, opwright.bench/2", "690 TFLOP/s (float16)",
        "79.2 GiB", "below 2^21 elements", "from 2^21 elements", "triton_autotuned", "2026-11-20: calls use this",
        "TF32 in cuBLAS", "reset before each cold sample",
    ):  # fmt: skip
        assert part in output or part in page, part
    assert 'data-copy="opwright check add.py:add --kernel forgets_tail' in page


def test_a_page_of_an_interrupted_check_says_that_it_is_partial():
    whole, partial = make_check(), {**make_check(), "partial": "interrupted: 2 of 9 kernels were checked"}
    assert "interrupted" not in text_of(html.render([whole]))
    for records in ([partial], [partial, whole], [whole, partial]):
        assert text_of(html.render(records)).count("interrupted: 2 of 9 kernels were checked") == 1


def test_failures_come_first():
    page = html.render([make_check()])
    order = [page.index(f"<strong>{kernel}</strong>") for kernel in ("forgets_tail", "triton", "mojo")]
    assert order == sorted(order)


def matrix_of(page):
    """The first table of the page: each row's cells, as text."""
    assert page.index("<table") == page.index('<table class="matrix">')
    table = page[page.index('<table class="matrix">') : page.index("</table>")]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    return [[text_of(f"<body>{cell}").strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]


def test_the_page_begins_with_a_matrix():
    verdicts = [
        make_verdict(), make_verdict(kernel="forgets_tail", status=Status.FAIL), make_verdict(op="gallery::sin"),
        make_verdict(op="gallery::sin", backend="cuda", device="cpu-sim"), make_verdict(kernel="reference"),
    ]  # fmt: skip
    assert matrix_of(html.render([make_check(*verdicts)])) == [
        ["gallery::", "triton cuda", "cuda cpu-sim", "reference cuda"],
        ["add", "✗ ✓", "", "✓"],
        ["sin", "✓", "✓", ""],
    ]  # fmt: skip


def test_hostile_names_stay_in_their_cell_of_the_matrix():
    other = make_verdict(op=f"{HOSTILE}::b", backend="cpp", status=Status.FAIL)
    rows = matrix_of(html.render([make_check(make_verdict(op=f"{HOSTILE}::a", backend=HOSTILE), other)]))
    assert [len(row) for row in rows] == [3, 3, 3]
    assert [row[1:] for row in rows[1:]] == [["✓", ""], ["", "✗"]]
    assert "&lt;script&gt;" in rows[0][0]


def test_a_long_list_is_folded_and_reasons_are_counted():
    page = html.render([make_check(*many_verdicts())])
    assert '<table class="rows folded"' in page
    assert "show 60 passed<" in page
    assert '<tbody class="fail open"' in page
    output = text_of(page)
    assert "60 of 61 kernels: slow" in output
    assert "gallery::add:right_3, … and 56 more" in output
    assert 'class="rows folded"' not in html.render([make_check(*many_verdicts(5))])


def warnings_of(page):
    """The section of warnings as text."""
    start = page.index('<section id="notes"')
    return text_of("<body>" + page[start : page.index("</section>", start)])


def test_warnings_and_thin_coverage_are_a_section_with_remedies():
    section = warnings_of(html.render([make_check(*every_status())]))
    order = [
        "◔ thin nothing wrong was found, but too little ran", "gallery::conv1d:tiled: 152 of 164 cases were skipped",
        "State sizes that satisfy it", "! with warnings ordinary results are right",
        "2 of 6 kernels: the kernel cannot",
        "Leave the synchronisation to the caller.", "n=1024 dtype=float32 layout=contiguous",
        "opwright check add.py:add --kernel vec4", "each call leaves 4,096 bytes",
    ]  # fmt: skip
    found = [section.index(part) for part in order]
    assert found == sorted(found)
    assert "did not end" not in section
    assert 'id="notes"' not in html.render([make_check()])


def test_sixty_kernels_with_one_warning_have_one_entry():
    verdicts = [make_verdict(kernel=f"k{i}", status=Status.WARNING, findings=(UNCAPTURED,)) for i in range(60)]
    section = warnings_of(html.render([make_check(*verdicts)]))
    assert section.count("cannot be captured") == 1
    assert "all kernels: the kernel cannot be captured" in section


def details_of(page, number):
    start = page.index(f'<tr class="details" id="v{number}">')
    return page[start : page.index("</tbody>", start)]


def test_details_have_each_check_with_its_cases():
    page = html.render([make_check(*every_status())])
    failed, hung, thin, warned = (text_of("<body>" + details_of(page, number)) for number in (1, 2, 3, 5))
    assert "✗ values failed at case 3 of 164 smallest failing case n=5" in failed
    assert "✓ torch.compile 2 of 2 cases; fullgraph, static and dynamic" in failed
    assert "? gradients case n=1025 dtype=float64 layout=transposed the step did not end within 60 s" in hung
    assert "Allow more time with --timeout 300. opwright check add.py:sin --kernel cpp" in hung
    assert "◔ values 12 of 164 cases" in thin
    assert "! streams case n=1024" in warned
    assert "! memory each call leaves 4,096 bytes Free the workspace." in warned
    assert "✓ values 152 of 164 cases" in warned


def test_rows_are_sorted_by_status_and_say_how_many_cases_ran():
    page = html.render([make_check(*every_status())])
    rows = [text_of("<body>" + row).strip() for row in re.findall(r'<tr class="row">(.*?)</tr>', page, re.DOTALL)]
    words = ["FAIL", "INCONCLUSIVE", "THIN", "WARNING", "WARNING", "PASS", "REFUSED"]
    assert [next(w for w in row.split() if w.isupper()) for row in rows] == words
    assert rows[2] == "gallery::conv1d tiled triton cuda THIN 12 of 164 values 1.2"
    assert rows[3] == "gallery::add vec4 cuda cpu-sim WARNING 152 of 164 streams in the CUDA simulator 1.2"
    assert re.findall(r'class="status" data-value="(\d)"', page) == ["0", "1", "2", "3", "3", "4", "5"]


def test_what_did_not_end_is_open_and_never_folded():
    endless = make_verdict(kernel="endless", status=Status.INCONCLUSIVE, reason="no end within 60 s", findings=())
    page = html.render([make_check(*many_verdicts(), endless)])
    assert re.findall(r'<tbody class="(\w+) open" data-unfolded', page) == ["fail", "inconclusive"]
    assert "no end within 60 s" in details_of(page, 2)
    assert "show 60 passed<" in page


def test_a_legend_explains_the_marks():
    assert "✗ failed ? inconclusive ◔ thin ! with warnings ✓ passed – cannot run here" in text_of(
        html.render([make_check(*every_status())])
    )


def test_what_was_not_passed_leaves_no_section():
    sections = {
        "check": html.render([make_check()]),
        "bench": html.render([make_bench()]),
        "nothing": html.render([]),
    }
    assert 'id="verdicts"' in sections["check"]
    assert 'id="times"' not in sections["check"]
    assert 'id="pictures"' not in sections["check"]
    assert 'id="times"' in sections["bench"]
    assert 'id="verdicts"' not in sections["bench"]
    assert 'id="parts"' not in sections["bench"]
    assert "no verdicts and no times" in sections["nothing"]
    assert not any('id="errors"' in page or 'id="histograms"' in page for page in sections.values())


def test_text_from_kernels_is_shown_and_not_obeyed():
    page = html.render(hostile_records(), title=HOSTILE)
    tags = Tags(page)
    assert tags.count("script") == 1
    assert tags.count("img") == 0
    assert tags.count("style") == 1
    assert not [name for _, attributes in tags.found for name in attributes if name.startswith("on")]
    assert "49" not in re.findall(r"onerror=alert\(1\)&gt;(\S\S)", page)
    assert page.count("&lt;script&gt;alert(1)") > 20


def test_the_page_loads_nothing():
    page = html.render([make_check(), make_bench()])
    addresses = [
        value for _, attributes in Tags(page).found for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action", "data") and not value.startswith("#")
    ]  # fmt: skip
    assert addresses == []
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_same_records_give_the_same_page():
    records = [make_check(), make_bench()]
    assert html.render(records) == html.render(records)


def test_ids_are_unique():
    ids = [a["id"] for _, a in Tags(html.render([make_check(), make_bench()])).found if "id" in a]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("schema", ["opwright.doctor/1", "opwright.bench/3", None])
def test_an_unknown_schema_is_refused_with_the_known_ones(schema):
    record = {"schema": schema} if schema else {}
    with pytest.raises(OpwrightError, match=r"opwright.check/3 or opwright.bench/2") as caught:
        html.render([make_check(), record])
    assert f"got {schema!r}" in str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r.pop("verdicts"),
        lambda r: r["verdicts"][0].pop("kernel"),
        lambda r: r["verdicts"][0].update(status="perhaps"),
        lambda r: r.update(verdicts=[3]),
    ],
)
def test_a_record_that_breaks_its_schema_is_refused(spoil):
    record = make_check()
    spoil(record)
    with pytest.raises(OpwrightError, match=r"has the schema opwright.check/3, but does not conform"):
        html.render([record])


def test_fields_of_a_later_version_are_ignored():
    record = make_check()
    record["verdicts"][0]["novelty"] = record["verdicts"][0]["findings"][0]["novelty"] = 1
    assert "triton" in html.render([record])


def test_records_of_one_machine_are_merged_whatever_its_temperature():
    hot, cold = ({**make_bench(make_measurement(kernel=k)), "machine": {**MACHINE, "temperature_c": t}}
                 for k, t in (("hot", 70.0), ("cold", 40.0)))  # fmt: skip
    page = html.render([make_check(), hot, cold])
    assert page.count("Intel(R) Xeon(R)") == 1
    assert "<strong>hot</strong>" in page
    assert "<strong>cold</strong>" in page


def test_rows_of_several_machines_say_which():
    here = make_bench(make_measurement())
    there = {**here, "machine": {**MACHINE, "torch": "2.11.0"}}
    page = html.render([here, there])
    assert "NVIDIA H100 80GB HBM3, torch 2.11.0" in text_of(page)
    assert "NVIDIA H100 80GB HBM3, torch 2.13.0+cu130" in text_of(page)


def test_a_measurement_taken_twice_is_shown_twice():
    page = html.render([make_bench(make_measurement(), make_measurement())])
    assert page.count("<strong>triton</strong>") == 2


def test_notes_and_errors_and_impossible_shares_stand_out():
    measured = make_measurement(bound="bandwidth", roofline_fraction=1.3, notes=("timers disagree",))
    page = html.render([make_bench(measured, errors=("add triton: its timed output is wrong",))])
    assert '<span class="note">timers disagree</span>' in page
    assert 'class="bar over"' in page
    assert "its timed output is wrong" in page


def test_numbers_that_are_not_there_are_a_dash():
    nan = float("nan")
    measured = make_measurement(gpu_us=None, host_us=Estimate(nan, nan, nan, 0), bytes=0, flops=0)
    assert "nan" not in text_of(html.render([make_bench(measured)])).lower().replace("nanosecond", "")


def test_error_histograms_are_shown_where_a_record_has_them():
    record = make_check()
    record["verdicts"][0]["findings"][0]["error_histogram"] = {
        "edges": [0, 0.5, 1, 2],
        "counts": [50000, 0, 1],
        "unit": "ulp",
    }
    page = html.render([record])
    assert page.count("<rect") == 3
    assert "ulp, 50,001 elements" in page
    assert "<title>0 – 1/2: 50,000</title>" in page
    (wrong,) = re.findall(r'<rect class="beyond"[^>]* height="([^"]*)"', page)
    assert float(wrong) > 2, "a single wrong element can be seen"


def test_records_of_before_have_no_crossovers_settings_or_histograms():
    bench, check = make_bench(), make_check()
    del bench["crossovers"], bench["settings"]
    for finding in check["verdicts"][0]["findings"]:
        del finding["error_histogram"]
    page = html.render([check, bench])
    assert 'id="fastest"' not in page
    assert "The same for all" not in page


def test_settings_that_differ_between_joined_runs_are_both_told():
    here = make_bench()
    there = {**here, "settings": {**here["settings"], "TF32 in cuBLAS": "on"}}
    assert "off / on" in html.render([here, there])


def test_without_matplotlib_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)
    page = html.render([make_bench()])
    assert "<svg" not in page
    assert "pip install matplotlib" in page
    assert "pip install" not in html.render([make_check()])


def test_a_notebook_shows_a_table_without_scripts():
    from opwright.report.records import read

    found = read([make_check(), make_bench(), *hostile_records()])
    for report in (*found.checks, *found.benches):
        fragment = html.notebook(report)
        assert fragment.count("<table>") == 1
        assert "<script" not in fragment
        assert "<style" not in fragment
    assert "forgets_tail" in html.notebook(found.checks[0])
    (every,) = read([make_check(*every_status())]).checks
    fragment = html.notebook(every)
    for part in (
        "1 failed, 1 inconclusive, 1 thin, 2 with warnings", ">12 of 164 cases<", "? gallery::sin cpp: gradients",
        "! with warnings: 2 of 6 kernels (streams)", "→ Free the workspace.",
    ):  # fmt: skip
        assert part in fragment
    assert "FASTER 0.953 [" in html.notebook(found.benches[0])
    assert isinstance(html.notebook(BenchReport({}, ())), str)


def test_a_report_needs_no_torch():
    script = (
        "import sys, opwright.report.html, opwright.report.markdown\n"
        "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_page_says_how_its_records_were_made():
    record = make_check(*every_status())
    made = {"opwright": "0.1.0", "at": "2026-01-02T03:04:05+00:00", "command": "opwright check 'a <b>.py'"}
    page = html.render([{**record, "made": made}, {**record, "made": made}])
    assert page.count("opwright check &#39;a &lt;b&gt;.py&#39;") == 1
    assert '<time datetime="2026-01-02T03:04:05+00:00">' in page
    assert "<time" not in html.render([record])


def test_failures_come_before_warnings():
    page = html.render([make_check(*every_status())])
    assert page.index('<section id="verdicts"') < page.index('<section id="notes"')


def test_judged_candidates_are_a_table_with_their_contracts():
    page = html.render([make_judged(7).to_json()])
    assert "<title>Judged kernels</title>" in page
    assert page.count('class="row"') == 8
    assert "kernelbench calls 2 of the failed candidates correct" in page
    assert "it imports tilelang, which is not installed" in page
    assert "runs/mine/notes.py" in page  # a path that was not read
    assert "fixed: dim is even: the reference refuses 3" in page
    assert 'id="matrix"' not in page, "each candidate is an operator: no table of them beside that of candidates"


def test_columns_of_times_need_times_and_of_the_format_need_what_it_says():
    page = html.render([make_judged(1, timed=False).to_json()])
    assert "× eager" not in page
    assert "fast_1" not in page
    report = make_judged(1)
    rows = tuple(dataclasses.replace(row, claimed="", by_rule="") for row in report.rows)
    page = html.render([dataclasses.replace(report, rows=rows).to_json()])
    assert "× eager" in page
    assert "kernelbench says" not in page


def test_hostile_names_of_candidates_are_escaped():
    report = make_judged(1)
    row = dataclasses.replace(
        report.rows[0], candidate=f"a/{HOSTILE}_b", task=HOSTILE, contract=HOSTILE, reason=HOSTILE, claimed=HOSTILE
    )
    page = html.render([dataclasses.replace(report, rows=(row,), unread=((HOSTILE, HOSTILE),)).to_json()])
    assert "<img" not in page


def test_a_page_has_checks_and_judged_candidates_together():
    page = html.render([make_check(), make_judged(2).to_json()])
    assert 'id="candidates"' in page
    assert 'id="verdicts"' in page
