"""The import rules: which module may import which. Read from the source, with lazy imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import opwright
from opwright.languages import LANGUAGES
from tests import REPOSITORY

ROOT = Path(opwright.__file__).parent
# From the bottom to the top: each layer imports from itself and from those before it.
LAYERS = (
    "errors", "tree", "import_file", "internals", "results", "processor", "target", "machine", "entry_points",
    "languages", "file_trust", "read_files", "cache", "contract", "inputs", "backends", "fast_path", "runtime",
    "captured", "workers", "sweep", "checks", "timing", "cluster", "report", "package", "gallery", "planted",
    "mutation", "port", "judged", "adopted", "testing", "scaffold", "watching", "notebook", "cli",
)  # fmt: skip
LEAVES = {
    "errors": set(),
    "tree": set(),
    "import_file": set(),
    "results": {"errors"},
    "processor": set(),
    "machine": {"errors", "results", "processor", "target"},
    "target": set(),
    "entry_points": set(),
    "languages": {"entry_points"},
    "read_files": set(),
    "cache": {"errors", "file_trust", "read_files"},
    "file_trust": set(),
}
# Languages: none imports another. C++ is in ``native``, which CUDA's host functions share.
FOLDERS = {re.split("[.:]", language.backend)[0] for language in LANGUAGES.values()} - {"native"}
# The one module that imports kernelsim.
SIMULATION = "opwright.backends.simulation"
# The files with a language's ``Backend``: only the table and their own package import them.
BACKEND_FILES = {f"opwright.backends.{language.backend.partition(':')[0]}" for language in LANGUAGES.values()}


@dataclass(frozen=True)
class Import:
    """One import statement's target; ``checking`` if only type checkers see it."""

    target: str
    line: int
    checking: bool = False


def imports_of(text: str, module: str, is_package: bool = False) -> list[Import]:
    """Every import in a source, wherever it stands; ``from a import b`` gives ``a.b``."""
    found: list[Import] = []

    def visit(node: ast.AST, checking: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, True)
            for child in node.orelse:
                visit(child, checking)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, checking) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                kept = package[: len(package) - node.level + 1]
                base = ".".join([*kept, *([base] if base else [])])
            found.extend(Import(f"{base}.{alias.name}", node.lineno, checking) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, checking)

    visit(ast.parse(text), False)
    return found


