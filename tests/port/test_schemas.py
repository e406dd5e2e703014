"""C++ functions from the schemas of ATen's operators."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from opwright.backends.native.abi import INCLUDE, TARGET_VERSION
from opwright.backends.native.host_function import TORCH
from opwright.machine import this_machine
from opwright.port.schemas import BY_HAND, is_operator, kind_returned, why_not, wrappers


def test_a_schema_becomes_a_function() -> None:
    (text,) = wrappers("sigmoid")
    assert text.splitlines()[1:] == [
        "inline Tensor sigmoid(const Tensor& self_) {",
        '  return call<Tensor>("aten::sigmoid", "", self_);',
        "}",
    ]


def test_options_are_one_parameter_and_numbers_become_tensors() -> None:
    assert "zeros(const Integers& size, const Options& options = {})" in wrappers("zeros")[0]
    numbers = next(text for text in wrappers("pow") if "Tensor_Scalar" in text)
    assert 'call<Tensor>("aten::pow", "Tensor_Tensor", self_, number_beside(self_, exponent))' in numbers


def test_what_cannot_be_called_says_why() -> None:
    assert not wrappers("norm")
    assert why_not("norm").startswith("torch's stable ABI cannot pass Scalar: aten::norm")
    assert why_not("nonsense") == "ATen has no operator nonsense on tensors"
    assert not is_operator("nonsense")
    assert not why_not("sum")
    assert not why_not("addmm")
    assert "addmm" in BY_HAND


def test_the_kind_of_a_result_depends_on_the_number_of_arguments() -> None:
    assert [kind_returned("min", n) for n in (1, 2, 3)] == ["tensor", "tuple", "tuple"]
    assert kind_returned("min", 2, of_two_tensors=True) == "tensor"
    assert kind_returned("chunk", 2) == "tensors"
    assert kind_returned("is_floating_point", 1) == ""


@pytest.mark.slow  # compiles hundreds of functions
@pytest.mark.compiler
def test_every_function_of_a_large_sample_compiles(tmp_path: Path) -> None:
    names = [n for n in sorted({*dir(torch), *dir(torch.Tensor)}) if not n.startswith("_") and is_operator(n)]
    declared = "\n".join(text for name in dict.fromkeys(names) for text in wrappers(name))
    assert declared.count("inline ") > 300
    file = tmp_path / "all.cpp"
    file.write_text(f"#include <opwright/ops.h>\nnamespace opwright::aten {{ namespace {{\n{declared}\n}} }}\n")
    machine = this_machine()
    assert machine.cxx is not None
    command = [machine.cxx.path, "-std=c++17", "-fsyntax-only", f"-DTORCH_TARGET_VERSION={TARGET_VERSION}"]
    done = subprocess.run(
        [*command, f"-I{INCLUDE}", f"-I{TORCH / 'include'}", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:3000]
