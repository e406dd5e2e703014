"""Judges one mutant: checks it in stages up to the first failure, and searches for inputs that kill a survivor."""

from __future__ import annotations

import dataclasses
import re
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.checks.run import check
from opwright.checks.scheduling.plan import Task
from opwright.contract.inputs.cases import cases
from opwright.mutation.edits import Edit
from opwright.mutation.further import Further, searches
from opwright.mutation.patch import Patch, mutant_of
from opwright.mutation.sources import FILE, Source
from opwright.results import Fate, Finding, Killer, Mutant, Status, Verdict
from opwright.target import Engine

__all__ = [
    "MutatedKernel", "judge", "record_of", "search", "shown", "usable_searches", "why_unsuitable",
]  # fmt: skip

# The checks of mutants, the quickest first. What is left out is about the operator's rules, not about a kernel's code.
_SMOKE = ("memory", "values")
_OUTPUTS = ("memory", "values", "special values", "properties", "metadata", "inputs unchanged", "global state")
_OTHERS = ("repeated calls", "execution context", "configurations", "gradients", "own backward", "protected memory")
_STAGES = (("smoke", _SMOKE), ("quick", _OUTPUTS), ("quick", _OTHERS))
# What survivors are searched with: most inputs for the time.
_SEARCHED = ("values",)
_DOES_NOT_COMPILE = re.compile(r"raised (CompileError|CompilationError|UnsupportedLanguageConstruct)")
_SAMPLE = re.compile(r"\bsample=(\d+)")


@dataclass(frozen=True)
class MutatedKernel:
    """One kernel whose mutants are run.

    Attributes:
        folder: for the sources of mutants.
    """

    task: Task
    timeout: float
    folder: Path

    def check(self, patch: Patch, level: str, checks: Sequence[str], case: str = "") -> Verdict:
        report = check(
            mutant_of(self.task.op, patch),
            kernels=[self.task.kernel],
            device=str(self.task.target),
            level=level,
            checks=checks,
            timeout=self.timeout,
            jobs=1,
            case=case,
            fail_fast=True,
        )
        return report.verdicts[0]


def why_unsuitable(kernel: MutatedKernel) -> str:
    """Why mutants would tell nothing: the kernel itself does not pass."""
    for level, checks in _STAGES:
        verdict = kernel.check(Patch(kernel.task.kernel), level, checks)
        if verdict.status is Status.REFUSED:
            return verdict.reason
        if wrong := _failure(verdict):
            return f"the kernel itself does not pass the check {wrong.check!r}: {wrong.message.splitlines()[0]}"
    return ""


def _failure(verdict: Verdict) -> Finding | None:
    return next((f for f in verdict.findings if f.status in (Status.FAIL, Status.INCONCLUSIVE)), None)


def judge(kernel: MutatedKernel, number: int, source: Source, edit: Edit) -> Mutant:
    """Check one mutant, in stages, up to the first failure."""
    started = time.monotonic()
    made = record_of(source, edit)
    fate = _without_running(source, edit)
    if fate is not None:
        return dataclasses.replace(made, fate=fate)
    patch = _patch(kernel, str(number), source, edit)
    for level, checks in _STAGES:
        verdict = kernel.check(patch, level, checks)
        wrong = _failure(verdict)
        if verdict.status is Status.REFUSED:
            wrong = Finding("build", Status.FAIL, message=verdict.reason)
        if wrong is not None:
            return dataclasses.replace(
                made,
                fate=_fate(wrong),
                check=wrong.check,
                case=wrong.case,
                message=wrong.message,
                seconds=round(time.monotonic() - started, 1),
            )
    return dataclasses.replace(made, seconds=round(time.monotonic() - started, 1))


def record_of(source: Source, edit: Edit) -> Mutant:
    """The record of a mutant that nothing has killed."""
    return Mutant(shown(source), edit.line(source.text), edit.operator, edit.diff(source.text), Fate.SURVIVED)


