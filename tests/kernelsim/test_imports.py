"""What kernelsim imports: nothing of opwright, and torch only where somebody passes tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kernelsim
from tests.test_imports import cycles, imports_of, longest_module, side_by_side

ROOT = Path(kernelsim.__file__).parent
# What kernelsim may import besides Python's own modules; Triton only by name, where a Triton kernel runs.
OTHERS = {"kernelsim", "numpy", "tree_sitter", "tree_sitter_cuda"}
PLUGIN = "kernelsim.pytest"


def modules() -> dict[str, tuple[str, bool]]:
    """Every module by its name, with its text and whether it is a package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["kernelsim", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts).removesuffix(".__init__")] = path.read_text(), path.name == "__init__.py"
    return found


def foreign_imports(text: str, module: str) -> list[str]:
    """The imports of a module that kernelsim must not make."""
    tops = {found.target.split(".")[0] for found in imports_of(text, module)}
    allowed = OTHERS | sys.stdlib_module_names | ({"pytest"} if module == PLUGIN else set())
    return sorted(tops - allowed)


def test_it_imports_neither_opwright_nor_torch() -> None:
    assert {name: bad for name, (text, _) in modules().items() if (bad := foreign_imports(text, name))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import opwright",
        "from opwright.errors import KernelError",
        "def f():\n    import torch",
        "from triton import jit",
    ],
)
def test_a_foreign_import_is_caught(text: str) -> None:
    assert foreign_imports(text, "kernelsim.errors")


def test_its_modules_and_folders_form_no_cycle() -> None:
    known = modules()
    graph = {
        name: {
            longest_module(found.target, known)
            for found in imports_of(text, name, is_package)
            if found.target.startswith("kernelsim") and not found.checking
        }
        for name, (text, is_package) in known.items()
    }
    graph = {name: targets - {"kernelsim"} for name, targets in graph.items()}  # the face, which the plugin imports
    assert cycles(graph) == []
    assert [cycles(beside) for beside in side_by_side(graph).values() if cycles(beside)] == []


WITHOUT = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("opwright", "torch"):
            raise ImportError(f"{name} is not for kernelsim")

sys.meta_path.insert(0, Refuse())
import numpy as np
import kernelsim
"""
CUDA = '''
source = """__global__ void twice(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}"""
x, y = np.arange(100, dtype=np.float32), np.zeros(100, dtype=np.float32)
assert kernelsim.cuda(source)["twice"][1, 128](x, y, 100)
assert (y == 2 * x).all()
try:
    kernelsim.cuda(source)["twice"][1, 128](x, y, 101)
except kernelsim.FindingError as error:
    print(*(f"{f.kind} {f.line}" for f in error.findings))
'''
TRITON = """
from tests.kernelsim import array_kernels

x, y = np.arange(100, dtype=np.float32), np.zeros(100, dtype=np.float32)
assert kernelsim.triton(array_kernels.twice)[(1,)](x, y, 100, B=128)
assert (y == 2 * x).all()
try:
    kernelsim.triton(array_kernels.twice)[(1,)](x, y, 101, B=128)
except kernelsim.FindingError as error:
    print(*(f"{f.kind} {f.line}" for f in error.findings))
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.compiler
def test_cuda_kernels_run_where_neither_opwright_nor_torch_can_be_imported() -> None:
    assert run(CUDA) == "out-of-bounds 3\n"


@pytest.mark.triton
@pytest.mark.compiler
def test_triton_kernels_run_where_neither_opwright_nor_torch_can_be_imported() -> None:
    assert run(TRITON) == "out-of-bounds 13 out-of-bounds 13\n"


def test_every_module_can_be_imported_there() -> None:
    names = [name for name in modules() if name != "kernelsim.__main__"]
    assert run(f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\nprint('all')") == "all\n"


def test_its_public_names_are_few_and_can_be_imported() -> None:
    assert len(kernelsim.__all__) == 12
    for name in kernelsim.__all__:
        assert getattr(kernelsim, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        kernelsim.nonsense  # noqa: B018
