"""An operator arrives on a machine that has none of its files, or others in their place."""

from __future__ import annotations

import pickle
import sys

import pytest

from opwright.checks.scheduling.check_item import CheckItem
from opwright.checks.scheduling.plan import plan
from opwright.checks.scheduling.verdict import Settings
from opwright.cluster.bundle import Packer
from opwright.cluster.operators import send
from opwright.machine import this_machine
from opwright.runtime.source_files import digest_of_sources, source_files
from opwright.runtime.targets import load_target
from tests.warm import run_module

_MODULE = """
from jaxtyping import Float32
from torch import Tensor
import opwright as ow
from {name}_helper import two

@ow.op("bundle::{name}")
def double(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return two() * x

double.cpp("kernel.cpp", entry="kernel")
double.python(lambda x: x * two(), name="python")
"""
_KERNEL = """
#include <torch/csrc/stable/library.h>
#include <opwright/tensor.h>
#include "factor.h"

torch::stable::Tensor kernel(const torch::stable::Tensor& x) { return x; }
"""
# Takes a bundle on the other machine, and prints where the operator came from.
_RECEIVER = """
import pickle, sys
from opwright.cluster.bundle import unpack
from opwright.runtime.source_files import kernel_files

bundle, operators = pickle.loads(open(sys.argv[1], "rb").read())
item = unpack(bundle, operators)
op = item.task.op
print("module", sys.modules[op.contract.module].__file__ if op.contract.module in sys.modules else "by value")
print("kernel", *kernel_files(op))
print("fingerprint", op._untuned_fingerprint)
verdict = item.run(lambda step: None)
print("verdict", verdict.status, verdict.findings[0].reproduce)
"""


@pytest.fixture
def operator(tmp_path):
    """An operator with a helper module, a C++ source and a header."""
    folder = tmp_path / "project"
    folder.mkdir()
    name = f"parcel_{tmp_path.name.strip('_0123456789').replace('-', '_')}"[:40]
    (folder / f"{name}.py").write_text(_MODULE.format(name=name))
    (folder / f"{name}_helper.py").write_text("def two():\n    return 2\n")
    (folder / "kernel.cpp").write_text(_KERNEL)
    (folder / "factor.h").write_text("const float factor = 2;\n")
    (found,) = load_target(str(folder / f"{name}.py"))
    yield found
    for module in (name, f"{name}_helper"):
        sys.modules.pop(module, None)
    sys.path.remove(str(folder))


def packed(operator, tmp_path):
    (task,) = plan(operator, this_machine(), ["python"], "cpu")
    item = CheckItem.of(task, Settings("smoke", "", ("values",), (), 60.0))
    file = tmp_path / "bundle"
    file.write_bytes(pickle.dumps(Packer(lambda sent: sent).pack(item)))
    return file


def received(file, tmp_path):
    (tmp_path / "receiver.py").write_text(_RECEIVER)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = run_module("receiver", str(file), cwd=tmp_path, env={"OPWRIGHT_CACHE_DIR": str(elsewhere)}, fresh=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return dict(line.split(" ", 1) for line in run.stdout.splitlines() if " " in line)


def test_source_files_are_the_users_own(operator):
    names = [file.name for file in source_files(operator)]
    module = operator.contract.module
    assert sorted(names) == sorted([f"{module}.py", f"{module}_helper.py", "kernel.cpp", "factor.h"])


def test_a_changed_header_is_another_source(operator, tmp_path):
    before = digest_of_sources(operator)
    assert digest_of_sources(operator) == before
    (tmp_path / "project" / "factor.h").write_text("const float factor = 3;\n")
    assert digest_of_sources(operator) != before


@pytest.mark.slow  # another process imports torch, and checks a kernel
def test_a_machine_without_the_files_gets_them(operator, tmp_path):
    file, fingerprint = packed(operator, tmp_path), operator._untuned_fingerprint
    (tmp_path / "project").rename(tmp_path / "gone")
    found = received(file, tmp_path)
    assert found["module"].startswith(f"{tmp_path}/elsewhere/sources/")
    assert found["kernel"].count(f"{tmp_path}/elsewhere/sources/") == 2
    assert found["fingerprint"] == fingerprint
    assert found["verdict"].startswith("pass")


@pytest.mark.slow  # another process imports torch, and checks a kernel
def test_a_machine_with_another_version_gets_this_one(operator, tmp_path):
    file = packed(operator, tmp_path)
    helper = tmp_path / "project" / f"{operator.contract.module}_helper.py"
    helper.write_text("def two():\n    return 3\n")
    found = received(file, tmp_path)
    assert found["module"].startswith(f"{tmp_path}/elsewhere/sources/")
    assert found["fingerprint"] == operator._untuned_fingerprint


@pytest.mark.slow  # another process imports torch, and checks a kernel
def test_a_machine_with_the_same_files_takes_its_own(operator, tmp_path):
    found = received(packed(operator, tmp_path), tmp_path)
    assert found["module"].startswith(f"{tmp_path}/project/")
    assert not (tmp_path / "elsewhere" / "sources").exists()


def test_an_operator_is_packed_once_for_all_units(operator):
    packer = Packer(lambda sent: sent)
    (task,) = plan(operator, this_machine(), ["python"], "cpu")
    items = [CheckItem.of(task, Settings(level, "", (), (), 60.0)) for level in ("smoke", "quick")]
    (first, sent), (_, again) = map(packer.pack, items)
    assert len(sent) == 1
    assert sent[0] is again[0]
    assert len(first.item) < 3000
    assert sent[0].fingerprint == send(operator).fingerprint
