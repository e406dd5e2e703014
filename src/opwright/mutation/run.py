"""Runs mutation testing: a sample of a kernel's mutants, each checked like a kernel, and a search for what kills the
survivors."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import random
import re
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opwright.checks.plan import Task, plan
from opwright.checks.process.isolation import end_workers
from opwright.checks.run import check
from opwright.contract.inputs.cases import cases
from opwright.errors import CheckError
from opwright.machine import this_machine
from opwright.mutation.edits import Edit
from opwright.mutation.further import Further, searches
from opwright.mutation.patch import Patch, mutant_of
from opwright.mutation.sources import FILE, Source, sources_of
from opwright.results import Fate, Finding, KernelMutation, Killer, Mutant, MutationReport, Status, Verdict
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.runtime.targets import load_target

__all__ = ["MUTANTS", "mutate"]

# How many mutants of a kernel are run by default: about a minute's worth.
MUTANTS = 20
# The checks of mutants, the quickest first. What is left out is about the operator's rules, not about a kernel's code.
_SMOKE = ("memory", "values")
_OUTPUTS = ("memory", "values", "special values", "properties", "metadata", "inputs unchanged", "global state")
_OTHERS = ("repeated calls", "surroundings", "configurations", "gradients", "own backward", "reads")
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
    on_plan: Callable[[int], None] | None = None,
    on_mutant: Callable[[str], None] | None = None,
) -> MutationReport:
    """Put small faults into kernels, and find which of them the operators' contracts let live.

    Each mutant is a kernel with one change, and is checked like one, in a process of its own; no file is changed. A
    survivor passes every check. For each one, further sizes, draws and values are searched for inputs on which the
    kernel passes and the survivor fails.

    Args:
        targets, kernels, device, jobs: as for ``ow.check``.
        mutants: at most so many of each kernel, drawn at random.
        seed: of this draw.
        timeout: seconds that one step of a mutant may take at most; less, if the kernel itself is quick.
        on_plan: called once, with the number of kernels.
        on_mutant: called with a line about each mutant.

    Raises:
        TargetError, CheckError: a target or kernel does not exist; a number is out of range; C++ is to be mutated
            without tree-sitter.
    """
    _refuse_numbers(mutants, timeout, jobs)
    operators = [o for t in targets for o in ([t] if isinstance(t, Op) else load_target(t))]
    machine = this_machine()
    tasks = [t for o in operators for t in plan(o, machine, kernels, device) if t.kernel != REFERENCE]
    if kernels and not tasks:
        known = sorted({k for o in operators for k in o.kernels})
        raise CheckError(f"no operator has a kernel {kernels[0]!r}", fix=f"there are {', '.join(known) or 'none'}")
    if on_plan is not None:
        on_plan(len(tasks))
    settings = _Settings(
        mutants, seed, timeout, jobs or max(1, min(4, machine.cores)), on_mutant or (lambda line: None)
    )
    done: list[KernelMutation] = []
    partial = ""
    try:
        for task in tasks:
            done.append(_mutate_kernel(task, settings))
    except KeyboardInterrupt:
        partial = f"interrupted: {len(done)} of {len(tasks)} kernels were mutated"
    return MutationReport(machine.to_json(), tuple(done), seed, partial=partial)


def _refuse_numbers(mutants: int, timeout: float, jobs: int | None) -> None:
    for name, value in (("mutants", mutants), ("timeout", timeout), ("jobs", 1 if jobs is None else jobs)):
        if not (value > 0 and math.isfinite(value)):
            raise CheckError(f"{name}={value} is out of range", fix="use a positive number")


@dataclass(frozen=True)
class _Settings:
    mutants: int
    seed: int
    timeout: float
    jobs: int
    on_mutant: Callable[[str], None]


@dataclass
class _Kernel:
    """One kernel whose mutants are run.

    Attributes:
        searches: further inputs on which the kernel itself passes.
    """

    task: Task
    timeout: float
    folder: Path
    searches: list[Further] = field(default_factory=list)

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


def _mutate_kernel(task: Task, settings: _Settings) -> KernelMutation:
    started = time.monotonic()
    operator, name = task.op, task.kernel
    made = KernelMutation(operator.contract.qualname, name, task.backend, task.where)
    if task.refused is not None:
        return dataclasses.replace(made, refused=str(task.refused))
    sources, left = sources_of(operator, name)
    candidates = [(source, edit) for source in sources for edit in source.edits]
    made = dataclasses.replace(made, possible=len(candidates), not_mutated=tuple(dict.fromkeys(left)))
    if not candidates:
        return dataclasses.replace(made, refused="there is nothing to mutate in it")
    with tempfile.TemporaryDirectory(prefix="opwright-mutants-") as folder:
        kernel = _Kernel(task, settings.timeout, Path(folder))
        if wrong := _why_unsuitable(kernel):
            return dataclasses.replace(made, refused=wrong)
        kernel.timeout = min(settings.timeout, max(_LEAST_TIMEOUT, 3 * (time.monotonic() - started)))
        chosen = random.Random(settings.seed).sample(candidates, min(settings.mutants, len(candidates)))
        found = _run_all(kernel, chosen, settings)
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


def _run_all(kernel: _Kernel, chosen: Sequence[tuple[Source, Edit]], settings: _Settings) -> list[Mutant]:
    found = []
    with concurrent.futures.ThreadPoolExecutor(settings.jobs) as pool:
        try:
            running = [pool.submit(_judge, kernel, i, *one) for i, one in enumerate(chosen)]
            for number, done in enumerate(concurrent.futures.as_completed(running), 1):
                mutant = done.result()
                found.append(mutant)
                settings.on_mutant(f"{kernel.task}: mutant {number} of {len(chosen)} {mutant.fate}")
            survivors = [(i, f.result()) for i, f in enumerate(running) if f.result().fate is Fate.SURVIVED]
            if survivors:
                settings.on_mutant(f"{kernel.task}: searching for inputs that kill {len(survivors)} survivors")
                kernel.searches = _usable_searches(kernel)
            kills = {m: pool.submit(_search, kernel, i, chosen[i]) for i, m in survivors}
            return [dataclasses.replace(m, killer=kills[m].result()) if m in kills else m for m in found]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_workers()  # else the pool would wait for them, also for a hang
            raise


# -- one mutant -------------------------------------------------------------------------------------------------------


def _judge(kernel: _Kernel, number: int, source: Source, edit: Edit) -> Mutant:
    """Check one mutant, in stages, up to the first failure."""
    started = time.monotonic()
    made = Mutant(_shown(source), edit.line(source.text), edit.operator, edit.diff(source.text), Fate.SURVIVED)
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


def _usable_searches(kernel: _Kernel) -> list[Further]:
    """The further inputs on which the kernel itself passes: elsewhere, a mutant's failure says nothing."""
    task = kernel.task
    found = searches(task.op.contract, task.kernel, slow=task.interpret or task.simulate)
    return [f for f in found if _failure(kernel.check(Patch(task.kernel, further=f), f.level, _SEARCHED)) is None]


def _search(kernel: _Kernel, number: int, chosen: tuple[Source, Edit]) -> Killer | None:
    source, edit = chosen
    patch = _patch(kernel, f"{number}-again", source, edit)
    for further in kernel.searches:
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
