"""The limit on a candidate's memory: one that takes more ends with one line; what is only reserved does not count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opwright.checks.limits.resident_memory import MemoryWatch, usual_limit
from opwright.errors import CheckError
from opwright.judged.run import judge
from opwright.results import Status

REFERENCE = """
import torch
rows, columns = 8, 4096
n = 300
def double(x): return 2 * x
def get_inputs(): return [torch.randn(n)]
"""
CANDIDATES = """
import mmap
import subprocess
import sys
import torch
kept = []
def right(x):
    return x + x
def eats(x):
    while True:
        kept.append(torch.ones(1 << 24))
def eats_in_a_child(x):
    eat = "kept = []\\nwhile True: kept.append(bytearray(b'x') * (1 << 24))"
    subprocess.run([sys.executable, "-c", eat])
    return x + x
def eats_slowly(x):
    kept.append(bytearray(b"x") * (1 << 26))
    return x + x
def much(x):
    big = torch.ones(1 << 27)  # half of a GiB
    return x * 2 + big[:1].sum() * 0
def reserves(x):
    if not kept:
        unreserved = 0x4000  # MAP_NORESERVE, as CUDA does
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved
        kept.append(mmap.mmap(-1, 1 << 40, prot=mmap.PROT_READ, flags=flags))
    return x + x
"""
EATS = "kept = []\nwhile True: kept.append(bytearray(b'x') * (1 << 24))"
WAITS = "import time; print('started', flush=True); time.sleep(60)"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "ours.py").write_text(CANDIDATES)
    return tmp_path


@pytest.mark.slow  # it fills gigabytes, in whole checks
def test_a_candidate_without_an_end_to_its_memory_is_one_line_and_the_others_go_on(task: Path) -> None:
    names = ("right", "eats", "eats_in_a_child", "eats_slowly", "much", "reserves")
    report = judge(f"{task}/reference.py:double", *(f"{task}/ours.py:{name}" for name in names), memory=2, jobs=1)
    found = {row.candidate.rpartition(":")[2]: row for row in report.rows}
    for name in ("eats", "eats_in_a_child", "eats_slowly"):
        worst = found[name].worst
        assert worst is not None
        assert found[name].status is Status.INCONCLUSIVE
        assert worst.message == "the kernel took more than 2 GiB of memory, and was stopped"
        assert worst.remedy == "allow more with --memory 4"
    for name in ("right", "much", "reserves"):
        assert found[name].status.is_right, str(found[name].verdict)
    assert report.sandbox.endswith("at most 2 GiB of memory each")


@pytest.mark.slow  # it fills a gigabyte
def test_the_code_of_a_task_has_the_same_limit(task: Path) -> None:
    eating = REFERENCE.replace("n = 300", "n = 300\nkept = []\nwhile True: kept.append(bytearray(b'x') * (1 << 24))")
    (task / "reference.py").write_text(eating)
    (row,) = judge(f"{task}/reference.py:double", f"{task}/ours.py:right", memory=1.5).rows
    assert row.status is Status.REFUSED
    assert row.reason.endswith("took more than 1.5 GiB of memory")


def test_a_process_ends_with_its_descendants() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EATS!r}])"
    with subprocess.Popen([sys.executable, "-c", code]) as process, MemoryWatch(process.pid, 200 << 20) as watch:
        assert process.wait(60) == -9
    assert watch.exceeded == 200 << 20


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_a_process_within_its_limit_goes_on(limit: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with MemoryWatch(process.pid, limit) as watch:
            process.stdout.readline()
        assert watch.exceeded == 0
        assert process.poll() is None
        process.kill()


def test_a_process_that_has_ended_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with MemoryWatch(process.pid, 1) as watch:
        pass
    assert watch.exceeded == 0


def test_few_processes_get_much_and_many_get_enough() -> None:
    assert usual_limit(1) >= usual_limit(4) >= usual_limit(1000) > 0
    assert usual_limit(1000) <= 4 << 30


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(CheckError, match="memory must be at least 0 GiB, got -1"):
        judge("a.py:f", "b.py:g", memory=-1)