def sources() -> dict[str, str]:
    """Every module of the package with its text (templates are no modules)."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if "templates" in relative.parts:
            continue
        parts = ["opwright", *relative.with_suffix("").parts]
        found[".".join(parts)] = path.read_text()
    return found


def violations(modules: Mapping[str, str]) -> list[str]:
    """The violations of the rules in these modules (names with ``.__init__``, texts), as messages."""
    problems: list[str] = []
    graph: dict[str, set[str]] = {}
    known = {name.removesuffix(".__init__") for name in modules}
    for name, text in modules.items():
        module, is_package = name.removesuffix(".__init__"), name.endswith(".__init__")
        for found in imports_of(text, module, is_package):
            top = found.target.split(".")[0]
            where = f"{module}:{found.line} imports {found.target}"
            if top == "kernelsim" and module != SIMULATION:
                problems.append(f"{where}: only {SIMULATION} imports kernelsim")
            if top != "opwright":
                if top == "torch" and layer_of(module) == "report" and not found.checking:
                    problems.append(f"{where}: report knows no torch")
                continue
            target = longest_module(found.target, known)
            if not found.checking:
                graph.setdefault(module, set()).add(target)
            if target == "opwright" and layer_of(found.target) in LAYERS:
                target = found.target  # a module that is not there (yet)
            if module != "opwright":
                problems += [f"{where}: {why}" for why in broken_rules(module, target)]
    problems += [f"import cycle: {' → '.join(cycle)}" for cycle in cycles(graph)]
    for folder, beside in side_by_side(graph).items():
        problems += [f"cycle of what stands in {folder}: {' → '.join(cycle)}" for cycle in cycles(beside)]
    return problems


def side_by_side(graph: Mapping[str, set[str]]) -> dict[str, dict[str, set[str]]]:
    """For each folder, which of its files and folders import which others of them; a folder counts with all in it."""
    found: dict[str, dict[str, set[str]]] = {}
    for module, targets in graph.items():
        mine = module.split(".")
        for target in targets:
            theirs = target.split(".")
            common = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
            if common is not None:
                beside = found.setdefault(".".join(mine[:common]), {})
                beside.setdefault(mine[common], set()).add(theirs[common])
    return found


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def longest_module(target: str, known: Iterable[str]) -> str:
    """``opwright.a.b.Name`` is an import of ``opwright.a.b``."""
    known = set(known)
    while target not in known and "." in target:
        target = target.rpartition(".")[0]
    return target


def broken_rules(module: str, target: str) -> list[str]:
    mine, theirs = layer_of(module), layer_of(target)
    if mine not in LAYERS:
        return [] if mine in ("__main__",) else [f"{mine!r} is no layer: add it to LAYERS"]
    if mine == "gallery":
        fine = theirs in ("", "gallery")
        return [] if fine else ["the gallery uses only the public names of opwright"]
    if theirs == "":
        # ``import opwright`` inside the package would reach any layer through its lazy names.
        return [] if mine in ("cli", "planted") else ["use the module that defines the name, not the package"]
    problems = []
    if theirs not in LAYERS:
        problems.append(f"{theirs!r} is no layer: add it to LAYERS")
    elif LAYERS.index(theirs) > LAYERS.index(mine):
        problems.append(f"{mine} is below {theirs}")
    if mine in LEAVES and theirs != mine and theirs not in LEAVES[mine]:
        problems.append(f"{mine} is a leaf")
    if mine in ("checks", "timing") and theirs == "backends":
        problems.append(f"{mine} knows no backend")
    if {mine, theirs} == {"checks", "timing"}:
        problems.append("checks and timing know nothing of each other")
    if theirs == "cli" and mine != "cli":
        problems.append("no module imports the cli")
    if mine == theirs == "backends":
        problems += language_rules(module, target)
    return problems


def language_rules(module: str, target: str) -> list[str]:
    """Languages do not import each other: common code is in shared packages."""
    mine, theirs = (name.split(".")[2] if name.count(".") > 1 else "" for name in (module, target))
    problems = []
    if mine in FOLDERS and theirs in FOLDERS and mine != theirs:
        problems.append("a language knows no other language")
    if target in BACKEND_FILES and target.rpartition(".")[0] != module.rpartition(".")[0]:
        problems.append("only the table of backends imports a language's Backend")
    return problems


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """One cycle for each module that closes one, shortest first found."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
            return
        if module in done:
            return
        for target in sorted(graph.get(module, ())):
            if target != module:
                walk(target, [*path, module])
        done.add(module)

    for module in sorted(graph):
        walk(module, [])
    return found


