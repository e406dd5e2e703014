"""Published functions with the calls of their doctests: compiled, and as they are. A table of verdicts.

    git clone https://github.com/TheAlgorithms/Python
    python benchmarks/numpy_corpus.py Python maths physics bit_manipulation -o FILE
    python benchmarks/numpy_corpus.py Python --compiler torch machine_learning

Each file is imported in a process of its own, and each of its functions whose doctests call it by its name is compiled
in another one. The first call compiles and compares; the others are compiled code alone, and are compared here: results
with their classes, arguments that were written, exceptions.
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import doctest
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import opwright as ow

_SCRIPT = Path(__file__).resolve()
sys.path.insert(0, str(_SCRIPT.parent.parent))

from tests.backends.numpy.programs import verdict_of_calls  # noqa: E402

_SECONDS = 60


def imported(path: Path) -> types.ModuleType:
    """The module of a file, whose folder may hold others that it imports."""
    sys.path[:0] = [str(Path.cwd()), str(path.parent)]
    spec = importlib.util.spec_from_file_location(f"corpus_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def calls_in_doctests(module: types.ModuleType) -> dict[types.FunctionType, list[tuple[Any, ...]]]:
    """The arguments with which the doctests of a module call its functions."""
    found: dict[types.FunctionType, list[tuple[Any, ...]]] = {}
    for test in doctest.DocTestFinder().find(module, globs=dict(vars(module))):
        names = dict(test.globs)
        for example in test.examples:
            for function, arguments in _calls(example.source, module, names):
                found.setdefault(function, []).append(arguments)
            try:
                exec(example.source, names)
            except BaseException:  # many examples show an exception
                continue
    return found


def _calls(source: str, module: types.ModuleType, names: dict[str, Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.keywords:
            continue
        function = getattr(module, node.func.id, None)
        if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
            try:
                yield function, tuple(eval(ast.unparse(argument), names) for argument in node.args)
            except Exception:  # an argument whose own evaluation raises
                continue


def verdict(function: types.FunctionType, calls: list[tuple[Any, ...]], compiler: str) -> dict[str, Any]:
    """What came of one function."""
    compiled = ow.compile_numpy(compiler=compiler, mode="compiled")(function)
    try:
        found = verdict_of_calls(function, compiled, copy.deepcopy(calls))
    except Exception as error:
        found = f"error: {type(error).__name__}: {error}"
    return {"verdict": found, "calls": len(calls), "refused": compiled.refused}


def run_file(path: Path, compiler: str) -> None:
    """Print a line of JSON for each function of a file. A function that ends its process ends no other one."""
    logging.getLogger("opwright").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for function, calls in calls_in_doctests(imported(path)).items():
        child = os.fork()
        if child == 0:
            signal.alarm(_SECONDS)
            out.write(json.dumps({"function": function.__name__, **verdict(function, calls, compiler)}) + "\n")
            out.flush()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            out.write(json.dumps({"function": function.__name__, "verdict": f"ended with {status}"}) + "\n")
            out.flush()


def verdicts_of(path: Path, compiler: str) -> Iterator[dict[str, Any]]:
    """The verdicts of a file's functions; none if it cannot be imported."""
    command = [sys.executable, str(_SCRIPT), ".", str(path), "--compiler", compiler, "--here"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20 * _SECONDS)
    except subprocess.TimeoutExpired:
        return
    for line in run.stdout.splitlines():
        yield {"file": str(path), **json.loads(line)}


def main() -> None:
    """Run all files below some folders of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--compiler", default="numba", choices=["numba", "torch", "auto"])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    output = options.output and options.output.resolve()
    os.chdir(options.checkout)
    if options.here:
        run_file(Path(options.folders[0]), options.compiler)
        return
    files = [file for folder in options.folders for file in sorted(Path(folder).rglob("*.py"))]
    found = [each for file in files for each in verdicts_of(file, options.compiler)]
    counts = collections.Counter(str(each["verdict"]).partition(":")[0] for each in found)
    table = {"compiler": options.compiler, "numpy": np.__version__, "files": len(files), "verdicts": dict(counts)}
    print(json.dumps(table, indent=2))
    for each in found:
        if each["verdict"] not in ("same", "raises as NumPy", "refused", "same but for rounding"):
            print(each["file"], each["function"], each["verdict"], each.get("refused", ""))
    if output:
        output.write_text(json.dumps({**table, "functions": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
