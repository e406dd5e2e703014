"""Making a package: its contents, parts that are left out, and errors."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright import errors
from opwright.backends.build_tools import build_tools
from opwright.errors import CheckError, KernelRefusedError, TargetError
from opwright.package import write
from opwright.package.imports import imports_of, rename_imports
from opwright.package.kernels import ship_kernels
from opwright.package.report import show_packaged
from opwright.package.shipped import names
from opwright.package.vendored import requirements, vendored_modules
from opwright.package.write import make_package
from opwright.results import Crossover, SizeRange
from opwright.runtime.register import registration
from opwright.runtime.tuning.tuned import write_exported
from tests.package.shipping import SOURCES, opwright, python_with

PLAIN = """
import torch
from jaxtyping import Float
from torch import Tensor
import opwright as ow

@ow.op("NAMESPACE::double")
def double(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    return 2 * x
"""


def test_every_public_name_is_in_a_package_or_says_that_it_is_not():
    present = set(names.__all__)
    assert present | names.NOT_SHIPPED == set(ow.__all__) - {"__version__"}
    assert not present & names.NOT_SHIPPED
    with pytest.raises(ow.errors.KernelRefusedError, match=r"ow\.bench is not part of a shipped package"):
        names.bench()
    assert names.errors is errors


@pytest.fixture
def plain(tmp_path, namespace):
    def write(more="", name=f"plain_{namespace}"):
        (tmp_path / f"{name}.py").write_text(PLAIN.replace("NAMESPACE", f"{namespace}_{name}") + more)
        return str(tmp_path / f"{name}.py")

    return write


@pytest.mark.compiler
def test_the_output_and_the_files(mixed_project):
    output = (mixed_project.parent / "output").read_text()
    assert "left out: mixed::scaled_exp cuda: launches kernels of ow.cuda_module" in output
    assert "→ write a .cu file with a host function" in output
    assert f"pip install {next((mixed_project / 'dist').glob('*.whl'))}" in output
    project = tomllib.loads((mixed_project / "pyproject.toml").read_text())["project"]
    assert {r.split(">")[0] for r in project["dependencies"]} == {"torch", "numpy", "jaxtyping", "typing-extensions"}
    assert "license" not in project
    manifest = json.loads((mixed_project / "mixed_ops" / "manifest.json").read_text())
    assert set(manifest["operators"]["mixed::scaled_exp"]["kernels"]) == {"cpp"}
    # Two operators in one source are one library, and lib<package>.so links it once.
    libraries = {f.name for f in (mixed_project / "mixed_ops" / "native").glob("*.so")}
    assert libraries == {"mixed_scaled_exp.cpp_and_1_more.so", "libmixed_ops.so"}
    assert not (mixed_project / "build").exists()


@pytest.mark.compiler
def test_the_wheel_is_for_this_kind_of_machine_and_any_python(mixed_project):
    (wheel,) = (mixed_project / "dist").glob("*.whl")
    tag = "manylinux_" if importlib.util.find_spec("auditwheel") else "linux_"
    assert wheel.name.startswith(f"mixed_ops-0.1.0-py3-none-{tag}")
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    told = {name.rpartition("/")[2]: archive.read(name).decode() for name in names if ".dist-info/" in name}
    assert "Root-Is-Purelib: false" in told["WHEEL"]
    assert "| cpp | cpp | cpu | all | yes |" in told["METADATA"]
    assert "Left out: cuda (cuda), as launches kernels of ow.cuda_module" in told["METADATA"]
    assert "mixed_ops/py.typed" in names
    assert {"mixed_ops/helpers.py", "mixed_ops/_opwright/LICENSE", "mixed_ops/native/libmixed_ops.so"} <= set(names)
    assert not [n for n in names if n.endswith((".cpp", ".cu"))]


@pytest.mark.compiler
def test_a_wrong_library_is_refused(mixed, tmp_path):
    import shutil

    copy = shutil.copytree(mixed, tmp_path / "site")
    native = copy / "mixed_ops" / "native"
    call = "import torch, mixed_ops; mixed_ops.scaled_exp(torch.ones(1, 1), 1.0, [1.0])"
    library = native / "mixed_scaled_exp.cpp_and_1_more.so"
    shutil.copy(Path(torch.__file__).parent / "lib" / "libc10.so", library)
    assert "is not the library that was built for it" in python_with(copy)(call, expect=1)
    library.unlink()
    assert "cannot be loaded" in python_with(copy)(call, expect=1)
    # One that registers the expected name, but takes something else.
    manifest = json.loads((copy / "mixed_ops" / "manifest.json").read_text())
    record = manifest["operators"]["mixed::scaled_exp"]["kernels"]["cpp"]
    planted = f"""
        import torch
        library = torch.library.Library("opwright_shipped", "FRAGMENT")
        library.define("{record["symbol"]}(Tensor x, int scale) -> Tensor")
    """
    output = python_with(copy)(planted + f"\n        {call}", expect=1)
    assert "was built for another schema" in output


IN_PLACE = """

from typing import Annotated

@ow.op("NAMESPACE::scale")
def scale(x: Annotated[Float[Tensor, "n"], ow.mutated], a: float) -> None:
    x.mul_(a)

@scale.python
def by_torch(x, a):
    x *= a
"""


@pytest.mark.slow
def test_an_operator_that_writes_its_argument_is_shipped_with_its_functional_form(plain, namespace, tmp_path):
    make_package(plain(IN_PLACE.replace("NAMESPACE", f"{namespace}_in_place")), "in_place_ops", tmp_path / "out")
    python_with(tmp_path / "out")(
        """
        import torch, in_place_ops
        x = torch.ones(2)
        for _ in range(3):
            assert in_place_ops.scale(x, 2.0) is None
        assert x.tolist() == [8, 8]
        leaf = torch.ones(2, requires_grad=True)
        written = leaf * 1
        in_place_ops.scale(written, 3.0)
        written.sum().backward()
        assert leaf.grad.tolist() == [3, 3]
        assert in_place_ops.scale.functional(torch.ones(1), 5.0).tolist() == [5]
        """
    )


TUNED = """
ran = []

@double.python
def one(x):
    ran.append("one")
    return x + x

@double.python
def other(x):
    ran.append("other")
    return x + x
"""


@pytest.mark.slow
def test_the_tables_of_use_tuning_choose_in_the_package_too(plain, namespace, tmp_path, capsys):
    file = plain(TUNED, name=f"tuned_{namespace}")
    make_package(file, "untuned_ops", tmp_path / "untuned")
    operator = registration.find(f"{namespace}_tuned_{namespace}::double")
    ranges = (SizeRange(0, 100, "other"), SizeRange(100, None, "one"))
    here = Crossover(operator.contract.qualname, "cpu", build_tools().machine.cpu, "float32", ranges)
    elsewhere = dataclasses.replace(here, device="cuda", device_name="NVIDIA X1")
    write_exported(tmp_path / "tuning.json", [operator._exported_tuning([here, elsewhere])])
    operator.use_tuning(tmp_path / "tuning.json")
    made = make_package(file, "tuned_ops", tmp_path / "tuned")
    show_packaged(made)
    assert f"::double: with the tuning of {here.device_name}, NVIDIA X1\n" in capsys.readouterr().out
    assert "NVIDIA X1." in (tmp_path / "tuned" / "README.md").read_text()
    for name, expected in (("untuned", "one one one one"), ("tuned", "other other one one")):
        output = python_with(tmp_path / name)(f"""
            import torch, {name}_ops
            import {name}_ops.tuned_{namespace} as module
            for n in (99, 99, 100, 1000):
                assert {name}_ops.double(torch.ones(n)).sum() == 2 * n
            assert {name}_ops.double(torch.ones(3, dtype=torch.float64)).dtype is torch.float64
            print(*module.ran[:-1])
            """)
        assert output.strip() == expected
    operator.python(lambda x: x + x, name="third")
    show_packaged(make_package(file, "stale_ops", tmp_path / "stale"))
    assert "without tuning, as its tables are for other kernels" in capsys.readouterr().out
    assert not json.loads((tmp_path / "stale" / "stale_ops" / "manifest.json").read_text())["operators"][
        operator.contract.qualname
    ]["tuning"]


def test_an_edited_operator_is_refused(plain, tmp_path):
    made = make_package(plain(), "edited_ops", tmp_path / "out")
    assert made.shipped == ()
    module = next((tmp_path / "out" / "edited_ops").glob("plain_*.py"))
    module.write_text(module.read_text().replace('Tensor, "*n"])', 'Tensor, "*n"], a: float = 1.0)'))
    output = python_with(tmp_path / "out")("import edited_ops", expect=1)
    assert "::double: when edited_ops was built, its schema was (Tensor x) -> Tensor" in output


def test_without_native_kernels_it_says_so_and_runs_the_reference(plain, tmp_path, capsys):
    show_packaged(make_package(plain(), "plain_ops", tmp_path / "out"))
    assert "no native kernel: the package is Python only" in capsys.readouterr().out
    assert not (tmp_path / "out" / "setup.py").exists()
    python_with(tmp_path / "out")("""
        import torch, plain_ops
        assert plain_ops.double(torch.ones(2)).tolist() == [2, 2]
    """)


@pytest.mark.parametrize("name", ["not-a-name", "class", "json", "opwright", "_x", ""])
def test_names_that_do_not_do(plain, tmp_path, name):
    with pytest.raises(CheckError):
        make_package(plain(), name, tmp_path / "out")


def test_folders_and_targets_that_do_not_do(plain, tmp_path):
    target = plain()
    with pytest.raises(CheckError, match="must be a new or an empty folder"):
        make_package(target, "ops", tmp_path)
    with pytest.raises(CheckError, match="must hold an earlier package"):
        make_package(target, "ops", tmp_path, force=True)
    with pytest.raises(CheckError, match="must be a folder, got the file"):
        make_package(target, "ops", tmp_path / target)
    with pytest.raises(CheckError, match="must be one that pip accepts"):
        make_package(target, "ops", tmp_path / "out", version="one")
    with pytest.raises(TargetError, match="must be a file that exists"):
        make_package("nothing.py", "ops", tmp_path / "out")
    with pytest.raises(TargetError, match="a module is shipped as a whole"):
        make_package(f"{target}:double", "ops", tmp_path / "out")
    assert make_package(target, "ops", tmp_path / "out").operators
    assert make_package(target, "ops", tmp_path / "out", force=True).operators


def test_the_command_line_exits_2_without_a_traceback(tmp_path):
    output = opwright("package", SOURCES / "mixed.py", "--name", "a b", "--out", tmp_path / "out", expect=2)
    assert output.startswith("opwright: --name must be a Python identifier that is not a standard module, got 'a b'")


def test_imports_that_cannot_be_shipped(plain, tmp_path):
    (tmp_path / "beside.py").write_text("from opwright.runtime.op import Op\n")
    with pytest.raises(TargetError, match=r"uses opwright\.runtime\.op, which is not shipped"):
        make_package(plain("\nimport beside\n"), "ops", tmp_path / "out")
    (tmp_path / "beside.py").write_text("def f():\n    import module_that_does_not_exist\n")
    with pytest.raises(TargetError, match=r"beside\.py:2 imports module_that_does_not_exist, which is neither"):
        make_package(plain("\nimport beside\n", "again"), "ops", tmp_path / "out")


@pytest.mark.slow  # builds a package
def test_without_a_compiler_native_kernels_are_left_out(tmp_path):
    script = (
        "import dataclasses, sys\n"
        "from opwright.package import write\n"
        "from opwright.backends.build_tools import build_tools\n"
        "tools = build_tools()\n"
        "none = dataclasses.replace(tools, machine=dataclasses.replace(tools.machine, cxx=None))\n"
        "write.build_tools = lambda: none\n"
        "options = dict(allow_missing=['all'])\n"
        "made = write.make_package('opwright.gallery.trig', 'my_ops', write.Path(sys.argv[1]), **options)\n"
        "print([(k.kernel, k.why, k.instead) for k in made.left_out], [k.spec.name for k in made.shipped])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "o"], capture_output=True, text=True, check=True)
    assert "('cpp', 'there is no C++ compiler', 'install g++')" in done.stdout
    assert done.stdout.strip().endswith("['triton', 'triton_heuristics', 'triton', 'triton']")


def test_a_kernel_with_dtypes_of_single_arguments_is_left_out(namespace):
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    scale.python(lambda x: 2 * x, name="half", dtypes={"x": [torch.float16]})
    (left_out,) = ship_kernels([scale], None, build_tools(), "")
    assert (left_out.kernel, left_out.instead) == ("half", "say it with when=")
    assert "dtypes of single arguments" in left_out.why


@pytest.mark.parametrize("version", ["1", "1.2.0", "0.1.0rc1", "1.2.0+cu130", "1!2.0.post1.dev3+local.7"])
def test_versions_that_pip_accepts(version):
    assert write._VERSION.fullmatch(version)


@pytest.mark.parametrize("version", ["", "one", "1.2.", "1.2-", "1.2+", "1.2+cu/130", "v 1"])
def test_versions_that_pip_does_not_accept(version):
    assert not write._VERSION.fullmatch(version)


def test_the_name_of_an_installed_package_is_told(plain, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(write, "build_tools", lambda: dataclasses.replace(build_tools(), notify=told.append))
    make_package(plain(), "NumPy", tmp_path / "out")
    assert [t for t in told if t.startswith("the package numpy ") and "under the same name" in t]


def test_a_missing_kernel_is_a_failure_and_nothing_is_written(tmp_path):
    with pytest.raises(KernelRefusedError, match="outer_ops: 1 kernel would be missing in the package") as error:
        make_package("opwright.gallery.outer_sum", "outer_ops", tmp_path / "out", allow_missing=["cuda"])
    assert "gallery::outer_sum numpy_compiled (numpy): opwright compiles NumPy when it runs" in error.value.message
    assert error.value.fix == "to leave them out, pass --allow-missing numpy"
    assert not (tmp_path / "out").exists()
    with pytest.raises(CheckError, match=r"--allow-missing must be one of .* got 'fortran'"):
        make_package("opwright.gallery.outer_sum", "outer_ops", tmp_path / "out", allow_missing=["fortran"])


def test_what_goes_along_of_opwright_is_small_and_builds_nothing():
    files = vendored_modules()
    modules = set(files)
    assert {
        "opwright.contract.binding",
        "opwright.runtime.register.registration",
        "opwright.runtime.register.backward_operator",
    } <= modules
    assert not [m for m in modules if m.startswith(("opwright.checks", "opwright.timing", "opwright.report"))]
    assert not modules & {"opwright.machine", "opwright.cache", "opwright.runtime.op", "opwright.backends.base"}
    # Those of references in NumPy are among them.
    assert sum(len(file.read_text().splitlines()) for file in files.values()) < 13_800
    assert {r.split(">")[0] for r in requirements()} == {"torch", "numpy", "jaxtyping", "typing-extensions"}


def test_imports_are_found_wherever_they_stand():
    text = "import a, b.c\nfrom . import d\nif TYPE_CHECKING:\n    import e\ndef f():\n    from ..g import h\n"
    text += "try:\n    import i\nexcept ImportError:\n    i = None\n"
    found = imports_of(text, "p.q.r", is_package=False)
    assert [(i.module, i.names, i.optional) for i in found] == [
        ("a", (), False), ("b.c", (), False), ("p.q", ("d",), False), ("p.g", ("h",), False), ("i", (), True),
    ]  # fmt: skip


def test_imports_get_new_names_and_nothing_else_changes():
    text = "import opwright as ow, os  # é\nfrom opwright import (\n    saved,\n    op as define,\n)\nx = 'opwright'\n"

    def rename(module):
        return "p._opwright" if module == "opwright" else None

    new = rename_imports(text, rename, "file.py")
    assert new.startswith("import p._opwright as ow; import os  # é\nfrom p._opwright import saved, op as define\n\n\n")
    assert new.endswith("\nx = 'opwright'\n")
    assert new.count("\n") == text.count("\n")
    with pytest.raises(TargetError, match=r"file\.py:1: `import a\.b` cannot be shipped"):
        rename_imports("import a.b\n", lambda module: "p.b", "file.py")


@pytest.mark.slow
def test_modules_beside_the_operators_go_along_when_they_are_asked_for(plain, tmp_path):
    (tmp_path / "layers.py").write_text("__all__ = ['Layer']\nclass Layer:\n    pass\n")
    made = make_package(plain(), "with_layers", tmp_path / "out", include=["layers"])
    assert (made.folder / "with_layers" / "layers.py").is_file()
    output = python_with(made.folder)("import with_layers; print(with_layers.__all__, with_layers.Layer.__module__)")
    assert output.strip() == "['Layer', 'double'] with_layers.layers"
    with pytest.raises(TargetError, match="--include must be a module beside other, got 'nothing'"):
        make_package(plain(name="other"), "ops", tmp_path / "other", include=["nothing"])


@pytest.mark.slow
def test_a_reference_in_numpy_takes_arrays_there_too(tmp_path):
    made = make_package("opwright.gallery.outer_sum", "outer_ops", tmp_path / "out", allow_missing=["numpy"])
    assert [k.kernel for k in made.left_out] == ["numpy_compiled"]
    python_with(made.folder)("""
        import numpy as np, torch, outer_ops
        u, v = np.arange(6.0).reshape(2, 3), np.ones((2, 4))
        found = outer_ops.outer_sum(u, v)
        assert isinstance(found, np.ndarray)
        assert np.array_equal(found, outer_ops.outer_sum(torch.from_numpy(u), torch.from_numpy(v)).numpy())
    """)


@pytest.mark.nvcc
@pytest.mark.slow
def test_cuda_files_are_built_for_gpus_that_are_not_here(tmp_path):
    (tmp_path / "twice.cu").write_text(
        "#include <torch/csrc/stable/ops.h>\n#include <torch/csrc/stable/tensor.h>\n"
        "__global__ void fill(float* out) { out[threadIdx.x] = 2; }\n"
        "torch::stable::Tensor twice(const torch::stable::Tensor& x) {\n"
        "  return torch::stable::new_empty(x, x.sizes());\n}\n"
    )
    (tmp_path / "gpu_twice.py").write_text(
        PLAIN.replace("NAMESPACE::double", "packagecuda::twice").replace("double", "twice")
        + "\ntwice.cuda('twice.cu', options=['-gencode=arch=compute_90,code=sm_90'])\n"
    )
    made = make_package(str(tmp_path / "gpu_twice.py"), "gpu_ops", tmp_path / "out")
    assert {f.name for f in (made.folder / "gpu_ops" / "native").iterdir()} == {
        "packagecuda_twice.cuda.so", "libgpu_ops.so", "libgpu_ops_cuda.so",
    }  # fmt: skip
    python_with(made.folder)("""
        import torch, gpu_ops
        assert [*gpu_ops.twice.kernels] == ["cuda"]
        assert gpu_ops.twice(torch.ones(2)).tolist() == [2, 2]  # the reference, where there is no kernel
    """)
