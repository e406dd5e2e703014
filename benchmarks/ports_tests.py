"""Public extensions with CUDA, moved: checked, packaged, and their own tests run from the package without opwright.

Usage: python benchmarks/ports_tests.py FETCHED FILE [NAME...] [--without-checks | --only-checks] [--device DEVICE...]

FETCHED is a folder with the repositories of ``EXTENSIONS``, and pytorch-msssim (which fused-ssim's tests need), each
under its own name. What else tests import has to be installed: torchvision, cv2 and what detectron2 and pytorch3d need.
Nothing of them is stored here: ``moved/`` has what an author writes in place of registrations, gradients, fakes and
builds. Sources and tests are used as they are. Without a GPU, kernels for CUDA are compiled into the package if there
is nvcc, and what needs a GPU is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
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
        written: files of these that load or make the operators, and the file in ``moved`` in place of each.
        shims: files of ``moved`` beside ``ops.py``.
        ported: sources that ``opwright port`` rewrites first.
        replaced: files of the repository that ``ops.py`` replaces.
        without_gpu: pytest's expression for the tests that run without one, if others do not skip themselves.
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
    written: tuple[tuple[str, str], ...] = ()
    shims: tuple[str, ...] = ()
    ported: tuple[str, ...] = ()
    without_gpu: str = ""
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
    Moved(
        "pytorch_spline_conv", "spline_conv.py", "torch_spline_conv_kernels", ("csrc",),
        ("test/test_basis.py", "test/test_conv.py", "test/test_weighting.py"), pytest=True,
        replaced=("setup.py", "csrc/basis.cpp", "csrc/weighting.cpp", "torch_spline_conv/__init__.py"),
        beside=("pytorch_spline_conv/torch_spline_conv",),
        written=(("torch_spline_conv/__init__.py", "torch_spline_conv.py"),),
    ),
    Moved(
        "pytorch_cluster", "cluster.py", "torch_cluster_kernels", ("csrc",), ("test/test_grid.py",), pytest=True,
        replaced=("setup.py", "csrc/grid.cpp", "torch_cluster/__init__.py"), beside=("pytorch_cluster/torch_cluster",),
        written=(("torch_cluster/__init__.py", "torch_cluster.py"),),
    ),
    Moved(
        "pytorch_scatter", "scatter.py", "torch_scatter_kernels", ("csrc",), ("test/test_gather.py",), pytest=True,
        replaced=("setup.py", "torch_scatter/__init__.py", "csrc/segment_csr.cpp", "csrc/segment_coo.cpp"),
        beside=("pytorch_scatter/torch_scatter",), shims=("scatter.cpp", "scatter.cu"),
        written=(("torch_scatter/__init__.py", "torch_scatter.py"),),
    ),
    Moved(
        "pytorch3d", "pytorch3d.py", "pytorch3d_kernels", ("pytorch3d/csrc",),
        ("tests/test_face_areas_normals.py", "tests/test_packed_to_padded.py"), pytest=True,
        replaced=(
            "pytorch3d/csrc/face_areas_normals/face_areas_normals.h",
            "pytorch3d/csrc/packed_to_padded_tensor/packed_to_padded_tensor.h",
        ),
        beside=("pytorch3d/pytorch3d",), written=(("pytorch3d/_C.py", "pytorch3d_C.py"),),
        without_gpu="not cuda",
    ),
    Moved(
        "detectron2", "detectron2.py", "detectron2_kernels", ("detectron2/layers/csrc",),
        (
            "tests/layers/test_nms_rotated.py", "tests/layers/test_roi_align_rotated.py",
            "tests/structures/test_rotated_boxes.py",
        ),
        pytest=True,
        replaced=tuple(
            f"detectron2/layers/csrc/{name}/{name}.h" for name in ("ROIAlignRotated", "box_iou_rotated", "nms_rotated")
        ),
        beside=("detectron2/detectron2",), written=(("detectron2/_C.py", "detectron2_C.py"),),
    ),
    Moved(
        "Deformable-DETR/models/ops", "deformable_detr.py", "MultiScaleDeformableAttention", ("src",), ("test.py",),
        pytest=False, replaced=("setup.py", "src/vision.cpp", "src/ms_deform_attn.h"),
        beside=("Deformable-DETR/models/ops/functions",), ported=("src/cuda/ms_deform_attn_cuda.cu",), needs_gpu=True,
    ),
    Moved(
        "torchlpc", "torchlpc.py", "torchlpc_kernels", ("torchlpc/csrc",),
        ("tests/test_extension.py", "tests/test_grad.py", "tests/test_vmap.py"), pytest=True, replaced=("setup.py",),
        beside=("torchlpc/torchlpc",), written=(("torchlpc/_C.py", "torchlpc_C.py"),),
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
    for shim in extension.shims:
        shutil.copy(HERE / "moved" / shim, project / shim)
    for source in extension.ported:
        _run(["-m", "opwright", "port", source, "-I", extension.sources[0]], project)
    return project


def package_and_test(extension: Moved, fetched: Path, project: Path) -> dict[str, Any]:
    """Make the package, install it, and run the extension's own tests with it."""
    source, has_gpu = fetched / extension.repository, this_machine().has_gpu
    site, record = package(extension, project, has_gpu)
    if site is None or (extension.needs_gpu and not has_gpu):
        return {"package": record, "tests": "need a GPU" if site is not None else "there is no package"}
    for part in extension.beside:
        shutil.copytree(fetched / part, site / Path(part).name, ignore=shutil.ignore_patterns("csrc"))
    for place, ours in extension.written:
        shutil.copy(HERE / "moved" / ours, site / place)
    chosen = ["-k", extension.without_gpu] if extension.without_gpu and not has_gpu else []
    options = chosen if extension.pytest else None
    return {
        "package": record,
        "tests": {test: run_test(source, test, site, options) for test in extension.tests},
    }


