"""The plan of a check: which kernels are checked on which devices, and which cannot run here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opwright.errors import CheckError
from opwright.machine import Machine
from opwright.results import Accepted, Refused
from opwright.runtime.languages import REFERENCE
from opwright.runtime.op import Op

__all__ = ["Task", "plan"]

# The name of the simulators of GPU kernels on a CPU as a device.
SIMULATOR = "cpu-sim"


@dataclass(frozen=True, eq=False)
class Task:
    """One kernel on one device, to be checked in one worker; or refused, with the reason.

    Attributes:
        simulate, interpret: a kernel for GPUs on a CPU: in the simulator of its language, or in Triton's interpreter.
        else_interpret: in the interpreter, should the simulator not have what the kernel needs.
        why: why it is not simulated.
    """

    op: Op
    kernel: str
    device: str
    interpret: bool = False
    simulate: bool = False
    else_interpret: bool = False
    why: str = ""
    refused: Refused | None = None

    def interpreted(self, why: str) -> Task:
        """The same kernel in Triton's interpreter."""
        return dataclasses.replace(self, simulate=False, interpret=True, else_interpret=False, why=why)

    @property
    def where(self) -> str:
        """The device as reports name it: a kernel in a simulator has CPU tensors, and is on ``cpu-sim``."""
        return SIMULATOR if self.simulate else self.device

    @property
    def backend(self) -> str:
        return self.op.contract.signature.language if self.kernel == REFERENCE else self.op.kernels[self.kernel].backend

    def __str__(self) -> str:
        return f"{self.op.contract.qualname} {self.kernel} on {self.where}"


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
    devices = [device] if device else ["cuda", "cpu"] if machine.has_gpu else ["cpu"]
    return [
        task
        for name in names
        for task in _plan_kernel(operator, name, machine, devices, device is not None, interpreter)
    ]


def refuse_unknown_kernels(operators: Sequence[Op], chosen: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raise CheckError for the first name that no operator has a kernel of.

    Args:
        others: names that mean something else than a kernel.
    """
    names = {*others, *(name for o in operators for name in o.kernels)}
    full_names = {f"{o.contract.qualname}:{name}" for o in operators for name in (*o.kernels, *others)}
    for name in chosen:
        if name not in names | full_names:
            there_are = ", ".join(sorted(names)) or "none"
            raise CheckError(f"no operator has a kernel {name!r}", fix=f"there are {there_are}")


def _plan_kernel(
    operator: Op, name: str, machine: Machine, devices: Iterable[str], device_was_chosen: bool, interpreter: bool
) -> list[Task]:
    if name == REFERENCE:
        first = next(iter(devices))
        return [Task(operator, name, "cpu" if first == SIMULATOR else first)]
    kernel = operator.kernels[name]
    natively = [d for d in devices if d != SIMULATOR and isinstance(kernel.probe(d, machine), Accepted)]
    if natively:
        return [Task(operator, name, d) for d in natively]
    interpreted = dataclasses.replace(machine, triton_interpret=True)
    can_interpret = "cpu" in devices and isinstance(kernel.probe("cpu", interpreted), Accepted)
    simulated = dataclasses.replace(machine, cuda_simulator=True)
    only_simulated = isinstance(kernel.probe("cpu", machine), Refused) and "cuda" in kernel.spec.devices
    in_simulator = kernel.probe("cpu", simulated)
    can_simulate = only_simulated and isinstance(in_simulator, Accepted)
    if can_simulate and {"cpu", SIMULATOR} & set(devices) and not (interpreter and can_interpret):
        return [Task(operator, name, "cpu", simulate=True, else_interpret=can_interpret)]
    if can_interpret:
        return [Task(operator, name, "cpu", interpret=True)]
    where = next(iter(devices)) if device_was_chosen else kernel.spec.devices[0]
    asks_simulator = where == SIMULATOR and isinstance(in_simulator, Refused)
    outcome = in_simulator if asks_simulator else kernel.probe(where, machine)
    refused = outcome if isinstance(outcome, Refused) else Refused(f"cannot run on {', '.join(devices)}")
    return [Task(operator, name, where, refused=refused)]
