"""Kernels in Triton: a Python launcher around ``@triton.jit`` functions, in place or in a file of its own.

On a GPU the launcher runs as it is, and torch.compile traces into it as it does into
``torch.library.triton_op``. On a CPU ``opwright check`` runs it in the simulator (``simulator/``),
or else in Triton's interpreter, which has to be chosen (``TRITON_INTERPRET=1``) before the kernels are decorated.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import types
import zlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from opwright import tree
from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.gpu.recording import recordable
from opwright.backends.triton.recording import launches_reach_the_recorder
from opwright.backends.triton.simulator.simulate import compiling_only, simulate, with_left_out
from opwright.backends.triton.tracing import is_in_gluon, is_interpreted, kernels_reached, traceable_launcher
from opwright.contract.contract import Contract
from opwright.errors import KernelError
from opwright.import_file import import_file
from opwright.internals.triton import autotuners_measure, time_by_default
from opwright.machine import Machine, this_machine
from opwright.results import Accepted, Probe, Refused

__all__ = ["TritonBackend"]

# The order of simulated programs, to which the sizes of a call are added.
_order: ContextVar[int] = ContextVar("order", default=0)
_IMPORTS_GLUON = re.compile(r"^\s*(from|import)\s+triton\.experimental(\.gluon\b|\s+import\s.*\bgluon\b)", re.MULTILINE)


class TritonBackend(Backend):
    """Launchers around Triton kernels."""

    name = "triton"
    mutates = True
    takes = frozenset({"callable", "file"})
    suffixes = (".py",)
    default_devices = ("cuda",)
    compiles_for_sizes = True

    def available(self, machine: Machine) -> Probe:
        if machine.triton is None:
            return Refused("Triton is not installed", "pip install triton")
        if machine.triton_interpret:
            return Accepted(f"Triton {machine.triton}, in its interpreter (TRITON_INTERPRET is set)")
        if machine.has_gpu:
            return Accepted(f"Triton {machine.triton}")
        how = "in the interpreter" if machine.cxx is None else "compiled for the CPU"
        return Accepted(f"Triton {machine.triton}; no GPU, so only `opwright check` runs it, {how}")

    def probe(self, spec: KernelSpec, device: str, machine: Machine) -> Probe:
        if machine.triton is not None and device == "cpu" and "cuda" in spec.devices:
            simulates = machine.cuda_simulator and machine.cxx is not None
            if (machine.triton_interpret or simulates) and _has_gluon(spec.source):
                return Refused("Gluon kernels run on a GPU only, in no simulator or interpreter", "use a GPU")
            if machine.triton_interpret:
                return Accepted("in Triton's interpreter")
            if simulates:
                return Accepted("compiled for the CPU, every access checked")
            return Refused(
                "Triton kernels run on a GPU; on a CPU only in the simulator, or in Triton's interpreter",
                "use `opwright check`, which does so in a worker, or set TRITON_INTERPRET=1 before Python starts",
            )
        return super().probe(spec, device, machine)

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        super().validate(spec, contract)
        if not isinstance(spec.source, Path):
            _refuse_wrong_decorator_order(spec.source, contract)

    def under_check(self, order: int) -> contextlib.AbstractContextManager[None]:
        """Run simulated programs in an order that differs from call to call, if the number does."""
        return _in_order(order)

    def unspecified(self, byte: int) -> contextlib.AbstractContextManager[None] | None:
        return with_left_out(byte) if _simulates() else None

    def compiling_only(self) -> contextlib.AbstractContextManager[None]:
        return compiling_only()

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        if not isinstance(spec.source, Path):
            return Artifact(spec.entry, payload=spec.source)
        launcher = getattr(_import_file(spec.source, contract), spec.entry)
        _refuse_wrong_decorator_order(launcher, contract)
        return Artifact(spec.entry, file=spec.source, payload=launcher)

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        for kernel in kernels_reached(artifact.payload):
            if is_interpreted(kernel):
                # Triton's own timer needs a GPU driver. Instead each configuration runs once, and the first is chosen.
                time_by_default(kernel, _run_once)
        machine = this_machine()
        if machine.triton_interpret:
            return contract.signature.flat(artifact.payload)
        if machine.cuda_simulator:
            return _simulated(contract.signature.flat(artifact.payload))
        return contract.signature.flat(recordable(artifact.payload, launches_reach_the_recorder))

    def unchecked_dtypes(self, spec: KernelSpec, device: str, machine: Machine) -> dict[torch.dtype, str]:
        if device == "cpu" and machine.triton_interpret:
            return {torch.bfloat16: "Triton's interpreter computes on NumPy arrays, which have no bfloat16"}
        return {}

    def configurations(
        self, spec: KernelSpec, contract: Contract
    ) -> Sequence[tuple[str, contextlib.AbstractContextManager[None]]]:
        return [(f"{_kernel_name(t)}: {c}", _only(t, c)) for t in _tuners(spec, contract) for c in t.configs]

    def measuring(self, spec: KernelSpec, contract: Contract) -> contextlib.AbstractContextManager[None] | None:
        return autotuners_measure() if _simulates() and _tuners(spec, contract) else None

    def traceable(self, spec: KernelSpec, contract: Contract, launch: Launch) -> Launch | None:
        if this_machine().cuda_simulator:
            return None  # what torch.compile makes of a Triton kernel needs a GPU
        launcher = spec.source if not isinstance(spec.source, Path) else inspect.unwrap(launch)
        traced = traceable_launcher(launcher)
        return contract.signature.flat(traced) if traced is not None else None


def _simulates() -> bool:
    return this_machine().cuda_simulator and not this_machine().triton_interpret


def _tuners(spec: KernelSpec, contract: Contract) -> list[Any]:
    """The autotuned kernels that a launcher reaches and that have several configurations."""
    launcher = spec.source
    if isinstance(spec.source, Path):
        launcher = getattr(_import_file(spec.source, contract), spec.entry)
    return [k for k in kernels_reached(launcher) if type(k).__name__ == "Autotuner" and len(k.configs) > 1]


def _has_gluon(source: Any) -> bool:
    """Whether a launcher reaches a kernel in Gluon, or its file, which is not imported for that, names Gluon."""
    if isinstance(source, Path):
        return source.is_file() and _IMPORTS_GLUON.search(source.read_text(errors="replace")) is not None
    return any(map(is_in_gluon, kernels_reached(source)))


def _simulated(launch: Launch) -> Launch:
    """The launcher, with its kernels in the simulator if their tensors are on the CPU; programs in a permuted order."""

    @functools.wraps(launch)
    def launch_simulated(*arguments: Any) -> Any:
        given = tree.tensors(list(arguments))
        # Several, but one for calls that are alike.
        order = zlib.crc32(repr((_order.get(), [tuple(t.shape) for t in given])).encode())
        with simulate(seed=order, given=given):
            return launch(*arguments)

    return launch_simulated


@contextlib.contextmanager
def _in_order(order: int) -> Iterator[None]:
    before = _order.set(order)
    try:
        yield
    finally:
        _order.reset(before)


@contextlib.contextmanager
def _only(tuner: Any, config: Any) -> Iterator[None]:
    """A block in which an autotuned kernel has one configuration, which it takes without measuring."""
    before, tuner.configs = tuner.configs, [config]
    try:
        yield
    finally:
        tuner.configs = before


def _kernel_name(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return getattr(kernel, "__name__", "the kernel")


def _run_once(kernel_call: Any, quantiles: Any = None) -> list[float]:
    kernel_call()
    return [0.0, 0.0, 0.0]


def _refuse_wrong_decorator_order(launcher: Any, contract: Contract) -> None:
    """``@triton.heuristics`` above ``@triton.autotune`` works in plain Triton, but torch.compile cannot
    trace it: it looks for the autotuner on top (torch/_higher_order_ops/triton_kernel_wrap.py)."""
    for kernel in kernels_reached(launcher):
        layer, above = kernel, []
        while layer is not None and hasattr(layer, "fn"):
            if type(layer).__name__ == "Autotuner" and "Heuristics" in above:
                name = getattr(getattr(layer.fn, "fn", layer.fn), "__name__", "the kernel")
                raise KernelError(
                    f"{contract.qualname}: {name} has @triton.heuristics above @triton.autotune. "
                    "torch.compile applies heuristics to each autotune configuration, so it needs them below",
                    fix="put @triton.autotune first, then @triton.heuristics, then @triton.jit",
                )
            above.append(type(layer).__name__)
            layer = layer.fn


def _import_file(path: Path, contract: Contract) -> types.ModuleType:
    """Import a kernel file under a name below its operator's module, once for each version of the file."""
    name = f"{contract.module}.{path.stem}"
    loaded = sys.modules.get(name)
    stamp = path.stat().st_mtime_ns
    same_file = loaded is not None and getattr(loaded, "__file__", None) == str(path)
    if loaded is not None and same_file and getattr(loaded, "__opwright_stamp__", stamp) == stamp:
        return loaded
    module = import_file(path, name)
    vars(module)["__opwright_stamp__"] = stamp
    return module
