"""The native kernels of a package: those of one source are of one build, whatever happens in between."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Annotated

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


@pytest.mark.slow
@pytest.mark.compiler
def test_kernels_of_one_source_are_of_one_build_even_if_it_cannot_be_kept(tmp_path: Path, namespace, monkeypatch):
    file = tmp_path / "two.cpp"
    file.write_text(TWO)
    members = []
    for name in ("one", "two"):

        def copy(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
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


ALL_TYPES = """
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <optional>
#include <tuple>
using torch::stable::Tensor;
std::tuple<Tensor, Tensor> all_types(
    const Tensor& x, const std::optional<Tensor>& y, int64_t k, double a, bool flag, std::optional<double> b) {
  return {torch::stable::clone(x), torch::stable::clone(y.has_value() ? *y : x)};
}
void writes(Tensor x, int64_t k) { torch::stable::zero_(x); }
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_shipped_kernels_need_no_python_and_are_called_from_any(tmp_path: Path, namespace) -> None:
    file = tmp_path / "all_types.cpp"
    file.write_text(ALL_TYPES)

    @ow.op(f"{namespace}::all_types")
    def all_types(
        x: Float[Tensor, " n"], y: Float[Tensor, " n"] | None, k: int, a: float, flag: bool, b: float | None
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        return x.clone(), (x if y is None else y).clone()

    @ow.op(f"{namespace}::writes")
    def writes(x: Annotated[Float[Tensor, " n"], ow.mutated], k: int) -> None:
        x.zero_()

    members = [(op.cpp(file, name="cpp").spec, op.contract) for op in (all_types, writes)]
    built = NativeBuilds(build_tools(), baseline()).build(all_types.contract, members[0][0], members[1:])
    symbols = subprocess.run(["nm", "-D", built.file], capture_output=True, text=True, check=True).stdout
    named = [line.split()[-2:] for line in symbols.splitlines()]
    of_python = {name: kind for kind, name in named if name.startswith(("Py", "_Py"))}
    assert {"PyFloat_AsDouble", "PyTuple_SetItem", "PyCMethod_New"} <= {*of_python}
    assert {*of_python.values()} <= {"w", "v"}  # weak: a process without Python loads it, too
    script = f"""
        import sys
        import torch
        from opwright.backends.native.python_function import python_function

        torch.ops.load_library({str(built.file)!r})
        function = python_function({str(built.file)!r}, {built.symbol!r})
        x, count = torch.ones(3), sys.getrefcount(None)
        for _ in range(100):
            first, second = function(x, None, 1, 2.0, True, None)
        assert torch.equal(first, x) and torch.equal(second, x) and abs(sys.getrefcount(None) - count) < 50
        try:
            function(x, None, "1", 2.0, True, None)
        except TypeError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "integer" in done.stdout
