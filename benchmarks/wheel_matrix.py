"""Wheels of one package, built with several versions of torch and Python, each installed and run with every other one.

Usage: python benchmarks/wheel_matrix.py ENVIRONMENTS FILE

ENVIRONMENTS is a folder of virtual environments, each with a torch of its own and with opwright's requirements. A wheel
is built in each of them from the same sources and installed for each of them. There, a process that cannot import
opwright calls its operators: values, gradients, torch.compile, an argument that is written, wrong arguments. Another
one loads the library for programs without Python by itself, and calls it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

_OPERATORS = """
from typing import Annotated

import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow

__all__ = ["add", "scaled", "store"]


@ow.op("matrix::add")
def add(x: Float32[Tensor, "*n"], y: Float32[Tensor, "*n"]) -> Float32[Tensor, "*n"]:
    return x + y


@ow.op("matrix::scaled")
def scaled(x: Float32[Tensor, "*n"], a: float, k: int = 1) -> tuple[Float32[Tensor, "*n"], Float32[Tensor, "*n"]]:
    return a * k * x, x.clone()


@ow.op("matrix::store")
def store(x: Float32[Tensor, "*n"], out: Annotated[Float32[Tensor, "*n"], ow.mutated]) -> None:
    out.copy_(x)


add.cpp("add_host.cpp", entry="add_host")
scaled.cpp("more.cpp")
store.cpp("more.cpp")
"""
# Results differ from the references', so that it shows that the kernels ran.
_KERNELS = """
#include <opwright/tensor.h>

#include <tuple>

using torch::stable::Tensor;

std::tuple<Tensor, Tensor> scaled(const Tensor& x, double a, int64_t k) {
  Tensor in = torch::stable::contiguous(x), out = opwright::empty_like(in), copy = opwright::empty_like(in);
  for (int64_t i = 0; i < in.numel(); ++i) {
    copy.mutable_data_ptr<float>()[i] = in.const_data_ptr<float>()[i];
    out.mutable_data_ptr<float>()[i] = static_cast<float>(a * k * in.const_data_ptr<float>()[i] + 1000);
  }
  return {out, copy};
}

void store(const Tensor& x, Tensor out) {
  Tensor in = torch::stable::contiguous(x);
  STD_TORCH_CHECK(out.is_contiguous(), "out should be contiguous");
  for (int64_t i = 0; i < in.numel(); ++i) out.mutable_data_ptr<float>()[i] = in.const_data_ptr<float>()[i] + 1000;
}
"""
_RUN = """
import sys
class NoOpwright:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opwright":
            raise ModuleNotFoundError("opwright is not here", name=name)
sys.meta_path.insert(0, NoOpwright())
import torch, matrix_ops
from matrix_ops._opwright.errors import ArgumentError
x, y = torch.randn(3, 4), torch.randn(3, 4)
for n in range(1, 300):  # like an earlier call, and of other sizes
    a, b = torch.randn(n), torch.randn(n)
    assert torch.equal(torch.ops.matrix.add(a, b), a + b)
assert matrix_ops.add.kernels["cpp"]._direct is not None
first, second = matrix_ops.scaled(x, 2.0, 3)
assert torch.equal(second, x)
torch.testing.assert_close(first, 6 * x + 1000)
out = torch.zeros(3, 4)
torch.ops.matrix.store(x, out)
torch.testing.assert_close(out, x + 1000)
z = x.clone().requires_grad_()
(matrix_ops.add(z, y) * y).sum().backward()
assert torch.equal(z.grad, y)
compiled = torch.compile(lambda x, y: torch.ops.matrix.add(x, y) + 1, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(x, y), x + y + 1)
for wrong in ((x, y[0]), (x.double(), y.double()), (x, 3)):
    try:
        torch.ops.matrix.add(*wrong)
        raise SystemExit("wrong arguments were taken")
    except (ArgumentError, RuntimeError):
        pass
print("right")
"""
_LIBRARY = """
import torch, glob, sys
(library,) = glob.glob(sys.argv[1] + "/matrix_ops/native/libmatrix_ops.so")
torch.ops.load_library(library)
x, y = torch.randn(3, 4), torch.randn(3, 4)
assert torch.equal(torch.ops.matrix.add(x, y), x + y)
torch.testing.assert_close(torch.ops.matrix.scaled(x, 2.0)[0], 2 * x + 1000)
try:
    torch.ops.matrix.add(x, y[0])
    raise SystemExit("wrong arguments were taken")
except RuntimeError:
    pass
print("right")
"""


@dataclass(frozen=True)
class Environment:
    python: Path
    version: str
    torch: str

    @property
    def name(self) -> str:
        return f"torch {self.torch}, Python {self.version}"


def environments(folder: Path) -> list[Environment]:
    """The virtual environments of a folder, by version."""
    script = "import json, platform, torch; print(json.dumps([platform.python_version(), torch.__version__]))"
    found = []
    for python in sorted(folder.glob("*/bin/python")):
        version, of_torch = json.loads(_output(python, "-c", script))
        found.append(Environment(python, version, of_torch))
    return sorted(found, key=lambda e: (e.torch, e.version))


def build(environment: Environment, folder: Path) -> Path:
    """The wheel that an environment builds."""
    folder.mkdir()
    (folder / "ops.py").write_text(_OPERATORS)
    (folder / "more.cpp").write_text(_KERNELS)
    (folder / "add_host.cpp").write_text((HERE / "add_host.cpp").read_text())
    command = ["-m", "opwright", "package", "ops.py", "--name", "matrix_ops", "--out", "build", "--wheel"]
    try:
        _output(environment.python, *command, cwd=folder, PYTHONPATH=str(HERE.parent / "src"))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{environment.name}: no wheel\n{error.stderr}")
    (wheel,) = (folder / "build" / "dist").glob("*.whl")
    return wheel


def run(environment: Environment, wheel: Path, folder: Path) -> dict[str, str]:
    """What becomes of a wheel in an environment: "right", or the end of what went wrong."""
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    return {
        "installed": _outcome(environment, *install) or "right",
        "package": _outcome(environment, "-c", _RUN, PYTHONPATH=str(folder)),
        "library alone": _outcome(environment, "-c", _LIBRARY, str(folder)),
    }


def _outcome(environment: Environment, *arguments: str, **variables: str) -> str:
    try:
        return _output(environment.python, *arguments, **variables).strip()
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip()[-400:]


def _output(python: Path, *arguments: str, cwd: Path | None = None, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    command = [str(python), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    found, matrix = environments(options.environments.resolve()), []
    with tempfile.TemporaryDirectory() as temporary:
        for i, builder in enumerate(found):
            wheel = build(builder, Path(temporary) / f"build{i}")
            runs: dict[str, Any] = {}
            for j, runner in enumerate(found):
                outcome = run(runner, wheel, Path(temporary) / f"installed{i}.{j}")
                runs[runner.name] = "right" if {*outcome.values()} == {"right"} else outcome
                print(f"{builder.name} → {runner.name}: {runs[runner.name]}", flush=True)
            matrix.append({"built with": builder.name, "wheel": wheel.name, "run with": runs})
    right = sum(outcome == "right" for row in matrix for outcome in row["run with"].values())
    print(f"{right} of {len(found) ** 2} right")
    sys.path.insert(0, str(HERE))
    import records

    records.write(options.file, {"right": right, "of": len(found) ** 2, "wheels": matrix})
    sys.exit(right != len(found) ** 2)


if __name__ == "__main__":
    main()
