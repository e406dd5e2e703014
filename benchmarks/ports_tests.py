"""Public extensions with CUDA, moved: checked, packaged, and their own tests run from the package without opwright.

Usage: python benchmarks/ports_tests.py FETCHED FILE [NAME...]

FETCHED is a folder with the repositories extension-cpp, fused-ssim and pytorch-msssim (which fused-ssim's tests need),
each under its own name. Nothing of them is stored here: ``moved/`` has what an author writes in place of registrations,
gradients, fakes and builds. Sources and tests are used as they are. Without a GPU, kernels for CUDA are compiled into
the package if there is nvcc, and what needs a GPU is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
import torch

from opwright.machine import this_machine

HERE = Path(__file__).resolve().parent
# Before its tests, a process makes opwright impossible to import.
_WITHOUT_OPWRIGHT = """
import sys
class NoOpwright:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opwright":
            raise ModuleNotFoundError("opwright is not here", name=name)
sys.meta_path.insert(0, NoOpwright())
"""


@dataclass(frozen=True)
class Moved:
    """A repository, and the package that it becomes.

    Attributes:
        operators: the file in ``moved``, which becomes ``ops.py`` beside the sources.
        package: its name in ``import``.
        tests: its own tests; with pytest, or as scripts that raise.
        beside: folders of the fetched repositories that the tests import as they are.
        replaced: files of the repository that ``ops.py`` replaces.
        needs_gpu: whether none of the tests runs without one.
    """

    repository: str
    operators: str
    package: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    pytest: bool
    replaced: tuple[str, ...]
    beside: tuple[str, ...] = ()
    needs_gpu: bool = False


EXTENSIONS = (
    Moved(
        "extension-cpp", "extension_cpp.py", "extension_cpp", ("extension_cpp/csrc",), ("test/test_extension.py",),
        pytest=True, replaced=("setup.py", "extension_cpp/ops.py"),
    ),
    Moved(
        "fused-ssim", "fused_ssim.py", "fused_ssim_cuda", ("ssim.cu", "ssim.h", "ssim3d.cu", "ssim3d.h"),
        ("tests/test.py", "tests/test_3D.py"), pytest=False, replaced=("setup.py", "ext.cpp"),
        beside=("fused-ssim/fused_ssim", "pytorch-msssim/pytorch_msssim"), needs_gpu=True,
    ),
)  # fmt: skip


def prepare(extension: Moved, fetched: Path, folder: Path) -> Path:
    """A folder with the sources, and the file of operators beside them."""
    project = folder / extension.package
    project.mkdir()
    for part in extension.sources:
        (project / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (fetched / extension.repository / part).is_dir() else shutil.copy
        copy(fetched / extension.repository / part, project / part)
    shutil.copy(HERE / "moved" / extension.operators, project / "ops.py")
    return project


def package_and_test(extension: Moved, fetched: Path, project: Path) -> dict[str, Any]:
    """Make the package, install it, and run the extension's own tests with it."""
    source, has_gpu = fetched / extension.repository, this_machine().has_gpu
    site, record = package(extension, project, has_gpu)
    if site is None or (extension.needs_gpu and not has_gpu):
        return {"package": record, "tests": "need a GPU" if site is not None else "there is no package"}
    for part in extension.beside:
        shutil.copytree(fetched / part, site / Path(part).name)
    return {
        "package": record,
        "tests": {test: run_test(source / test, site, extension.pytest) for test in extension.tests},
    }


def checks(extension: Moved, project: Path) -> dict[str, Any]:
    """The verdicts on each device that is here."""
    devices = [] if extension.needs_gpu else ["cpu"]
    devices += ["cuda"] * this_machine().has_gpu
    return {"check": {device: check(project, device) for device in devices}}


