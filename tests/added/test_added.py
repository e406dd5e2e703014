"""Packages that add a language, a check or a format by entry points: installed with pip, and used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import opwright
from opwright.entry_points import Extensible

HERE = Path(__file__).parent
SOURCE = Path(opwright.__file__).parent.parent


def run(*command, folder, packages=()):
    paths = [str(folder / "installed"), str(SOURCE)] if packages else [str(SOURCE)]
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


def install(folder, *packages):
    for package in packages:
        copy = folder / f"source_{package}"
        subprocess.run(["cp", "-r", HERE / package, copy], check=True)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index",
             "--target", folder / "installed", copy],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


SAXPY = """
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

@ow.op("added::saxpy")
def saxpy(x: Float32[Tensor, "*n"], y: Float32[Tensor, "*n"], a: float) -> Float32[Tensor, "*n"]:
    return a * x + y

saxpy.rpn("right.rpn")
saxpy.rpn("wrong.rpn", name="wrong")
"""


@pytest.mark.slow
def test_a_language_is_a_method_and_is_checked(tmp_path):
    install(tmp_path, "language")
    (tmp_path / "ops.py").write_text(SAXPY)
    (tmp_path / "right.rpn").write_text("a x * y +")
    (tmp_path / "wrong.rpn").write_text("a x * y -")
    done = run("-m", "opwright", "check", "ops.py", "--check", "values", folder=tmp_path, packages=["language"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "added::saxpy wrong on cpu: values" in done.stdout
    (tmp_path / "wrong.rpn").write_text("a z * y -")
    done = run("ops.py", folder=tmp_path, packages=["language"])
    assert "wrong.rpn must use *, +, -, a, x, y, got 'z'" in done.stderr


@pytest.mark.slow
def test_a_check_runs_beside_the_others(tmp_path):
    install(tmp_path, "check")
    text = SAXPY.replace("saxpy.rpn", "# ").replace("a * x + y", "2000 + a * x + y")
    (tmp_path / "ops.py").write_text(text + "saxpy.python(lambda x, y, a: a * x + y + 2000)")
    done = run("-m", "opwright", "check", "ops.py", "--level", "smoke", folder=tmp_path, packages=["check"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "larger than 1000" in done.stdout
    listed = run("-m", "opwright", "check", "--list", folder=tmp_path, packages=["check"])
    assert "\nbounded " in listed.stdout


@pytest.mark.slow
def test_a_format_is_recognised(tmp_path):
    install(tmp_path, "format")
    (tmp_path / "ref.py").write_text(
        "import torch\ndef double(x): return 2 * x\ndef get_inputs(): return [torch.randn(300)]"
    )
    (tmp_path / "cand.py").write_text("def double(x): return 2.5 * x")
    (tmp_path / "tasks.ini").write_text(
        "[double]\nreference = ref.py\ncandidate = cand.py\n[other]\nreference = ref.py\n"
    )
    done = run("-m", "opwright", "judge", "tasks.ini", folder=tmp_path, packages=["format"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "elements differ" in done.stdout
    assert "it must name a candidate" in done.stdout


@pytest.mark.slow
def test_a_broken_entry_point_is_one_line_and_breaks_nothing(tmp_path):
    install(tmp_path, "broken")
    (tmp_path / "ops.py").write_text(SAXPY.replace("saxpy.rpn", "# "))
    done = run("-m", "opwright", "check", "ops.py", "--check", "contract", folder=tmp_path, packages=["broken"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if "entry point" in line]
    assert len(lines) == len(set(lines)) == 2, done.stderr
    assert "'missing' of opwright-broken in opwright.languages is left out: ModuleNotFoundError" in done.stderr
    assert "'no-check' of opwright-broken in opwright.checks is left out: TypeError: it must be an" in done.stderr


@pytest.mark.slow
def test_importing_opwright_reads_no_entry_points(tmp_path):
    code = "import opwright, sys; print({'importlib.metadata', 'opwright.entry_points'} & sys.modules.keys())"
    assert run("-c", code, folder=tmp_path).stdout == "set()\n"


def test_rows_are_read_once_and_in_their_place():
    table = Extensible({"a": 1, "last": 2}, "opwright.nothing", lambda name, value: (name, value), before="last")
    vars(table)["added"] = {"b": 3}
    assert [*table] == ["a", "b", "last"]
    assert (table["b"], len(table), "c" in table, table.get("c")) == (3, 3, False, None)
