"""Making and installing packages, and Pythons that have them but cannot import opwright."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

from tests.warm import run_module, run_script

SOURCES = Path(__file__).parent / "sources"
# Kernels of any language may be left out.
ALL = ("--allow-missing", "all")
# opwright may be installed where the tests run: no import of it may succeed, from anywhere.
WITHOUT_OPWRIGHT = """
import sys

class NoOpwright:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opwright":
            raise ModuleNotFoundError("opwright is not here", name=name)

sys.meta_path.insert(0, NoOpwright())
try:
    import opwright
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("opwright can be imported")
"""

Run = Callable[..., str]


def opwright(*arguments: object, cwd: Path | None = None, expect: int = 0) -> str:
    """Run the command line; its output and errors together."""
    done = run_module("opwright", *arguments, cwd=cwd, timeout=250)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def install(what: Path, into: Path) -> Path:
    """Install like a user, but without a network and into a folder of the test."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*command, str(into), str(what)], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


def python_with(*folders: Path) -> Run:
    """Runs a script in a new Python that finds these folders and no opwright; gives what it prints."""

    def run(script: str, *, blocked: bool = True, expect: int = 0, env: dict[str, str] | None = None) -> str:
        text = (WITHOUT_OPWRIGHT if blocked else "") + textwrap.dedent(script)
        paths = [*map(str, folders), *([] if blocked else [os.environ.get("PYTHONPATH", "")])]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "script.py").write_text(text)
            environment = {"PYTHONPATH": os.pathsep.join(paths), **(env or {})}
            done = run_script(Path(folder) / "script.py", env=environment, timeout=250)
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if expect == 0 else done.stdout + done.stderr

    return run
