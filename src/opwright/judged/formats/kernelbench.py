"""KernelBench: ``Model`` in a problem's file, ``ModelNew`` in a candidate's (https://github.com/ScalingIntelligence/KernelBench).

A candidate is ``…/level_L_problem_P_sample_S_kernel.py``, and its problem ``…/KernelBench/levelL/P_name.py``, which is
looked for above it; or both are given; or one file has both classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opwright.contract.own_inputs import Rule
from opwright.judged.names import unique
from opwright.judged.task import Candidate, Task

__all__ = ["NAME", "TAKES", "recognises", "tasks"]

NAME = "kernelbench"
TAKES = "files, or folders of files, that define Model or ModelNew; --references names the folder of problems"
_CANDIDATE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel")
_REFERENCE, _ENTRY = "Model", "ModelNew"


def recognises(paths: Sequence[str]) -> bool:
    return any(_defines(file, _ENTRY) for file in _files(paths))


def tasks(paths: Sequence[str], references: Path | None, scratch: Path) -> Iterator[Task | tuple[str, str]]:
    """One task for each problem, with all candidates for it."""
    files = list(_files(paths))
    problems = [f for f in files if _defines(f, _REFERENCE)]
    by_problem: dict[Path, list[Path]] = {}
    for file in files:
        if not _defines(file, _ENTRY):
            if file not in problems:
                yield str(file), f"it must define {_ENTRY} or {_REFERENCE}"
            continue
        problem = file if file in problems else _problem_of(file, references, problems)
        if problem is None:
            yield str(file), "no problem belongs to it: name the folder of problems with --references"
        else:
            by_problem.setdefault(problem, []).append(file)
    names = set[str]()
    for problem, found in by_problem.items():
        name = unique(_name_of(problem), names)
        constructor = "get_init_inputs" if "get_init_inputs" in problem.read_text(errors="replace") else ""
        yield Task(
            name, NAME, problem, _REFERENCE, tuple(_candidates(found)),
            constructor=constructor, rule=Rule(NAME, 1e-4, 1e-4, of_half=1e-2), expects_kernel=True, shares_names=True,
        )  # fmt: skip


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            found = (f for f in sorted(path.rglob("*.py")) if _CANDIDATE.fullmatch(f.stem) or _defines(f, _ENTRY))
            yield from (f.resolve() for f in found)
        elif path.suffix == ".py" and path.is_file():
            yield path.resolve()


def _defines(file: Path, name: str) -> bool:
    try:
        return re.search(rf"^class {name}\b", file.read_text(errors="replace"), re.MULTILINE) is not None
    except OSError:
        return False


def _problem_of(candidate: Path, references: Path | None, given: Sequence[Path]) -> Path | None:
    """The file of a candidate's problem: by the number in its name, or the only one that is given."""
    only = given[0] if len(given) == 1 else None
    named = _CANDIDATE.search(candidate.stem)
    if named is None:
        return only
    level, number = named.group(1), named.group(2)
    folders = [references] if references is not None else [p / "KernelBench" for p in candidate.parents]
    for folder in folders:
        found = sorted((folder / f"level{level}").glob(f"{number}_*.py")) or sorted(folder.glob(f"{number}_*.py"))
        if found:
            return found[0].resolve()
    is_another = only is not None and only.stem.partition("_")[0] not in (number, only.stem) and only.stem[0].isdigit()
    return None if is_another else only


def _candidates(files: Sequence[Path]) -> Iterator[Candidate]:
    names = set[str]()
    for file in files:
        named = _CANDIDATE.search(file.stem)
        own = f"{file.parent.name}_{named.group(3)}" if named else file.stem
        published = {"problem": named.group(2), "sample": int(named.group(3))} if named else {}
        yield Candidate(unique(own, names), file, _ENTRY, _recorded(file, named), published=published)


def _recorded(file: Path, named: re.Match[str] | None) -> str:
    """KernelBench's own verdict, from the ``eval_results.json`` beside the candidate; "" if there is none."""
    results = file.parent / "eval_results.json"
    if named is None or not results.is_file():
        return ""
    try:
        found = json.loads(results.read_text()).get(named.group(2))
    except ValueError:
        return ""
    rows = found if isinstance(found, list) else [found] if isinstance(found, dict) else []
    row = next((r for r in rows if str(r.get("sample_id", named.group(3))) == named.group(3)), None)
    return "" if row is None else "correct" if row.get("correctness") else "wrong"


def _name_of(problem: Path) -> str:
    level = problem.parent.name if problem.parent.name.startswith("level") else ""
    return re.sub(r"\W+", "_", f"{level}_{problem.stem}".lower()).strip("_")
