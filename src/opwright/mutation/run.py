"""Runs mutation testing: a sample of a kernel's mutants, each checked like a kernel, and a search for what kills the
survivors."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.checks.plan import Task, plan, refuse_unknown_kernels
from opwright.checks.run import check, executor_for, refuse_timeout
from opwright.contract.fingerprint import digest
from opwright.contract.inputs.cases import cases
from opwright.errors import CheckError
from opwright.mutation.edits import Edit
from opwright.mutation.further import Further, searches
from opwright.mutation.patch import Patch, mutant_of
from opwright.mutation.sources import FILE, Source, sources_of
from opwright.results import Fate, Finding, KernelMutation, Killer, Mutant, MutationReport, Status, Verdict
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.source_files import digest_of_sources
from opwright.runtime.targets import load_target
from opwright.sweep.executor import Executor, run_units
from opwright.sweep.journal import Journal, open_journal
from opwright.sweep.unit import Needs, Unit, no_step

__all__ = ["MUTANTS", "mutate"]

# How many mutants of a kernel are run by default: about a minute's worth.
MUTANTS = 20
# The checks of mutants, the quickest first. What is left out is about the operator's rules, not about a kernel's code.
_SMOKE = ("memory", "values")
_OUTPUTS = ("memory", "values", "special values", "properties", "metadata", "inputs unchanged", "global state")
_OTHERS = ("repeated calls", "surroundings", "configurations", "gradients", "own backward", "protected memory")
_STAGES = (("smoke", _SMOKE), ("quick", _OUTPUTS), ("quick", _OTHERS))
# What survivors are searched with: most inputs for the time.
_SEARCHED = ("values",)
# A mutant has at least so many seconds for one step.
_LEAST_TIMEOUT = 5.0
_DOES_NOT_COMPILE = re.compile(r"raised (CompileError|CompilationError|UnsupportedLanguageConstruct)")
_SAMPLE = re.compile(r"\bsample=(\d+)")


def mutate(
    *targets: Op | str,
    kernels: Sequence[str] | None = None,
    device: str | None = None,
    mutants: int = MUTANTS,
    seed: int = 0,
    timeout: float = 60.0,
    jobs: int | None = None,
    executor: Executor | None = None,
    resume: Path | str | Journal | None = None,
    on_resume: Callable[[str], None] | None = None,
    on_plan: Callable[[int], None] | None = None,
    on_mutant: Callable[[str], None] | None = None,
) -> MutationReport:
    """Put small faults into kernels, and find which of them the operators' contracts let live.

    Each mutant is a kernel with one change, and is checked like one, in a process of its own; no file is changed. A
    survivor passes every check. For each one, further sizes, draws and values are searched for inputs on which the
    kernel passes and the survivor fails.

    Args:
        targets, kernels, device, jobs, executor, resume, on_resume: as for ``ow.check``.
        mutants: at most so many of each kernel, drawn at random.
        seed: of this draw.
        timeout: seconds that one step of a mutant may take at most; less, if the kernel itself is quick.
        on_plan: called once, with the number of kernels.
        on_mutant: called with a line about each mutant.

    Raises:
        TargetError, CheckError: a target or kernel does not exist; a number is out of range; C++ is to be mutated
            without tree-sitter.
    """
    refuse_timeout(timeout)
    if mutants < 1:
        raise CheckError(f"mutants={mutants} is out of range", fix="use 1 or more")
    operators = [o for t in targets for o in ([t] if isinstance(t, Op) else load_target(t))]
    refuse_unknown_kernels(operators, kernels or ())
    where = executor_for(executor, jobs)
    machine = where.machine
    tasks = [t for o in operators for t in plan(o, machine, kernels, device) if t.kernel != REFERENCE]
    if on_plan is not None:
        on_plan(len(tasks))
    done: list[KernelMutation] = []
    partial = ""
    try:
        with contextlib.ExitStack() as stack:
            journal = stack.enter_context(open_journal(resume, machine, on_resume))
            settings = _Settings(mutants, seed, timeout, where, journal, on_mutant or (lambda line: None))
            for task in tasks:
                done.append(_mutate_kernel(task, settings))
    except KeyboardInterrupt:
        partial = f"interrupted: {len(done)} of {len(tasks)} kernels were mutated"
    return MutationReport(machine.to_json(), tuple(done), seed, partial=partial)


def no_result(result: Any) -> None:
    """Do nothing with a result."""


@dataclass(frozen=True)
class _Settings:
    mutants: int
    seed: int
    timeout: float
    executor: Executor
    journal: Journal | None
    on_mutant: Callable[[str], None]

    def run(self, units: Sequence[Unit[Any]], on_result: Callable[[Any], None] = no_result) -> list[Any]:
        """The results of units, in their order."""
        found: dict[int, Any] = {}
        with run_units(units, self.executor, journal=self.journal, on_step=no_step) as results:
            for done in results:
                found[done.number] = done.result
                on_result(done.result)
        return [found[number] for number in range(len(units))]


@dataclass(frozen=True)
class _Kernel:
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
            device=self.task.where,
            level=level,
            checks=checks,
            timeout=self.timeout,
            jobs=1,
            case=case,
            fail_fast=True,
        )
        return report.verdicts[0]


# -- units ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """What the units of mutation testing have in common (``sweep.unit.Unit``): each runs checks of one kernel."""

    task: Task
    timeout: float

    @property
    def name(self) -> str:
        return f"{self.task}: {self._what}"

    @property
    def key(self) -> str:
        others = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.name != "task"]
        return digest("mutation", self._what, digest_of_sources(self.task.op), str(self.task), *others)

    @property
    def needs(self) -> Needs:
        return Needs(gpu=self.task.device == "cuda")

    @property
    def _what(self) -> str:
        raise NotImplementedError

    @contextlib.contextmanager
    def _kernel(self) -> Iterator[_Kernel]:
        """The kernel, with a folder on the machine where the unit runs."""
        with tempfile.TemporaryDirectory(prefix="opwright-mutants-") as folder:
            yield _Kernel(self.task, self.timeout, Path(folder))


@dataclass(frozen=True)
class Suitability:
    """Whether mutants of a kernel would tell something, and how long its own checks take.

    Attributes:
        unsuitable: why not; empty if they would.
    """

    unsuitable: str
    seconds: float


@dataclass(frozen=True)
class _KernelUnit(_Unit):
    """The kernel itself is checked."""

    _what = "the kernel itself"
    kind = Suitability

    def run(self, on_step: Callable[[str], None]) -> Suitability:
        started = time.monotonic()
        with self._kernel() as kernel:
            return Suitability(_why_unsuitable(kernel), time.monotonic() - started)

    def without_result(self, why: str, remedy: str) -> Suitability:
        return Suitability(why, 0.0)


@dataclass(frozen=True)
class _MutantUnit(_Unit):
    """One mutant is checked."""

    source: Source
    edit: Edit

    kind = Mutant

    @property
    def _what(self) -> str:
        return f"mutant in line {self.edit.line(self.source.text)}"

    def run(self, on_step: Callable[[str], None]) -> Mutant:
        with self._kernel() as kernel:
            return _judge(kernel, 0, _on_this_machine(self.task, self.source), self.edit)

    def without_result(self, why: str, remedy: str) -> Mutant:
        return dataclasses.replace(_mutant(self.source, self.edit), fate=Fate.UNKNOWN, message=why)


@dataclass(frozen=True)
class Searches:
    """The further inputs on which a kernel itself passes, by their numbers among all."""

    usable: tuple[int, ...]


@dataclass(frozen=True)
class _SearchesUnit(_Unit):
    """The kernel itself is checked with further inputs."""

    _what = "further inputs"
    kind = Searches

    def run(self, on_step: Callable[[str], None]) -> Searches:
        with self._kernel() as kernel:
            return Searches(tuple(_usable_searches(kernel)))

    def without_result(self, why: str, remedy: str) -> Searches:
        return Searches(())


@dataclass(frozen=True)
class Found:
    """The inputs that kill a survivor, if some were found."""

    killer: Killer | None


@dataclass(frozen=True)
class _SearchUnit(_Unit):
    """A survivor is checked with further inputs."""

    source: Source
    edit: Edit
    usable: tuple[int, ...]

    kind = Found

    @property
    def _what(self) -> str:
        return f"survivor in line {self.edit.line(self.source.text)}"

    def run(self, on_step: Callable[[str], None]) -> Found:
        with self._kernel() as kernel:
            return Found(_search(kernel, _on_this_machine(self.task, self.source), self.edit, self.usable))

    def without_result(self, why: str, remedy: str) -> Found:
        return Found(None)


# -- one kernel -------------------------------------------------------------------------------------------------------


def _mutate_kernel(task: Task, settings: _Settings) -> KernelMutation:
    started = time.monotonic()
    operator, name = task.op, task.kernel
    made = KernelMutation(operator.contract.qualname, name, task.backend, task.where)
    if task.refused is not None:
        return dataclasses.replace(made, refused=str(task.refused))
    sources, left = sources_of(operator, name)
    candidates = [(dataclasses.replace(source, edits=()), edit) for source in sources for edit in source.edits]
    made = dataclasses.replace(made, possible=len(candidates), not_mutated=tuple(dict.fromkeys(left)))
    if not candidates:
        return dataclasses.replace(made, refused="there is nothing to mutate in it")
    (itself,) = settings.run([_KernelUnit(task, settings.timeout)])
    if itself.unsuitable:
        return dataclasses.replace(made, refused=itself.unsuitable)
    timeout = min(settings.timeout, max(_LEAST_TIMEOUT, 3 * itself.seconds))
    chosen = random.Random(settings.seed).sample(candidates, min(settings.mutants, len(candidates)))
    found = _run_all(task, timeout, chosen, settings)
    in_order = sorted(found, key=lambda m: (m.file, m.line, m.diff))
    return dataclasses.replace(made, mutants=tuple(in_order), seconds=round(time.monotonic() - started, 1))


def _why_unsuitable(kernel: _Kernel) -> str:
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


def _on_this_machine(task: Task, source: Source) -> Source:
    """The same text, under the name that its file has here."""
    here, _ = sources_of(task.op, task.kernel)
    return next(found for found in here if (found.kind, found.text) == (source.kind, source.text))


def _run_all(task: Task, timeout: float, chosen: Sequence[tuple[Source, Edit]], settings: _Settings) -> list[Mutant]:
    count = itertools.count(1)
    found = settings.run(
        [_MutantUnit(task, timeout, source, edit) for source, edit in chosen],
        lambda mutant: settings.on_mutant(f"{task}: mutant {next(count)} of {len(chosen)} {mutant.fate}"),
    )
    found = [dataclasses.replace(m, file=_shown(source)) for m, (source, _) in zip(found, chosen, strict=True)]
    survivors = [number for number, mutant in enumerate(found) if mutant.fate is Fate.SURVIVED]
    if survivors:
        settings.on_mutant(f"{task}: searching for inputs that kill {len(survivors)} survivors")
        (searches,) = settings.run([_SearchesUnit(task, timeout)])
        searched = settings.run([_SearchUnit(task, timeout, *chosen[number], searches.usable) for number in survivors])
        for number, one in zip(survivors, searched, strict=True):
            found[number] = dataclasses.replace(found[number], killer=one.killer)
    return found


# -- one mutant -------------------------------------------------------------------------------------------------------


def _judge(kernel: _Kernel, number: int, source: Source, edit: Edit) -> Mutant:
    """Check one mutant, in stages, up to the first failure."""
    started = time.monotonic()
    made = _mutant(source, edit)
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


def _mutant(source: Source, edit: Edit) -> Mutant:
    return Mutant(_shown(source), edit.line(source.text), edit.operator, edit.diff(source.text), Fate.SURVIVED)


def _fate(wrong: Finding) -> Fate:
    if wrong.check in ("build", "load") or _DOES_NOT_COMPILE.search(wrong.message):
        return Fate.INVALID
    return Fate.TIMEOUT if wrong.status is Status.INCONCLUSIVE else Fate.KILLED


def _shown(source: Source) -> str:
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


def _patch(kernel: _Kernel, name: str, source: Source, edit: Edit) -> Patch:
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


# -- what kills survivors ---------------------------------------------------------------------------------------------


def _searches(kernel: _Kernel) -> list[Further]:
    task = kernel.task
    return searches(task.op.contract, task.kernel, slow=task.interpret or task.simulate)


def _usable_searches(kernel: _Kernel) -> list[int]:
    """The further inputs on which the kernel itself passes: elsewhere, a mutant's failure says nothing."""
    name = kernel.task.kernel
    return [
        number
        for number, further in enumerate(_searches(kernel))
        if _failure(kernel.check(Patch(name, further=further), further.level, _SEARCHED)) is None
    ]