def test_the_package_keeps_the_rules() -> None:
    assert not violations(sources())


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"opwright.contract.binding": "from opwright.runtime.op import Op"}, "contract is below runtime"),
        ({"opwright.contract.binding": "def f():\n    import opwright.runtime.op"}, "contract is below runtime"),
        ({"opwright.contract.binding": "from ..runtime import op"}, "contract is below runtime"),
        ({"opwright.cache": "from opwright.machine import Machine"}, "cache is a leaf"),
        ({"opwright.errors": "from opwright.results import Refused"}, "errors is a leaf"),
        ({"opwright.checks.run": "from opwright.backends import get_backend"}, "checks knows no backend"),
        ({"opwright.timing.run": "from opwright.checks import check"}, "know nothing of each other"),
        (
            {
                "opwright.timing.timers": "from opwright.timing.hardware.cores import x",
                "opwright.timing.hardware.cores": "",
                "opwright.timing.hardware.limits": "from opwright.timing.timers import y",
            },
            "cycle of what stands in opwright.timing: hardware → timers → hardware",
        ),
        (
            {"opwright.backends.cuda.nvrtc": "from opwright.backends.triton.stages import x"},
            "a language knows no other language",
        ),
        (
            {"opwright.backends.base": "from opwright.backends.triton.backend import x"},
            "only the table of backends imports a language's Backend",
        ),
        ({"opwright.gallery.a": "from opwright.cli import main"}, "only the public names"),
        ({"opwright.package.a": "from opwright.cli import main"}, "no module imports the cli"),
        ({"opwright.package.a": "from opwright.gallery import trig"}, "package is below gallery"),
        ({"opwright.runtime.op": "from opwright.package.write import x"}, "runtime is below package"),
        ({"opwright.gallery.a": "from opwright.errors import OpwrightError"}, "only the public names"),
        ({"opwright.backends.cuda.module": "import kernelsim"}, "only opwright.backends.simulation imports kernelsim"),
        (
            {"opwright.runtime.op": "def f():\n    from kernelsim.text import c_text"},
            "only opwright.backends.simulation imports kernelsim",
        ),
        ({"opwright.report.html": "import torch"}, "report knows no torch"),
        ({"opwright.report.html": "def f():\n    from torch import nn"}, "report knows no torch"),
        ({"opwright.runtime.op": "import opwright"}, "not the package"),
        ({"opwright.novelty.a": "import opwright.errors"}, "is no layer"),
        (
            {
                "opwright.contract.a": "from opwright.contract.b import x",
                "opwright.contract.b": "def f():\n    from opwright.contract import a",
            },
            "import cycle: opwright.contract.a → opwright.contract.b → opwright.contract.a",
        ),
    ],
)
def test_a_planted_violation_is_caught(modules: dict[str, str], message: str) -> None:
    known = {
        "opwright.runtime.op": "",
        "opwright.backends.triton.backend": "",
        "opwright.backends.triton.stages": "",
        "opwright.cli": "",
        "opwright.results": "",
    }
    assert any(message in problem for problem in violations({**known, **modules})), violations(modules)


def test_what_is_allowed_is_not_flagged() -> None:
    fine = {
        "opwright.contract.binding": "import torch\nfrom opwright.errors import ContractError",
        "opwright.contract.a": "if TYPE_CHECKING:\n    from opwright.contract.b import x",
        "opwright.contract.b": "from opwright.contract.a import y",
        "opwright.backends.native.cpp": "from opwright.backends.native import abi",
        "opwright.backends.native.abi": "",
        "opwright.backends.simulation": "from kernelsim.text import c_text",
        "opwright.cli": "from opwright.report.html import x\nimport opwright",
        "opwright.report.html": "import rich",
        "opwright.gallery.a": "import opwright as ow",
        "opwright.errors": "",
    }
    assert not violations(fine)


@pytest.mark.parametrize("what", ["import opwright", "import opwright; dir(opwright); opwright.__version__"])
def test_importing_opwright_imports_nothing_heavy(what: str) -> None:
    script = f"{what}\nimport sys\nprint([m for m in ('torch', 'triton', 'numpy', 'jaxtyping') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_can_be_imported() -> None:
    assert opwright.__all__ == sorted(opwright.__all__, key=lambda name: (not name.isupper(), name))
    for name in opwright.__all__:
        assert getattr(opwright, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        opwright.nonsense  # noqa: B018


def test_folders_and_files_are_small():
    folders = [folder for folder in (REPOSITORY / "src").rglob("*") if folder.is_dir()]
    crowded = [f.name for f in folders if len([*f.glob("*.py")]) - (f / "__init__.py").exists() > 15]
    long = [file.name for file in (REPOSITORY / "src").rglob("*.py") if len(file.read_text().splitlines()) > 400]
    assert (crowded, long) == ([], [])
