"""Pictures are the same for the same records, show every kernel by name, and state what is missing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from opwright.errors import OpwrightError
from opwright.report.pictures import canvas, figures
from opwright.report.records import read
from opwright.results import Estimate
from tests.report.sample_records import MACHINE, make_bench, make_check, make_measurement

drawn = pytest.mark.skipif(not figures.available(), reason="matplotlib is not installed")


def words(svg):
    return [e.text for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def report(*measurements):
    return read([make_bench(*measurements)]).benches[0]


@drawn
def test_the_same_records_give_the_same_bytes():
    for draw in (figures.roofline, lambda b: figures.time_over_size(b, "gallery::add")):
        assert draw(make_bench()) == draw(make_bench())
        assert "<dc:date>" not in draw(make_bench())


@drawn
def test_time_over_size_names_every_kernel_in_both_directions():
    output = words(figures.time_over_size(make_bench(), "gallery::add"))
    for kernel in ("cuda_vec4", "triton", "triton_autotuned", "reference", "torch.compile"):
        assert output.count(kernel) == 2
    assert {"add forward · float32", "add backward · float32", "× the fastest", "16 MiB", "1 ms"} <= set(output)


@drawn
def test_a_roofline_shows_the_limits_that_were_measured_and_the_share_reached():
    output = words(figures.roofline(make_bench()))
    assert {"memory 3,042 GB/s", "cache 5,600 GB/s", "float32 51 TFLOP/s", "add 96.8 %"} <= set(output)
    assert not any("float16" in word for word in output), "a dtype that nothing was measured in"
    assert "add 96.8 %" in words(figures.roofline(make_bench(), narrow=True))


@drawn
def test_a_roofline_without_measured_limits_has_points_all_the_same():
    bench = {**make_bench(), "roofline": []}
    assert any("add" in word for word in words(figures.roofline(bench)))


@drawn
def test_names_are_text_and_neither_markup_nor_formulas():
    name = "<b>&$x^2$"
    measured = [make_measurement(kernel=name, op=f"a::{name}", case={"n": n}, bytes=4 * n) for n in (64, 4096)]
    assert name in words(figures.time_over_size(make_bench(*measured), f"a::{name}"))
    assert any(name in word for word in words(figures.roofline(make_bench(*measured))))


@drawn
def test_the_callers_own_matplotlib_is_left_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.roofline(make_bench())
    assert dict(matplotlib.rcParams) == before


@drawn
def test_strange_times_do_not_stop_a_picture():
    nan = float("nan")
    times = [(64, 0.0, 0.0), (256, nan, nan), (1024, 5.0, nan), (4096, 9.0, 8.0)]
    measured = [make_measurement(case={"n": n}, bytes=4 * n, gpu_us=Estimate(us, lo, us, 1)) for n, us, lo in times]
    assert "triton" in words(figures.time_over_size(make_bench(*measured), "gallery::add"))
    assert figures.roofline(make_bench(*measured))


@drawn
def test_files_are_written_for_a_readme(tmp_path):
    written = figures.save([make_check(), make_bench()], tmp_path / "new", ("svg", "png"))
    assert [p.name for p in written] == ["roofline.svg", "roofline.png", "gallery-add.svg", "gallery-add.png"]
    assert all(p.stat().st_size > 1000 for p in written)
    with pytest.raises(OpwrightError, match="cannot write pictures"):
        figures.save([make_bench()], written[0])


@drawn
def test_every_machine_gets_files_of_its_own(tmp_path):
    there = {**make_bench(), "machine": {**MACHINE, "torch": "2.11.0"}}
    written = figures.save([make_bench(), there], tmp_path)
    assert len({p.name for p in written}) == 4


def test_what_cannot_be_drawn_says_why(monkeypatch):
    one = make_bench(make_measurement(flops=0))
    with pytest.raises(OpwrightError, match="not measured at two sizes"):
        figures.time_over_size(one, "gallery::add")
    with pytest.raises(OpwrightError, match="no roofline"):
        figures.roofline(one)
    with pytest.raises(OpwrightError, match="a check has no times"):
        figures.roofline(make_check())
    monkeypatch.setattr(canvas, "available", lambda: False)
    with pytest.raises(OpwrightError, match="pip install matplotlib"):
        figures.roofline(make_bench())


def test_the_axis_is_the_dim_that_varies_or_else_the_bytes():
    def axis(*cases):
        panel = figures.panels(report(*(make_measurement(case=c, bytes=2**i) for i, c in enumerate(cases))))[0]
        return panel.axis

    assert axis({"s": 8, "k": 64}, {"s": 16, "k": 64}) == "s"
    assert axis({"s": 8, "k": 64}, {"s": 16, "k": 32}) == "least bytes moved"
    assert axis({"n": [8, 8]}, {"n": [16, 16]}) == "least bytes moved"


def test_each_direction_and_dtype_is_a_panel():
    measured = [
        make_measurement(direction=d, case={"n": n, "dtype": t}, bytes=n)
        for d in ("forward", "backward") for t in ("float32", "float16") for n in (64, 128)
    ]  # fmt: skip
    assert [p.title for p in figures.panels(report(*measured))] == [
        "add forward · float32", "add forward · float16", "add backward · float32", "add backward · float16",
    ]  # fmt: skip


def test_labels_keep_apart_and_inside():
    assert canvas.apart([10, 11, 12, 50], 10, 0, 100) == [10, 20, 30, 50]
    assert canvas.apart([90, 95, 99], 10, 0, 100) == [80, 90, 100]


def test_colours_can_be_read_on_white_and_on_black():
    def luminance(color):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for color in (*canvas.COLORS, canvas.NEUTRAL):
        assert re.fullmatch("#[0-9a-f]{6}", color)
        assert 1.05 / (luminance(color) + 0.05) >= 3, color
        assert (luminance(color) + 0.05) / (luminance("#1a1d1f") + 0.05) >= 3, color
