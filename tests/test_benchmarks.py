"""Benchmarks run rarely: what they import from the project must exist meanwhile."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))


def missing(text: str) -> list[str]:
    """The names that a source imports from this project and that do not exist."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in ("opwright", "kernelsim"):
            continue
        module = importlib.import_module(node.module)
        found += [f"{node.module}.{alias.name}" for alias in node.names if not _has(module, alias.name)]
    return found


def _has(module, name):
    if hasattr(module, name):
        return True
    try:
        importlib.import_module(f"{module.__name__}.{name}")
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_what_a_benchmark_imports_exists(file):
    assert missing(file.read_text()) == []


def test_a_name_that_is_gone_is_found():
    text = "from opwright.checks.table import CHECKS, EACH_CASE\nfrom opwright.checks import table, tables"
    assert missing(text) == ["opwright.checks.table.EACH_CASE", "opwright.checks.tables"]