def package(extension: Moved, project: Path, has_gpu: bool) -> tuple[Path | None, dict[str, Any]]:
    """The folder into which the package is installed; from its wheel, if one can be built here."""
    command = ["-m", "opwright", "package", "ops.py", "--name", extension.package, "--out", "build"]
    if this_machine().nvcc is None and not has_gpu:
        command += ["--allow-missing", "cuda"]
    start = time.perf_counter()
    done = _run([*command, "--wheel"], project)
    record: dict[str, Any] = {"seconds": round(time.perf_counter() - start, 1)}
    wheels = [*(project / "build" / "dist").glob("*.whl")]
    if not wheels and (project / "build" / extension.package / "manifest.json").is_file():
        return project / "build", record | {"wheel": f"none: {_end(done)}"}
    if not wheels:
        return None, record | {"error": _end(done)}
    site = project / "site"
    installed = _run(
        ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheels[0])], project
    )
    if installed.returncode != 0:
        return None, record | {"error": _end(installed)}
    return site, record | {"wheel": wheels[0].name}


def run_test(test: Path, site: Path, with_pytest: bool) -> dict[str, Any]:
    """Run a file of tests, unedited, in a process that finds the package and cannot import opwright."""
    what = (
        f"import pytest; raise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(test)!r}]))"
        if with_pytest
        else f"import runpy; runpy.run_path({str(test)!r}, run_name='__main__')"
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as elsewhere:
        done = _run(["-c", _WITHOUT_OPWRIGHT + what], Path(elsewhere), site, 240)
    record: dict[str, Any] = {"exit": done.returncode, "seconds": round(time.perf_counter() - start, 1)}
    if with_pytest:
        counts = re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)
        record |= {outcome: int(count) for count, outcome in counts}
    elif done.returncode == 0:
        record["printed"] = done.stdout.strip().splitlines()
    return record if done.returncode == 0 else record | {"end": _end(done)}


def check(project: Path, device: str) -> dict[str, Any]:
    """The verdicts of the kernels for a device."""
    report = project / f"check-{device}.json"
    jobs = str(min(8, os.cpu_count() or 1))
    start = time.perf_counter()
    done = _run(
        ["-m", "opwright", "check", "ops.py", "--device", device, "--jobs", jobs, "--json", str(report)], project
    )
    seconds = round(time.perf_counter() - start, 1)
    if not report.is_file():
        return {"seconds": seconds, "error": _end(done)}
    found: dict[str, Any] = {}
    for verdict in json.loads(report.read_text())["verdicts"]:
        if verdict["status"] == "refused":  # a kernel for another device
            continue
        wrong = [f for f in verdict["findings"] if f["status"] != "pass"]
        texts = [f"{f['check']}: {f['case']}: {f['message']}"[:500] for f in wrong]
        found[f"{verdict['op']} {verdict['kernel']}"] = {"status": verdict["status"], "findings": texts}
    return {"seconds": seconds, "verdicts": found}


def _run(
    arguments: Sequence[str], folder: Path, path: Path = HERE.parent / "src", timeout: int = 400
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    try:
        return subprocess.run(
            [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True,
            text=True, check=False, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([*arguments], 124, "", f"it ran for more than {timeout} s")


def _end(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout + done.stderr).strip()[-1500:]


def _lines(file: Path) -> int:
    return sum(bool(line.strip()) for line in file.read_text().splitlines())


def _lines_of(extension: Moved, fetched: Path, project: Path) -> dict[str, int]:
    """The lines of ``ops.py``, and of what it replaces: builds, and Python or C++ that registers."""
    replaced = {name: _lines(fetched / extension.repository / name) for name in extension.replaced}
    return {"ops.py": _lines(project / "ops.py")} | replaced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fetched", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    fetched = options.fetched.resolve()
    chosen = [e for e in EXTENSIONS if not options.names or e.repository in options.names]
    found: dict[str, dict[str, Any]] = {e.repository: {} for e in chosen}
    machine = {"torch": torch.__version__, "python": platform.python_version(), "machine": this_machine().to_json()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool, ThreadPoolExecutor(1) as one:
        parts: dict[Future[dict[str, Any]], Moved] = {}
        for extension in chosen:
            project = prepare(extension, fetched, Path(folder))
            found[extension.repository]["lines"] = _lines_of(extension, fetched, project)
            parts[pool.submit(package_and_test, extension, fetched, project)] = extension
            parts[one.submit(checks, extension, project)] = extension  # one after the other, beside the packages
        for part in as_completed(parts):  # a record of what is done, should time run out
            found[parts[part].repository] |= part.result()
            records.write(options.file, machine | {"extensions": found})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
