"""The plan of a check: which kernels are checked on which devices, and which cannot run here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from opwright.errors import CheckError
from opwright.machine import Machine
from opwright.results import Accepted, Refused
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op
from opwright.target import Engine, Target

__all__ = ["Task", "plan"]


@dataclass(frozen=True, eq=False)
class Task:
    """One kernel on one target, to be checked in one worker; or refused, with the reason.

    Attributes:
        fallback: the target if the engine of this one does not have what the kernel needs.
        why: why the kernel is on its fallback.
    """

    op: Op
    kernel: str
    target: Target
    fallback: Target | None = None
    why: str = ""
    refused: Refused | None = None

    def on_fallback(self, why: str) -> Task:
        """The same kernel on its fallback."""
        assert self.fallback is not None  # the caller asks only for such tasks
        return dataclasses.replace(self, target=self.fallback, fallback=None, why=why)

    @property
    def interpret(self) -> bool:
        """Whether Triton's interpreter runs it, which a process has from its start or never."""
        return self.target.engine is Engine.INTERPRETER

    @property
    def backend(self) -> str:
        return self.op.contract.signature.language if self.kernel == REFERENCE else self.op.kernels[self.kernel].backend

    def __str__(self) -> str:
        return f"{self.op.contract.qualname} {self.kernel} on {self.target}"


def plan(
    operator: Op,
    machine: Machine,
    kernels: Sequence[str] | None,
    device: str | None,
    *,
    reference: bool = False,
    interpreter: bool = False,
) -> list[Task]:
    """The tasks of one operator on a machine. A kernel that cannot run on it becomes one refused task.

    Args:
        interpreter: whether Triton kernels that cannot run on a GPU are interpreted rather than simulated.
    """
    names = [*operator.kernels, *([REFERENCE] if reference or not operator.kernels else [])]
    if kernels is not None:
        qualname = operator.contract.qualname
        names = [n for n in (*operator.kernels, REFERENCE) if n in kernels or f"{qualname}:{n}" in kernels]
    engines = [Engine.SIMULATOR, Engine.INTERPRETER]
    if interpreter:
        engines.reverse()
    return [task for name in names for task in _plan_kernel(operator, name, machine, device, engines)]


def refuse_unknown_kernels(operators: Sequence[Op], chosen: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raise CheckError for the first name that no operator has a kernel of.

    Args:
        others: names that mean something else than a kernel.
    """
    names = {*others, *(name for o in operators for name in o.kernels)}
    full_names = {f"{o.contract.qualname}:{name}" for o in operators for name in (*o.kernels, *others)}
    for name in chosen:
        if name not in names | full_names:
            raise CheckError(
                f"the kernel must be one of {', '.join(sorted(names)) or 'none'}, got {name!r}",
                fix="name one of them, or attach it",
            )


def _plan_kernel(
    operator: Op, name: str, machine: Machine, device: str | None, engines: Sequence[Engine]
) -> list[Task]:
    devices = [device] if device else ["cuda", "cpu"] if machine.has_gpu else ["cpu"]
    asked = [Target.named(d) for d in devices]
    if name == REFERENCE:
        return [Task(operator, name, Target(asked[0].device))]
    kernel = operator.kernels[name]
    probes = {target: kernel.probe(target, machine) for target in asked}
    natively = [t for t, probe in probes.items() if t.engine is Engine.NATIVE and isinstance(probe, Accepted)]
    if natively:
        return [Task(operator, name, target) for target in natively]
    # On a CPU, any engine may run a kernel that it does not run natively, unless one was asked for.
    emulated = [Target("cpu", engine) for engine in engines]
    possible = [t for t in emulated if {t, Target("cpu")} & set(asked)]
    accepted = [t for t in possible if isinstance(kernel.probe(t, machine), Accepted)]
    if accepted:
        first, *others = accepted
        # The simulator alone may refuse a kernel while it runs.
        fallback = others[0] if others and first.engine is Engine.SIMULATOR else None
        return [Task(operator, name, first, fallback)]
    target = asked[0] if device else Target(kernel.spec.devices[0])
    outcome = probes.get(target) or kernel.probe(target, machine)
    refused = outcome if isinstance(outcome, Refused) else Refused(f"cannot run on {', '.join(map(str, asked))}")
    return [Task(operator, name, target, refused=refused)]
