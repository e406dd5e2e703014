"""One file makes a wheel of kernelsim."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kernelsim

ROOT = Path(kernelsim.__file__).parent
PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "kernelsim"
version = "0.1.0.dev0"
requires-python = ">=3.11"
dependencies = ["numpy>=1.26", "tree-sitter>=0.23", "tree-sitter-cuda>=0.20"]

[tool.setuptools.packages.find]
include = ["kernelsim*"]

[tool.setuptools.package-data]
kernelsim = ["py.typed", "**/*.h", "**/*.cpp", "cuda_sim/include/**/*"]
"""


@pytest.mark.slow  # builds a wheel
def test_a_wheel_of_it_has_every_file_and_runs_by_itself(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT, tmp_path / "kernelsim", ignore=ignored)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", "dist", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if "No module named 'setuptools'" in done.stderr:
        pytest.skip("setuptools is not installed")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("kernelsim-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.partition("/")[0].endswith(".dist-info")}
    own = {path.relative_to(ROOT.parent).as_posix() for path in ROOT.rglob("*") if path.is_file()}
    assert names == {name for name in own if "__pycache__" not in name}
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\nfrom kernelsim.__main__ import main\n"
    shown = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}main(['--help'])"], cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.stdout.startswith("usage: python -m kernelsim"), shown.stderr
