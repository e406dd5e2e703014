"""The verdict of a kernel, from all that its checks have found on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opwright.checks.calls import determinism
from opwright.checks.memory import large_offsets, peak_memory
from opwright.checks.outputs import properties
from opwright.checks.ranks import dtensor, gradients_of_ranks, ranks
from opwright.checks.sanitizer import sanitizer
from opwright.checks.scheduling.coverage import too_little
from opwright.checks.scheduling.plan import Task
from opwright.checks.table import CHECKS
from opwright.contract.inputs.arguments import always_its_default
from opwright.results import Finding, NotChecked, Origin, Status, Verdict, worst
from opwright.runtime.op import Op
from opwright.target import Engine

__all__ = ["AT_END", "BY_MACHINE", "LOST", "Outcome", "Settings", "lost", "verdict_of"]

# The name of the finding about a kernel that no machine could finish to check.
LOST = "machines"
# Where the processes of a kernel ended that did so in a wrong way after their last check.
AT_END = "end"
# Custom parts that no check compares with the reference.
_CHECKED_BY_NONE = frozenset({"autocast", "bytes"})
# Checks that a machine may lack memory, tools, a system or GPUs for, which is no fault of the kernel.
BY_MACHINE = frozenset({
    large_offsets.NAME, peak_memory.NAME, sanitizer.NAME, ranks.NAME, gradients_of_ranks.NAME, dtensor.NAME,
})  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How kernels are checked: the options of ``ow.check``."""

    level: str = "quick"
    case: str = ""
    checks: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    timeout: float = 60.0
    fail_fast: bool = False
    # How many processes check an operator that communicates; 0 for the usual number.
    ranks: int = 0
    # Whether the processes of kernels are confined.
    sandbox: bool = False
    # The bytes that they may have; 0 for no limit. A verdict does not depend on it, so no key of ``--resume`` has it.
    memory: int = field(default=0, repr=False)
    # A file of recorded calls, if these are the only cases.
    inputs: str = ""


@dataclass(frozen=True)
class Outcome:
    """What checks of a kernel have found: all of them, or those of a partial item.

    Attributes:
        refused: why the kernel cannot run here; then nothing was found.
        ended_at: the check or step at which its processes ended in a wrong way, or at the first failure if that was
            asked for; empty if they did not.
        is_incomplete: whether some checks have not run for that.
        lost: why no machine could finish some of the checks, those that are ``left``.
        step_seconds: of each step, as in ``Verdict``.
    """

    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    refused: str = ""
    ended_at: str = ""
    is_incomplete: bool = False
    lost: str = ""
    remedy: str = ""
    left: tuple[str, ...] = ()
    seconds: float = 0.0
    step_seconds: dict[str, float] = field(default_factory=dict)


def verdict_of(task: Task, settings: Settings, outcome: Outcome) -> Verdict:
    """The verdict, if ``outcome`` is of all checks."""
    if outcome.refused:
        return _refusal(task, outcome.refused, settings)
    if outcome.lost and not outcome.findings:
        return lost(task, outcome.lost, outcome.remedy)
    not_checked = (*outcome.not_checked, *_unchecked(task.op, outcome, settings))
    findings = (*outcome.findings, *([_lost(outcome.lost, outcome.remedy)] if outcome.lost else []))
    if not settings.case:  # a single one was asked for
        findings = (*findings, *too_little(task.op, findings, not_checked))
    return Verdict(
        op=task.op.contract.qualname,
        kernel=task.kernel,
        backend=task.backend,
        device=str(task.target),
        status=_status(settings, findings),
        reason=_reason(task, findings, not_checked, outcome.lost),
        parts=_origins(task.op),
        findings=findings,
        not_checked=not_checked,
        seconds=outcome.seconds,
        step_seconds=outcome.step_seconds,
    )


def lost(task: Task, why: str, remedy: str) -> Verdict:
    """The verdict of a kernel that no machine could finish to check."""
    return Verdict(
        op=task.op.contract.qualname,
        kernel=task.kernel,
        backend=task.backend,
        device=str(task.target),
        status=Status.INCONCLUSIVE,
        reason=why,
        parts=_origins(task.op),
        findings=(_lost(why, remedy),),
    )


