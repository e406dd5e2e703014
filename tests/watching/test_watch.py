"""``opwright watch``: what changed is checked after each save. No test depends on how fast that is."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading

import pytest
from rich.console import Console

from opwright.errors import OpwrightError
from opwright.report.watch_screen import WatchScreen
from opwright.watching import loop, once
from opwright.watching.state import Known, read_state, write_state

OPERATOR = """
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

@ow.op("watched::twice")
def twice(x: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    return 2 * x

@twice.python
def first(x):
    return (x + x).contiguous()

@twice.python
def second(x):
    return (x * FACTOR).contiguous()
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "watched_ops.py").write_text(OPERATOR.replace("FACTOR", "2.0"))
    return tmp_path / "watched_ops.py"


def one_pass(*options):
    done = subprocess.run(
        [sys.executable, "-m", "opwright", "watch", "watched_ops.py", "--once", "--json", "--level", "smoke", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def of(events, kind):
    return [event for event in events if event["event"] == kind]


@pytest.mark.slow
def test_a_pass_checks_what_changed_and_ends_with_the_code_of_all_kernels(file):
    code, events = one_pass("--no-times")
    assert code == events[-1]["exit"] == 0
    assert events[0]["changed"] == events[0]["kernels"] == ["watched::twice:first", "watched::twice:second"]
    stages = [(event["kernel"][-6:], event["stage"]) for event in of(events, "verdict")]
    assert stages[:2] == [(":first"[-6:], "first"), ("second", "first")]
    assert {stage for _, stage in stages[2:]} == {"full"}

    file.write_text(OPERATOR.replace("FACTOR", "2.5"))
    code, events = one_pass("--no-times")
    assert code == events[-1]["exit"] == 1
    assert events[0]["changed"] == ["watched::twice:second"]
    (finding,) = of(events, "finding")
    assert (finding["rule"], finding["file"], finding["line"]) == ("opwright/values", "watched_ops.py", 14)
    assert "elements differ" in finding["message"]

    code, events = one_pass("--no-times")  # nothing changed: the same finding, with the same identifier
    assert code == 1
    assert events[0]["changed"] == []
    assert [each["id"] for each in of(events, "finding")] == [finding["id"]]
    assert {event["stage"] for event in of(events, "verdict")} == {"unchanged"}


@pytest.mark.slow
def test_what_passed_the_first_stage_only_is_checked_again(file, monkeypatch):
    """A save, or Ctrl-C, ends a pass between its stages."""
    run, started = once.check, []

    def ends(*operators, level, **options):
        if level != "smoke":
            raise KeyboardInterrupt
        return run(*operators, level=level, **options)

    monkeypatch.setattr(once, "check", ends)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            once.check_once(["watched_ops.py"], once.Options(times=False), started.append)
    starts = of(started, "start")
    assert [sorted(start["changed"]) for start in starts] == [["watched::twice:first", "watched::twice:second"]] * 2


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_is_one_record(file):
    file.write_text("def (")
    code, events = one_pass()
    assert code == 2
    assert [event["event"] for event in events] == ["error", "end"]
    assert "SyntaxError" in events[0]["message"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_passes_is_timed_with_the_change_since_its_last_version(file):
    _, events = one_pass()
    assert [(time["kernel"], time["change"]) for time in of(events, "time")] == [
        ("watched::twice:first", None),
        ("watched::twice:second", None),
    ]
    file.write_text(OPERATOR.replace("FACTOR", "2"))
    _, events = one_pass()
    (time,) = of(events, "time")
    assert time["kernel"] == "watched::twice:second"
    assert time["change"] == round(time["us"] / time["before_us"] - 1, 4)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_each_save_begins_a_pass(file):
    pytest.importorskip("watchfiles", reason="pip install watchfiles")
    process = subprocess.Popen(
        [sys.executable, "-m", "opwright", "watch", "watched_ops.py", "--json", "--no-times", "--level", "smoke"],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    events = queue.Queue()
    reader = threading.Thread(target=lambda: [events.put(json.loads(line)) for line in process.stdout], daemon=True)
    reader.start()

    def until_end():
        found = [events.get(timeout=120)]
        while found[-1]["event"] != "end":
            found.append(events.get(timeout=120))
        return found

    try:
        assert until_end()[-1]["exit"] == 0
        file.write_text(OPERATOR.replace("FACTOR", "2.5"))
        found = until_end()
        assert [event["status"] for event in of(found, "verdict") if "second" in event["kernel"]] == ["fail"]
        file.write_text(OPERATOR.replace("FACTOR", "2.0"))
        assert until_end()[-1]["exit"] == 0
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_without_watchfiles_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(OpwrightError, match=r"pip install 'opwright\[watch\]'"):
        loop.watch(["a.py"], [], print)


def test_only_sources_begin_a_pass(tmp_path):
    assert loop.is_source(str(tmp_path / "kernel.cu"))
    for other in ("a.pyc", "out.json", "__pycache__/a.py", ".a.py.swp", ".hidden/a.py"):
        assert not loop.is_source(str(tmp_path / other))
    assert loop.folders_of([str(tmp_path / "ops.py"), f"{tmp_path}/ops.py:twice"]) == [tmp_path.resolve()]


def test_a_state_that_cannot_be_read_is_none(tmp_path):
    file = tmp_path / "state.json"
    assert read_state(file) == {}
    known = {"a::b:c": Known("v", "pass", 1.0, "cpu", ({"id": "1"},), {"n=1": 2.0})}
    write_state(file, known)
    assert read_state(file) == known
    file.write_text('{"version": 1, "kernels": {"a": {"other": 1}}}')
    assert read_state(file) == {}


CUDA, CPP = "demo::saxpy:cuda", "demo::saxpy:cpp"
EVENTS = (
    {"event": "start", "kernels": [CUDA, CPP], "changed": [CUDA], "seconds": 0},
    {"event": "verdict", "kernel": CPP, "device": "cpu", "stage": "unchanged", "status": "pass", "seconds": 0},
    {"event": "verdict", "kernel": CUDA, "device": "cpu-sim", "stage": "first", "status": "fail", "seconds": 0.4},
    {
        "event": "finding", "id": "1", "title": "demo::saxpy cuda on cpu-sim: values", "file": "saxpy.py", "line": 14,
        "message": "smallest failing case: n=1\n" + "x" * 100, "seconds": 0.4,
    },
    {"event": "time", "kernel": "demo::saxpy:cpp", "case": "n=1", "us": 12.34, "before_us": 20.0, "change": -0.383},
    {"event": "end", "exit": 1, "seconds": 0.5},
)  # fmt: skip


def test_the_screen_shows_verdicts_the_case_and_the_change_within_80_columns():
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    screen = WatchScreen(console)
    for event in EVENTS:
        screen.on_event(event)
    console.print(screen.render())
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    shown = "\n".join(line.rstrip() for line in lines)
    assert "demo::saxpy:cuda  cpu-sim  ✗ failed  0.40 s" in shown
    assert "demo::saxpy:cpp   cpu      ✓ passed          12.3 µs -38 %" in shown
    assert "saxpy.py:14\nsmallest failing case: n=1" in shown
    assert "1 findings" in shown