def _search(kernel: _Kernel, source: Source, edit: Edit, usable: Sequence[int]) -> Killer | None:
    patch = _patch(kernel, "again", source, edit)
    all_searches = _searches(kernel)
    for further in (all_searches[number] for number in usable):
        patch = dataclasses.replace(patch, further=further)
        wrong = _failure(kernel.check(patch, further.level, _SEARCHED))
        if wrong is not None:
            return _killer(kernel, further, wrong)
    return None


def _killer(kernel: _Kernel, further: Further, wrong: Finding) -> Killer:
    sample, spec = _SAMPLE.search(wrong.case), kernel.task.op.kernels[kernel.task.kernel].spec
    case = further.describe(kernel.task.op, int(sample[1])) if sample else wrong.case
    if further.widened:
        add = f"state more values of {further.widened!r} with ow.values(...)"
    elif sample:
        add = "yield such arguments from @op.samples"
    elif wrong.case in {str(c) for c in cases(kernel.task.op.contract, "full", spec.dtypes)}:
        add = "opwright check --level full"
    else:
        sizes = ", ".join(f"{n}=({s},)" for n, s in re.findall(r"(\w+)=(\d+)\b", wrong.case))
        add = f"op.sizes({sizes})"
    return Killer(wrong.check, case, wrong.message, add)
