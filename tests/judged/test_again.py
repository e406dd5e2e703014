"""Several calls of ``ow.judge`` in one process: each judges the files as they are then."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import opwright as ow

pytestmark = pytest.mark.slow  # each judges several times
_REFERENCE = """
import torch
n = 300
def scaled(x): return FACTOR * x
def get_inputs(): return [torch.randn(n)]
"""
_OURS = """
def double(x): return x + x
def triple(x): return x + x + x
"""


def written(folder: Path, factor: int, ours: str = _OURS) -> list[str]:
    """The paths of a reference, and of two candidates of which one has its factor."""
    folder.mkdir(exist_ok=True)
    (folder / "reference.py").write_text(_REFERENCE.replace("FACTOR", str(factor)))
    (folder / "ours.py").write_text(ours)
    return [f"{folder}/reference.py:scaled", f"{folder}/ours.py:double", f"{folder}/ours.py:triple"]


def judged(paths: list[str], **options: object) -> dict[str, str]:
    report = ow.judge(*paths, checks=["values"], **options)
    print(*(row for row in report.rows), sep="\n")  # what pytest shows of a failure
    return {row.candidate.rpartition(":")[2]: row.status.value for row in report.rows}


TWICE = {"double": "pass", "triple": "fail"}
THRICE = {"double": "fail", "triple": "pass"}


@pytest.mark.parametrize("kept", [True, False], ids=["contracts are kept", "contracts are not kept"])
def test_files_are_judged_as_they_are_at_each_call(tmp_path: Path, kept: bool) -> None:
    options = {"write_contract": tmp_path / "contracts"} if kept else {}
    assert judged(written(tmp_path / "a", 2), **options) == TWICE
    assert judged(written(tmp_path / "a", 2), **options) == TWICE
    assert judged(written(tmp_path / "a", 3), **options) == THRICE
    assert judged(written(tmp_path / "b", 2), **options) == TWICE
    swapped = _OURS.replace("x + x + x", "y").replace("x + x", "x + x + x").replace("y", "x + x")
    assert judged(written(tmp_path / "b", 2, swapped), **options) == {"double": "fail", "triple": "pass"}


def test_what_is_finished_is_taken_up_in_the_same_process(tmp_path: Path) -> None:
    said = list[str]()
    options = {"resume": tmp_path / "done.jsonl", "events": ow.Events(resumed=said.append)}
    for _ in range(2):
        assert judged(written(tmp_path / "a", 2), **options) == TWICE
    assert [text.partition(" from ")[0] for text in said] == ["2 finished before are taken"]
    assert judged(written(tmp_path / "a", 3), **options) == THRICE
    assert "2 in it are not" in said[1]


def test_calls_in_two_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    found = dict[int, dict[str, str]]()

    def run(factor: int) -> None:
        found[factor] = judged(written(tmp_path / str(factor), factor))

    threads = [threading.Thread(target=run, args=(factor,)) for factor in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {2: TWICE, 3: THRICE}