def _lost(why: str, remedy: str) -> Finding:
    return Finding(LOST, Status.INCONCLUSIVE, message=why, remedy=remedy)


def _origins(operator: Op) -> dict[str, str]:
    return {name: part.origin.value for name, part in operator.parts.items()}


def _status(settings: Settings, findings: Sequence[Finding]) -> Status:
    if findings:
        return worst(f.status for f in findings)
    return Status.REFUSED if settings.checks and BY_MACHINE.issuperset(settings.checks) else Status.FAIL


def _reason(task: Task, findings: Sequence[Finding], not_checked: Sequence[NotChecked], lost: str) -> str:
    if failed := [f.check for f in findings if f.status is Status.FAIL]:
        return f"failed: {', '.join(dict.fromkeys(failed))}"
    if lost:
        return lost
    if not findings:
        why = [f"{n.check}: {n.reason}" for n in not_checked if n.why != "not selected"]
        return f"nothing could be checked{': ' * bool(why)}{'; '.join(dict.fromkeys(why))}"
    if task.target.engine is Engine.SIMULATOR:
        return "in the Triton simulator" if task.backend == "triton" else "in the CUDA simulator"
    if not task.interpret:
        return ""
    return f"in Triton's interpreter: {task.why.splitlines()[0]}" if task.why else "in Triton's interpreter"


def _refusal(task: Task, reason: str, settings: Settings) -> Verdict:
    required = task.backend in settings.require
    return Verdict(
        op=task.op.contract.qualname,
        kernel=task.kernel,
        backend=task.backend,
        device=str(task.target),
        status=Status.FAIL if required else Status.REFUSED,
        reason=f"required, but {reason}" if required else reason,
        parts=_origins(task.op),
        findings=(Finding("required", Status.FAIL, message=f"required, but {reason}"),) if required else (),
        not_checked=tuple(NotChecked(name, "the kernel was refused") for name in CHECKS),
    )


def _unchecked(operator: Op, outcome: Outcome, settings: Settings) -> list[NotChecked]:
    """Every check without a result, with the reason, and everything that no check covers.

    A check that ended without a result has nothing to check, such as a rule that is not custom.
    """
    reported = {f.check for f in outcome.findings} | {n.check for n in outcome.not_checked}
    last = outcome.findings[-1].check if outcome.findings else "the start"
    found = []
    for name in CHECKS:
        selected = not settings.checks or name in settings.checks
        if name in outcome.left and _concerns(operator, name):
            found.append(NotChecked(name, "no machine could finish it"))
        elif name not in reported and (outcome.is_incomplete or not selected) and _concerns(operator, name):
            found.append(NotChecked(name, f"the worker ended at {last!r}" if selected else "not selected"))
    custom = {p.name for p in operator.parts.values() if p.origin is Origin.CUSTOM}
    for name in sorted(_CHECKED_BY_NONE & custom):
        found.append(NotChecked(name, "custom, and no check compares it with the reference yet"))
    arguments = [a for a in operator.contract.signature.arguments if a.name != operator.contract.random]
    for argument in filter(always_its_default, arguments):
        tried = f"only its default {argument.default!r}" if argument.has_default else "only None"
        why = f"{tried} was tried: add other values with Annotated[..., ow.values(...)]"
        found.append(NotChecked(f"argument {argument.name!r}", why))
    return found


def _concerns(operator: Op, check: str) -> bool:
    """Whether an operator has what a check is about."""
    if check == dtensor.NAME:  # only if ranks were asked for, and then it reports
        return False
    if check in (ranks.NAME, gradients_of_ranks.NAME):
        return bool(operator.contract.signature.groups)
    if check == determinism.NAME:
        return operator.contract.deterministic
    if check == properties.NAME:
        return bool(operator.properties)
    parts = {"vmap": "vmap", "sharding": "sharding", "flops": "flops", "second derivatives": "autograd"}
    part = parts.get(check)
    return part is None or operator.parts[part].origin is Origin.CUSTOM
