"""Fixtures for all tests: a cache folder for the session, skips, unused operator names, new Pythons."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tests import REPOSITORY
from tests.sampled import half_of
from tests.warm import run_script

# Before torch and opwright read them. Within a session the caches are shared, by pytest-xdist's workers too, so that
# no test compiles what another one compiled; the user's own caches are never touched.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
_SESSION = Path(os.environ["OPWRIGHT_TESTS_SESSION"] if _WORKER else tempfile.mkdtemp(prefix="opwright-tests-"))
os.environ["OPWRIGHT_TESTS_SESSION"] = str(_SESSION)
os.environ["OPWRIGHT_CACHE_DIR"] = str(_SESSION / "opwright")
os.environ["KERNELSIM_CACHE_DIR"] = str(_SESSION / "kernelsim")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_SESSION / "inductor")
os.environ["TRITON_CACHE_DIR"] = str(_SESSION / "triton")
os.environ.pop("TRITON_INTERPRET", None)
# Hundreds of processes import opwright. Without its bytecode, which containers often switch off, each of them compiles
# all that it imports, for half a second to a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Several tests run at a time; OpenMP's threads should not spin on cores that the others need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No test depends on how busy the machine is, nor on luck: what fails once fails again.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")

_numbers = itertools.count()


def pytest_sessionstart() -> None:
    from opwright.workers import spawn

    spawn._MODULE = "tests.fork_server"


def pytest_unconfigure() -> None:
    if not _WORKER:
        shutil.rmtree(_SESSION, ignore_errors=True)


def _seed(name: str) -> None:
    """Random numbers that are the same in each run, and differ from test to test."""
    import numpy
    import torch

    seed = zlib.crc32(name.encode())
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):  # which may draw numbers for its parameters
        _seed(collector.nodeid)


@pytest.fixture(autouse=True)
def _same_numbers_in_each_run(request: pytest.FixtureRequest) -> None:
    _seed(request.node.nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--half", type=int, choices=(0, 1), help="run half of the tests: all of a file, or none")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    half = config.getoption("half")
    if half is not None:
        config.hook.pytest_deselected(items=[item for item in items if half_of(item.nodeid) != half])
        items[:] = [item for item in items if half_of(item.nodeid) == half]
    from opwright.backends.cuda import nvrtc
    from opwright.backends.mojo.backend import MojoBackend
    from opwright.backends.mojo.max import MaxBackend
    from opwright.machine import this_machine
    from opwright.results import Refused

    machine = this_machine()
    cuda = nvrtc.available()
    mojo, max_ = MojoBackend().available(machine), MaxBackend().available(machine)
    lacking = {
        "nvrtc": cuda.reason if isinstance(cuda, Refused) else None,
        "nvcc": None if machine.nvcc else "there is no nvcc",
        "compiler": None if machine.cxx else "there is no C++ compiler",
        "triton": None if machine.triton else "Triton is not installed",
        "mojo": mojo.reason if isinstance(mojo, Refused) else mojo.note if "CPU kernels only" in mojo.note else None,
        "max": max_.reason if isinstance(max_, Refused) else None,
        "gpu": None if machine.has_gpu else "there is no NVIDIA GPU",
    }
    for item in items:
        for need, why in lacking.items():
            if why and item.get_closest_marker(need):
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_collection_finish() -> None:
    """What was imported and collected stays, a million objects: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The reasons for skipped tests, each once."""
    reasons = collections.Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else "?"
        for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count:>4}  {reason}")


_PLAIN_PACKAGE = """
import sys, torch

class Plain(torch.nn.Module):
    def forward(self, x):
        return x.sin() + 1

x = torch.randn(8, device=sys.argv[1])
package = torch._inductor.aoti_compile_and_package(torch.export.export(Plain(), (x,)), package_path=sys.argv[2])
torch._inductor.aoti_load_package(package)(x)
"""


@functools.cache
def _aot_packages_crash(device: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _PLAIN_PACKAGE, device, f"{folder}/plain.pt2"]
        return subprocess.run(command, check=False).returncode < 0


@pytest.fixture
def needs_aot_packages() -> Callable[[str], None]:
    """Skips where torch itself crashes on loading any AOTInductor package for a device, one without our operators too
    (seen of torch 2.11 with CUDA)."""

    def look(device: str) -> None:
        if _aot_packages_crash(device):
            import torch

            pytest.skip(f"torch {torch.__version__} itself crashes when it loads an AOTInductor package on {device}")

    return look


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses: what is registered with torch stays for the process, and what is compiled
    for the session."""
    return f"tests{_WORKER}{next(_numbers)}"


RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run a script in a process of its own; fails the test, with the script's output, unless it exits as expected."""

    def run(
        script: str,
        *args: object,
        env: dict[str, str] | None = None,
        file: str = "script.py",
        expect: int = 0,
        fresh: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / file
        path.write_text(textwrap.dedent(script))
        found = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]), **(env or {})}
        done = run_script(path, *args, env=found, fresh=fresh)
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
