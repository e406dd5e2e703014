"""Operators in the tests of a project: as pytest and Hypothesis run them."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import hypothesis
import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.errors import CheckError

OPS = """
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

@ow.op("testing_ops::doubled")
def doubled(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return 2 * x

@doubled.python(name="right")
def _(x):
    return x + x

@doubled.python(name="wrong")
def _(x):
    out = x + x
    out[3:] = 0
    return out

doubled.triton(lambda x: x, name="absent", devices=["cuda"], when=lambda x: False)
"""
CHECKS = 'device="cpu", checks=["values", "own work", "streams"]'


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "testing_ops.py").write_text(OPS)
    return tmp_path


@pytest.mark.slow  # a pytest of its own, and two whole checks
def test_one_line_in_conftest_makes_tests(project: Path) -> None:
    line = f'import opwright as ow\now.testing.collect("testing_ops.py", {CHECKS}, kernels=["right", "wrong"])\n'
    (project / "conftest.py").write_text(line)
    done = run(project, "--junitxml=out.xml")
    assert "1 failed, 3 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "doubled[wrong-cpu-values]" in done.stdout
    assert "smallest failing case: n=4" in done.stdout
    assert "again: opwright check" in done.stdout
    assert "Traceback" not in done.stdout
    cases = ElementTree.parse(project / "out.xml").iter("testcase")
    assert sum(case.find("failure") is not None for case in cases) == 1
    chosen = run(project, "conftest.py::doubled[right-cpu-values]")
    assert "1 passed" in chosen.stdout, chosen.stdout + chosen.stderr


@pytest.mark.exhaustive
@pytest.mark.slow  # a pytest of its own, and whole checks
def test_cases_parametrise_a_test(project: Path) -> None:
    (project / "test_ops.py").write_text(
        f"import opwright as ow\nfrom testing_ops import doubled\n"
        f"@ow.testing.cases(doubled, {CHECKS})\ndef test_doubled(check):\n    check()\n"
    )
    done = run(project, "-rfs", "--strict-markers", "-k", "values")
    assert "1 failed, 1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "test_ops.py::test_doubled[wrong-cpu-values]" in done.stdout


def test_a_hook_of_the_file_s_own_is_not_replaced(project: Path) -> None:
    text = (
        'import opwright as ow\ndef pytest_collect_file(file_path):\n    pass\now.testing.collect("testing_ops.py")\n'
    )
    (project / "conftest.py").write_text(text)
    done = run(project)
    assert "pytest_collect_file must be left to ow.testing.collect" in done.stdout + done.stderr


def test_the_package_registers_no_plugin() -> None:
    """Pytest would rewrite its assertions, and operators would have other fingerprints than in workers."""
    assert "pytest11" not in {point.group for point in importlib.metadata.distribution("opwright").entry_points}


def test_collect_belongs_into_a_conftest() -> None:
    with pytest.raises(CheckError, match=r"must be called in a conftest\.py, got test_testing\.py"):
        ow.testing.collect("testing_ops.py")


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(CheckError, match=r"got 'vales'\n  → write 'values'"):
        ow.testing.cases(scaled, checks=["vales"])


@ow.op("testing_ops::scaled", where="n % 2 == 0")
def scaled(x: Float32[Tensor, "m n"], a: float) -> Float32[Tensor, "m n"]:
    return a * x


drawn: list[tuple[int, ...]] = []


@hypothesis.settings(max_examples=40)
@hypothesis.given(arguments=ow.testing.strategy(scaled))
def test_a_strategy_draws_calls_that_the_contract_admits(arguments: tuple[Tensor, float]) -> None:
    x, a = arguments
    drawn.append(tuple(x.shape))
    assert torch.equal(scaled(x, a), a * x) or x.isnan().any() or a != a


def test_a_strategy_finds_the_smallest_failing_call() -> None:
    strategy = ow.testing.strategy(scaled)
    found = hypothesis.find(strategy, lambda arguments: arguments[0].shape[1] > 2)
    assert found[0].shape[1] <= 8
    assert found[0].is_contiguous()