def _fate(wrong: Finding) -> Fate:
    if wrong.check in ("build", "load") or _DOES_NOT_COMPILE.search(wrong.message):
        return Fate.INVALID
    return Fate.TIMEOUT if wrong.status is Status.INCONCLUSIVE else Fate.KILLED


def shown(source: Source) -> str:
    """The source's file as reports name it."""
    path = Path(source.name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else source.name


def _without_running(source: Source, edit: Edit) -> Fate | None:
    """What the compiler says of a mutant in Python: whether it is one, and whether it differs at all."""
    if source.path is None or source.path.suffix in (".cpp", ".cu"):
        return None
    try:
        before, after = (compile(t, "", "exec", dont_inherit=True) for t in (source.text, edit.apply(source.text)))
    except (SyntaxError, ValueError):
        return Fate.INVALID
    return Fate.EQUIVALENT if _instructions(before) == _instructions(after) else None


def _instructions(code: types.CodeType) -> tuple[object, ...]:
    """What a code object does, without the places of its source."""
    constants = [_instructions(c) if isinstance(c, types.CodeType) else (type(c), repr(c)) for c in code.co_consts]
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, tuple(constants))


def _patch(kernel: MutatedKernel, name: str, source: Source, edit: Edit) -> Patch:
    """The mutant's text in a file of its own, beside links to what is beside the original: it may include them."""
    text = edit.apply(source.text)
    folder = kernel.folder / name
    folder.mkdir()
    file = folder / (source.path.name if source.path is not None else "source.cu")
    if source.kind == FILE and source.path is not None:
        for beside in source.path.parent.iterdir():
            if beside.name != source.path.name and not beside.name.startswith((".", "__pycache__")):
                (folder / beside.name).symlink_to(beside)
    file.write_text(text)
    original = source.name if source.kind != "cuda module" else source.text
    return Patch(kernel.task.kernel, source.kind, original, text, file)


def _searches(kernel: MutatedKernel) -> list[Further]:
    task = kernel.task
    return searches(task.op.contract, task.kernel, slow=task.target.engine is not Engine.NATIVE)


def usable_searches(kernel: MutatedKernel) -> list[int]:
    """The further inputs on which the kernel itself passes: elsewhere, a mutant's failure says nothing."""
    name = kernel.task.kernel
    return [
        number
        for number, further in enumerate(_searches(kernel))
        if _failure(kernel.check(Patch(name, further=further), further.level, _SEARCHED)) is None
    ]


def search(kernel: MutatedKernel, source: Source, edit: Edit, usable: Sequence[int]) -> Killer | None:
    """The first of the usable inputs on which a survivor fails."""
    patch = _patch(kernel, "again", source, edit)
    all_searches = _searches(kernel)
    for further in (all_searches[number] for number in usable):
        patch = dataclasses.replace(patch, further=further)
        wrong = _failure(kernel.check(patch, further.level, _SEARCHED))
        if wrong is not None:
            return _killer(kernel, further, wrong)
    return None


def _killer(kernel: MutatedKernel, further: Further, wrong: Finding) -> Killer:
    sample, spec = _SAMPLE.search(wrong.case), kernel.task.op.kernels[kernel.task.kernel].spec
    case = further.describe(kernel.task.op, int(sample[1])) if sample else wrong.case
    if further.widened:
        add = f"state more values of {further.widened!r} with ow.values(...)"
    elif sample:
        add = "yield such arguments from @op.samples"
    elif wrong.case in {str(c) for c in cases(kernel.task.op.contract, "full", spec.taken_dtypes)}:
        add = "opwright check --level full"
    else:
        sizes = ", ".join(f"{n}=({s},)" for n, s in re.findall(r"(\w+)=(\d+)\b", wrong.case))
        add = f"op.sizes({sizes})"
    return Killer(wrong.check, case, wrong.message, add)
