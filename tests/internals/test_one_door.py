"""torch's and Triton's private names are used only in ``opwright.internals``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import opwright
from kernelsim.triton_sim.internals import NAMES
from opwright.internals.names import INTERNALS

SOURCE = Path(opwright.__file__).parent
FOREIGN = ("torch", "triton")
DOCUMENTED = ("os._exit", "sys._current_frames")  # Python's own
# The attributes for the rows of the table.
IN_TABLE = frozenset(row.name.rpartition(".")[2] for row in INTERNALS)


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def private_part(dotted: str) -> bool:
    first, *rest = dotted.split(".")
    return first in FOREIGN and any(map(is_private, rest))


def defined_in(tree: ast.AST) -> Iterator[str]:
    """Every name that a source defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__slots__" for t in node.targets
        ):
            yield from ast.literal_eval(node.value)


def uses_of_private_names(text: str, ours: frozenset[str]) -> list[str]:
    """The private names of torch and Triton in a source: imports, attributes, and names in strings."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if private_part(alias.name)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [d for alias in node.names if private_part(d := f"{node.module}.{alias.name}")]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            of_its_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if (
                ast.unparse(node) not in DOCUMENTED
                and not of_its_own
                and (node.attr not in ours - IN_TABLE or private_part(ast.unparse(node)))
            ):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found += [word for word in node.value.replace('"', " ").split() if private_part(word)]
    return found


def elsewhere() -> list[Path]:
    return [f for f in SOURCE.rglob("*.py") if "internals" not in f.relative_to(SOURCE).parts]


@pytest.fixture(scope="module")
def ours() -> frozenset[str]:
    return frozenset(name for file in elsewhere() for name in defined_in(ast.parse(file.read_text())))


def test_no_other_package_uses_a_private_name(ours):
    found = {str(f.relative_to(SOURCE)): uses_of_private_names(f.read_text(), ours) for f in elsewhere()}
    assert [f"{file}: {', '.join(uses)}" for file, uses in found.items() if uses] == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo", "from torch._C import DispatchKey", "from torch import _C", "torch._C.parse_schema('')",
        "x._version", "overload._schema", "import torch\nd = torch.cuda._sleep(1)", "sys.modules['torch._dynamo']",
        "from triton.runtime._allocation import x", "name = 'torch._inductor.config'", "torch.ops.aten.add.default._op",
    ],
)  # fmt: skip
def test_uses_are_found(text, ours):
    assert uses_of_private_names(text, ours)


@pytest.mark.parametrize(
    "text",
    ['"""Uses torch._C, it says."""', "self._kernels", "__torch_function__", "import torch\ntorch.__version__",
     "torch.utils.cpp_extension", "x.__dict__", "my_torch._x = 3"],
)  # fmt: skip
def test_what_is_public_or_ours_is_left_alone(text, ours):
    assert not uses_of_private_names(text, ours | {"_kernels", "_x"})


def test_every_row_of_the_table_is_used():
    text = "\n".join(f.read_text() for f in (SOURCE / "internals").glob("*.py") if f.name != "names.py")
    unused = [row.key for row in INTERNALS if f'"{row.key}"' not in text and row.key not in NAMES]
    assert unused == []


def test_the_simulator_of_triton_uses_the_names_of_the_table():
    rows = {row.key: row.name for row in INTERNALS}
    assert {key: rows.get(key) for key in NAMES} == NAMES


def test_rows_say_what_for_and_what_happens_without():
    assert len({row.key for row in INTERNALS}) == len(INTERNALS) == len({row.name for row in INTERNALS})
    for row in INTERNALS:
        assert row.used_for not in ("", "the same")
        assert row.without
        assert row.seen