def checks(extension: Moved, project: Path, jobs: int, limit: float, devices: Sequence[str] = ()) -> dict[str, Any]:
    """The verdicts on some devices, or on each that is here.

    Args:
        limit: seconds for each device; what was found until then counts.
    """
    here = [] if extension.needs_gpu else ["cpu"]
    here += ["cuda"] * this_machine().has_gpu
    return {"check": {device: check(project, device, jobs, limit) for device in devices or here}}


def package(extension: Moved, project: Path, has_gpu: bool) -> tuple[Path | None, dict[str, Any]]:
    """The folder into which the package is installed; from its wheel, if one can be built here."""
    command = ["-m", "opwright", "package", "ops.py", "--name", extension.package, "--out", "build"]
    if this_machine().nvcc is None and not has_gpu:
        command += ["--allow-missing", "cuda"]
    start = time.perf_counter()
    done = _run([*command, "--wheel"], project, timeout=1200)
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


def run_test(source: Path, test: str, site: Path, options: Sequence[str] | None) -> dict[str, Any]:
    """Run a file of tests, unedited, in a process that finds the package and cannot import opwright.

    It runs as a copy, away from the repository: what is imported from there would be the extension as it was.

    Args:
        options: of pytest; None for a script.
    """
    what = (
        f"import pytest; raise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', {test!r}, *{options!r}]))"
        if options is not None
        else f"import runpy; runpy.run_path({test!r}, run_name='__main__')"
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as elsewhere:
        copy_tests(source, test, Path(elsewhere))
        done = _run(["-c", _WITHOUT_OPWRIGHT + what], Path(elsewhere), site)
    record: dict[str, Any] = {"exit": done.returncode, "seconds": round(time.perf_counter() - start, 1)}
    if options is not None:
        counts = re.findall(r"(\d+) (passed|failed|skipped|deselected|error)", done.stdout)
        record |= {outcome: int(count) for count, outcome in counts}
    else:
        record["printed"] = done.stdout.strip().splitlines()
    return record if done.returncode == 0 else record | {"end": _end(done)}


def copy_tests(source: Path, test: str, folder: Path) -> None:
    """A file of tests, with the others of its folder, which it may import."""
    first = Path(test).parts[0]
    if (source / first).is_file():
        shutil.copy(source / first, folder / first)
    else:
        shutil.copytree(source / first, folder / first, ignore=lambda at, names: _others(Path(at), names))


def _others(folder: Path, names: Sequence[str]) -> list[str]:
    """Neither folders nor Python: pictures, and whole data sets."""
    return [name for name in names if (folder / name).is_file() and not name.endswith(".py")]


def check(project: Path, device: str, jobs: int, limit: float) -> dict[str, Any]:
    """The verdicts of the kernels for a device."""
    report = project / f"check-{device}.json"
    start = time.perf_counter()
    done = _run(
        ["-m", "opwright", "check", "ops.py", "--device", device, "--jobs", str(jobs), "--json", str(report)],
        project,
        timeout=limit,
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
    ended = {"interrupted": _end(done)[-200:]} if done.returncode == _TOO_LONG else {}
    return {"seconds": seconds, "verdicts": found} | ended


# As of the command timeout.
_TOO_LONG = 124


def _run(
    arguments: Sequence[str], folder: Path, path: Path = HERE.parent / "src", timeout: float = 400
) -> subprocess.CompletedProcess[str]:
    """Run Python. What takes too long is asked to end, and has half a minute to write what it has found."""
    paths = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
            return subprocess.CompletedProcess(command, process.returncode, out, err)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        return subprocess.CompletedProcess(command, _TOO_LONG, out, f"{err}\nit ran for more than {timeout:g} s")


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
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--without-checks", action="store_true", help="packages and their tests only")
    only.add_argument("--only-checks", action="store_true", help="verdicts only, of all extensions at the same time")
    parser.add_argument("--device", action="append", default=[], help="check there; by default, on all that are here")
    parser.add_argument("--limit", type=float, default=1500, help="seconds for an extension's check on a device")
    options = parser.parse_args()
    fetched = options.fetched.resolve()
    chosen = [e for e in EXTENSIONS if not options.names or e.repository in options.names]
    found: dict[str, dict[str, Any]] = {e.repository: {} for e in chosen}
    machine = {"torch": torch.__version__, "python": platform.python_version(), "machine": this_machine().to_json()}
    cores = os.cpu_count() or 1
    at_once = max(1, cores // 4)  # a package is built by several compilers
    checked = len(chosen) if options.only_checks else 1  # one after the other, beside the packages
    jobs = max(1, min(8, cores // checked))
    packing, judging = ThreadPoolExecutor(at_once), ThreadPoolExecutor(checked)
    with tempfile.TemporaryDirectory() as folder, packing, judging:
        parts: dict[Future[dict[str, Any]], Moved] = {}
        for extension in chosen:
            project = prepare(extension, fetched, Path(folder))
            found[extension.repository]["lines"] = _lines_of(extension, fetched, project)
            if not options.only_checks:
                parts[packing.submit(package_and_test, extension, fetched, project)] = extension
            if not options.without_checks:
                done = judging.submit(checks, extension, project, jobs, options.limit, options.device)
                parts[done] = extension
        for part in as_completed(parts):  # a record of what is done, should time run out
            found[parts[part].repository] |= part.result()
            records.write(options.file, machine | {"extensions": found})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
