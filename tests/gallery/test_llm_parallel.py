"""gallery.llm in several processes: FSDP2 and tensor parallelism give the losses of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "llm_parallel.py"


@pytest.mark.slow  # two processes, which import torch and train six models
def test_losses_of_two_processes_are_those_of_one(tmp_path):
    file = tmp_path / "rows.json"
    command = [sys.executable, str(BENCHMARK), str(file), "--cpu", "2", "--steps", "8", "--eager"]
    subprocess.run(command, check=True, timeout=280)
    rows = json.loads(file.read_text())["rows"]
    expected = rows[0]["losses"]
    assert expected[-1] < expected[0] - 0.05  # it learns
    assert len(rows) == 6
    for row in rows:
        assert row["losses"] == pytest.approx(expected, abs=2e-3), row["mode"]
