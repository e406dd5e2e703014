"""The native kernels of a package: those of one source are of one build, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends.build_tools import build_tools
from opwright.backends.compiler_inputs import BuildWatch
from opwright.backends.native import host_function
from opwright.package.native import NativeBuilds, baseline
from opwright.read_files import ReadFiles

TWO = """
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;
Tensor one(const Tensor& x) { return torch::stable::clone(x); }
Tensor two(const Tensor& x) { return torch::stable::clone(x); }
"""


@pytest.mark.compiler
def test_kernels_of_one_source_are_of_one_build_even_if_it_cannot_be_kept(tmp_path: Path, namespace, monkeypatch):
    file = tmp_path / "two.cpp"
    file.write_text(TWO)
    members = []
    for name in ("one", "two"):

        def copy(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
            return x.clone()

        copy.__name__ = name
        op = ow.op(f"{namespace}::{name}")(copy)
        members.append((op.cpp(file, name="cpp", entry=name).spec, op.contract))
    # As where a header is saved while the compiler runs: who asks again gets another build.
    monkeypatch.setattr(BuildWatch, "read_files", lambda *_, **__: ReadFiles(complete=False))
    builds = NativeBuilds(build_tools(), baseline())
    made = [builds.build(its, spec, [m for m in members if m[0] is not spec]) for spec, its in members]
    assert made[0].file == made[1].file
    assert {native.symbol for native in made} == set(host_function.operators_in(made[0].file).values())
    again = NativeBuilds(build_tools(), baseline()).build(members[0][1], members[0][0], members[1:])
    assert again.symbol != made[0].symbol
