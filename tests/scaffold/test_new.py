"""``opwright new``: the package that it writes can be installed, and its tests pass at once."""

from __future__ import annotations

import importlib.resources
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from opwright.cli import app
from opwright.errors import CheckError
from opwright.scaffold.write import KERNELS, write_package


def seconds_of_children():
    """Of CPU time, which other work on the machine hardly changes."""
    used = os.times()
    return used.children_user + used.children_system


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.triton
def test_a_new_package_is_installed_and_its_tests_pass_within_a_minute(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "opwright", "new", "my_kernels"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install -e '.[test]' && pytest" in done.stdout
    before = seconds_of_children()
    install = [
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--prefix",
        tmp_path / "prefix",
    ]
    subprocess.run([sys.executable, "-m", *install, "-e", "."], cwd=tmp_path / "my_kernels", check=True)
    (site,) = (tmp_path / "prefix").glob("lib/python*/site-packages")
    # An environment of its own would have no torch: the file that names the editable package is read in this one.
    script = (
        f"import site, sys, pytest; site.addsitedir({str(site)!r}); sys.exit(pytest.main(['-p', 'no:cacheprovider']))"
    )
    tested = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "my_kernels", capture_output=True, text=True, check=False,
        env={**os.environ, "OPWRIGHT_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "2 passed" in tested.stdout
    assert seconds_of_children() - before < 60


def test_the_workflow_satisfies_githubs_schema(tmp_path):
    yaml = pytest.importorskip("yaml")
    jsonschema = pytest.importorskip("jsonschema")
    write_package(tmp_path / "my_kernels", ["cpp"])
    schemas = importlib.resources.files(pytest.importorskip("check_jsonschema")) / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "github-workflows.json").read_text())
    workflow = yaml.load((tmp_path / "my_kernels/.github/workflows/check.yml").read_text(), Loader=yaml.BaseLoader)
    jsonschema.validate(workflow, schema)
    commands = [step["run"] for step in workflow["jobs"]["check"]["steps"] if "run" in step]
    assert "opwright check my_kernels --annotations github --json check.json --sarif check.sarif" in commands
    assert any("GITHUB_STEP_SUMMARY" in command for command in commands)


def test_only_the_languages_asked_for_are_written(tmp_path):
    files = write_package(tmp_path / "my-kernels", ["python", "triton"])
    names = {file.name for file in files}
    assert "saxpy_triton.py" in names
    assert not names & {"saxpy.cpp", "saxpy.cu"}
    text = (tmp_path / "my-kernels/src/my_kernels/saxpy.py").read_text()
    assert "saxpy.triton(" in text
    assert "@saxpy.python" in text
    assert "saxpy.cpp" not in text


@pytest.mark.parametrize("languages", [[language] for language in KERNELS] + [[*KERNELS]])
def test_what_is_written_is_formatted(languages, tmp_path):
    write_package(tmp_path / "my_kernels", languages)
    options = ["--isolated", "--line-length", "120"]
    for command in (["check", *options, "--ignore", "F722"], ["format", *options, "--check"]):
        done = subprocess.run(
            ["ruff", *command, "."], cwd=tmp_path / "my_kernels", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(CheckError, match=r"the folder must be new or empty, got .*full"):
        write_package(tmp_path / "full", ["cpp"])
    with pytest.raises(CheckError, match="must have the name of a Python module, got '3d'"):
        write_package(tmp_path / "3d", ["cpp"])
    assert CliRunner().invoke(app, ["new", str(tmp_path / "a"), "--language", "rust"]).exit_code != 0
    assert not (tmp_path / "a").exists()
