"""The time of builds of C++ extensions is reported while they run."""

from __future__ import annotations

import os
import time

import pytest
from torch.utils import cpp_extension

import opwright as ow
from opwright.checks.process.timed_extensions import report_builds

REFERENCE = """
import torch
n = 300
def double(x): return 2 * x
def get_inputs(): return [torch.randn(n)]
"""
SLOW = """
import torch
from torch.utils.cpp_extension import load_inline

module = load_inline(
    name="twice_{number}", cpp_sources="torch::Tensor twice(torch::Tensor x) {{ return x + x; }}", functions=["twice"]
)

def double(x):
    return module.twice(x)
"""


@pytest.fixture
def times(monkeypatch):
    monkeypatch.setattr(cpp_extension, "load_inline", lambda seconds, fails=False: _build(seconds, fails))
    monkeypatch.setattr(cpp_extension, "load", cpp_extension.load)
    found: list[float] = []
    report_builds(found.append, every=0.05)
    return found


def _build(seconds, fails):
    time.sleep(seconds)
    if fails:
        raise RuntimeError("nvcc: no such file")
    return "module"


def test_the_seconds_of_a_build_are_reported_meanwhile(times):
    assert cpp_extension.load_inline(0.3) == "module"
    assert len(times) > 1
    assert sum(times) >= 0.3


def test_what_a_build_raises_is_raised(times):
    with pytest.raises(RuntimeError, match="nvcc: no such file"):
        cpp_extension.load_inline(0.0, fails=True)
    assert len(times) == 1


@pytest.mark.slow  # a build with torch's headers takes 20 seconds
def test_a_build_may_take_longer_than_a_step(tmp_path):
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "slow.py").write_text(SLOW.format(number=os.getpid()))
    report = ow.judge(f"{tmp_path}/reference.py:double", f"{tmp_path}/slow.py:double", timeout=15, device="cpu")
    assert [row.status for row in report.rows] == ["pass"], report.rows[0].verdict.findings
