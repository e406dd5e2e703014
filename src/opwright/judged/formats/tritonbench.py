"""tritonbench: ``operator.py`` with ``class Operator(BenchmarkOperator)``, whose benchmarks return a function each
(https://github.com/meta-pytorch/tritonbench).

The benchmark with ``baseline=True`` is the reference, and the others are candidates.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.contract.own_inputs import Rule
from opwright.errors import TargetError
from opwright.judged.contract_text import language_of
from opwright.judged.names import unique
from opwright.judged.sources import are_plain
from opwright.judged.task import Candidate, Task

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "tritonbench"
TAKES = "folders with operator.py, which defines class Operator(BenchmarkOperator)"
_FILE, _BASE, _DECORATOR = "operator.py", "BenchmarkOperator", "register_benchmark"
_REFERENCE = """from opwright.judged.stated.bench_operator import BenchOperator

operator = BenchOperator({file!r})


def get_inputs():
    return operator.inputs()


def reference(*arguments):
    return operator.call({name!r}, arguments)
"""
_CANDIDATES = """from opwright.judged.stated.bench_operator import BenchOperator

operator = BenchOperator({file!r})
"""


@dataclass(frozen=True)
class _Benchmark:
    """A benchmark: the method, whether it is the baseline, and the condition under which it exists; "" if always."""

    name: str
    is_baseline: bool
    condition: str


def recognises(paths: Sequence[str]) -> bool:
    return any(_BASE in file.read_text(errors="replace") for file in _files(paths))


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task for each operator, with its benchmarks."""
    names = set[str]()
    for file in _files(paths):
        try:
            benchmarks = _benchmarks(file)
        except TargetError as error:
            yield str(file), str(error)
            continue
        for each in benchmarks:
            if each.condition:
                yield f"{file}:{each.name}", f"it exists only if {each.condition}"
        kept = [each for each in benchmarks if not each.condition]
        baseline = next((each for each in kept if each.is_baseline), None)
        if baseline is None or len(kept) == 1:
            yield str(file), f"it must have a benchmark with baseline=True and another one, got {len(kept)}"
        else:
            others = [each for each in kept if each is not baseline]
            yield _task(file, baseline, others, scratch, unique(file.parent.name, names))


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        for file in sorted(path.rglob(_FILE)) if path.is_dir() else [path]:
            if file.name == _FILE and file.is_file():
                yield file.resolve()


def _task(file: Path, baseline: _Benchmark, others: Sequence[_Benchmark], scratch: Path, name: str) -> Task:
    into = scratch / f"sources_{name}"
    into.mkdir(parents=True, exist_ok=True)
    reference, candidates = into / "reference.py", into / "candidates.py"
    reference.write_text(_REFERENCE.format(file=str(file), name=baseline.name))
    functions = "".join(f"{each.name} = operator.function({each.name!r})\n" for each in others)
    candidates.write_text(_CANDIDATES.format(file=str(file)) + functions)
    language = language_of(file.read_text(errors="replace"))
    listed = [Candidate(each.name, candidates, each.name, language=language, origin=file.parent) for each in others]
    return Task(
        name, NAME, reference, "reference", tuple(listed), plain=_plain_inputs(file), rule=Rule(NAME, 1e-5, 1.6e-2),
        origin=file.parent, more_reference=((file, f"Operator.{baseline.name}"),),
    )  # fmt: skip


def _plain_inputs(file: Path) -> tuple[bool, ...]:
    """For each argument that ``get_input_iter`` yields, whether it is random numbers wherever it is yielded."""
    found = [n for n in ast.walk(ast.parse(file.read_text(errors="replace"))) if isinstance(n, ast.FunctionDef)]
    function = next((n for n in found if n.name == "get_input_iter"), None)
    yielded = [n.value for n in ast.walk(function) if isinstance(n, ast.Yield)] if function is not None else []
    each = [are_plain(function, value) for value in yielded] if function is not None else []
    return tuple(map(all, zip(*each, strict=True))) if each and len(set(map(len, each))) == 1 else ()


def _benchmarks(file: Path) -> list[_Benchmark]:
    """The benchmarks of an operator's class.

    Raises:
        TargetError: the file is not Python, or has no such class.
    """
    try:
        body = ast.parse(file.read_text(errors="replace"), str(file)).body
    except SyntaxError as error:
        raise TargetError(f"{_FILE}:{error.lineno}: it must be Python, got {error.msg}", fix="correct it") from None
    classes = [n for n in body if isinstance(n, ast.ClassDef) and any(_BASE in ast.unparse(b) for b in n.bases)]
    if not classes:
        raise TargetError(f"{_FILE} must define class Operator({_BASE}), got none", fix="name another folder")
    methods = [n for n in classes[0].body if isinstance(n, ast.FunctionDef)]
    return [found for method in methods for d in method.decorator_list if (found := _benchmark(method.name, d))]


def _benchmark(name: str, decorator: ast.expr) -> _Benchmark | None:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not ast.unparse(function).endswith(_DECORATOR):
        return None
    given = {k.arg: k.value for k in decorator.keywords} if isinstance(decorator, ast.Call) else {}
    baseline, enabled = given.get("baseline"), given.get("enabled")
    is_baseline = isinstance(baseline, ast.Constant) and baseline.value is True
    condition = "" if enabled is None or ast.unparse(enabled) == "True" else ast.unparse(enabled)
    return _Benchmark(name, is_baseline, condition)
