"""The import path of an operator, in modules with any values."""

import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.runtime.targets import find_import_path


def test_a_module_may_hold_arrays_and_tensors(monkeypatch, namespace):
    module = types.ModuleType("holds_arrays")
    monkeypatch.setitem(sys.modules, "holds_arrays", module)
    module.TABLE, module.TENSOR = np.arange(3), torch.arange(3)

    def twice(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return 2 * x

    twice.__module__ = "holds_arrays"
    op = ow.op(f"{namespace}::twice")(twice)
    assert find_import_path(op) is None
    module.twice = op
    assert find_import_path(op).qualname == f"{namespace}::twice"


ATTACHED = """
import torch
import opwright as ow
from opwright.gallery.{module} import {name}

@{name}.python(name="mine")
def mine({parameters}):
    return {result}

if __name__ == "__main__":
    (verdict,) = ow.check({name}, kernels=["mine"], device="cpu", level="smoke").verdicts
    print(verdict.status, verdict.failures)
"""
# Of the second, the gradient calls the operator itself.
OF_GALLERY = [
    ("trig", "sin", "x", "torch.sin(x).contiguous()"),
    ("conv1d", "conv1d", "x, k", "torch.nn.functional.pad(x, (0, len(k))).unfold(0, len(k), 1)[: len(x)] @ k"),
]


@pytest.mark.parametrize("how", ["command", "script"])
@pytest.mark.parametrize(("module", "name", "parameters", "result"), OF_GALLERY)
def test_a_kernel_attached_to_an_operator_of_another_module(tmp_path, how, module, name, parameters, result):
    """It was defined twice in the workers, and every call of the first one failed."""
    file = tmp_path / "attached.py"
    file.write_text(ATTACHED.format(module=module, name=name, parameters=parameters, result=result))
    check = ["-m", "opwright", "check", str(file), "--kernel", "mine", "--device", "cpu", "--level", "smoke"]
    command = [sys.executable, *(check if how == "command" else [str(file)])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout if how == "command" else done.stdout.startswith("pass")


def test_the_command_that_repeats_a_finding_names_the_file_that_attaches_the_kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong_sin.py").write_text(
        ATTACHED.format(module="trig", name="sin", parameters="x", result="torch.cos(x).contiguous()")
    )
    command = [sys.executable, "-m", "opwright", "check", "wrong_sin.py", "--kernel", "mine", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "again: opwright check wrong_sin.py:sin --kernel mine" in done.stdout
