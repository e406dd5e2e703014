"""The table of ``opwright judge``: at 80 columns, findings below names, and names that differ."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from opwright.report.terminal.judged import show_judged
from opwright.results import Finding, Status, Verdict
from opwright.results.judged import Judged, JudgeReport, Times


def shown(*rows: Judged) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    show_judged(console, JudgeReport({}, rows, sandbox="no sandbox: it was switched off"))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def failed(candidate: str, *findings: Finding) -> Judged:
    verdict = Verdict("o", "k", "python", "cpu", Status.FAIL, findings=findings)
    return Judged("pair", candidate, "task", Status.FAIL, verdict=verdict)


def test_a_cheat_is_shown_below_the_name_before_what_it_leads_to() -> None:
    differ = Finding("values", Status.FAIL, "n=1", "1 of 1 elements differ")
    cheat = Finding("cheats", Status.FAIL, "n=5", "it returns the argument 'x' unchanged")
    lines = shown(failed("/a/run/ours.py", differ, cheat))
    assert lines[1].split() == ["✗", "FAIL", "run/ours.py"]
    assert lines[2].strip() == "cheats: n=5: it returns the argument 'x' unchanged"
    assert lines[-1] == "no sandbox: it was switched off"
    assert max(map(len, lines)) <= 80


def test_names_have_as_many_folders_as_tell_them_apart() -> None:
    lines = shown(failed("/a/right/scale/backward/kernel.cu"), failed("/a/wrong/scale/backward/kernel.cu"))
    assert [line.split()[-1] for line in lines if "kernel.cu" in line] == [
        "right/scale/backward/kernel.cu", "wrong/scale/backward/kernel.cu",
    ]  # fmt: skip


def test_times_are_below_the_name_and_the_scores_at_the_end() -> None:
    times = Times(us=50.0, lo_us=49.0, hi_us=51.0, samples=30, eager_us=100.0, compiled_us=60.0, limit_us=25.0)
    right = Judged("sol-execbench", "/a/b/c.json", "task", Status.PASS, times=times)
    text = "\n".join(shown(right))
    assert "50 µs, 2.00 × eager, 1.20 × torch.compile, 50% of the machine's limit" in " ".join(text.split())
    assert "SOL score 0.75" in text
    assert "fast_0 100%, fast_1 100%, fast_2 0%" in text
    for change, part in (
        ({"tuned_us": 55.0}, "1.20 × torch.compile, 1.10 × max-autotune, 50%"),
        ({"why_not_tuned": "it raised"}, "max-autotune was not timed: it raised"),
    ):
        row = dataclasses.replace(right, times=dataclasses.replace(times, **change))
        assert part in " ".join(" ".join(shown(row)).split())
    untimed = Judged("pair", "/a/b/c.py", "task", Status.PASS, times=Times(why_none="no timer takes it"))
    assert any("not timed: no timer takes it" in line for line in shown(untimed))
