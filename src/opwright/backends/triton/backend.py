"""Kernels in Triton: a Python launcher around ``@triton.jit`` functions, in place or in a file of its own.

On a GPU the launcher runs as it is, and torch.compile traces into it as it does into
``torch.library.triton_op``. On a CPU ``opwright check`` runs it in the simulator (``kernelsim``),
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
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from opwright import tree
from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.gpu.on_meta import run_on_meta
from opwright.backends.gpu.simulated_tensors import on_simulated
from opwright.backends.simulation import autotuners_measure, simulate_triton, with_left_out
from opwright.backends.triton.recording import recordable
from opwright.backends.triton.tracing import is_in_gluon, is_interpreted, kernels_reached, traceable_launcher
from opwright.contract.contract import Contract
from opwright.errors import KernelError
from opwright.import_file import import_file
from opwright.internals.triton import time_by_default
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused
from opwright.results.outcomes import RunOnMeta
from opwright.target import Engine, Target, engines_here

__all__ = ["TritonBackend"]

# The order of simulated programs, to which the sizes of a call are added.
_order: ContextVar[int] = ContextVar("order", default=0)
_IMPORTS_GLUON = re.compile(r"^\s*(from|import)\s+triton\.experimental(\.gluon\b|\s+import\s.*\bgluon\b)", re.MULTILINE)


class _TritonHooks(CheckHooks):
    computes_itself = True

    @staticmethod
    def under_check(order: int) -> contextlib.AbstractContextManager[None]:
        """Run simulated programs in an order that differs from call to call, if the number does; also those of kernels
        that no launcher launches, but a backward."""
        return _in_order(order)

    @staticmethod
    def in_backward(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        """Run the kernels that a backward launches as those of a launcher that gets its tensors."""
        return _simulating(tensors) if _simulates() else contextlib.nullcontext()

    @property
    def _is_simulated(self) -> bool:
        return self.target.engine is Engine.SIMULATOR

    def unchecked_dtypes(self, machine: Machine) -> dict[torch.dtype, str]:
        if self.target.engine is Engine.INTERPRETER:
            return {torch.bfloat16: "Triton's interpreter computes on NumPy arrays, which have no bfloat16"}
        return {}

    def makes_launcher(self) -> Callable[[], Callable[..., Any]]:
        def make() -> Callable[..., Any]:
            for tuner in _tuners(self.spec, self.contract):
                time_by_default(tuner, _run_once)
            return self.contract.signature.flat(_launcher(self.spec, self.contract))

        return make

    def configurations(self) -> Sequence[tuple[str, contextlib.AbstractContextManager[None]]]:
        tuners = _tuners(self.spec, self.contract)
        return [(f"{_kernel_name(tuner)}: {c}", _only(tuner, c)) for tuner in tuners for c in tuner.configs]

    def measuring(self) -> contextlib.AbstractContextManager[None] | None:
        return autotuners_measure() if self._is_simulated and _tuners(self.spec, self.contract) else None

    def on_meta(self) -> Callable[[Sequence[Any]], RunOnMeta] | Refused:
        launcher = _launcher(self.spec, self.contract)
        if any(map(is_interpreted, kernels_reached(launcher))):
            return Refused("Triton's interpreter runs the kernel, so no launch is recorded")
        return functools.partial(run_on_meta, launcher, self.contract)

    def unspecified(self, byte: int) -> contextlib.AbstractContextManager[None] | None:
        return with_left_out(byte) if self._is_simulated else None


class TritonBackend(Backend):
    """Launchers around Triton kernels."""

    name = "triton"
    mutates = True
    takes = frozenset({"callable", "file"})
    suffixes = (".py",)
    default_devices = ("cuda",)
    check_hooks = _TritonHooks

    def available(self, machine: Machine) -> Probe:
        if machine.triton is None:
            return Refused("Triton is not installed", "pip install triton")
        if Engine.INTERPRETER in engines_here():
            return Accepted(f"Triton {machine.triton}, in its interpreter (TRITON_INTERPRET is set)")
        if machine.has_gpu:
            return Accepted(f"Triton {machine.triton}")
        how = "in the interpreter" if machine.cxx is None else "compiled for the CPU"
        return Accepted(f"Triton {machine.triton}; no GPU, so only `opwright check` runs it, {how}")

    def probe(self, spec: KernelSpec, target: Target, machine: Machine) -> Probe:
        if machine.triton is None or target.device != "cpu" or "cuda" not in spec.devices:
            return super().probe(spec, target, machine)
        how = {Engine.INTERPRETER: "in Triton's interpreter"}
        if machine.cxx is not None:
            how[Engine.SIMULATOR] = "compiled for the CPU, every access checked"
        if target.engine not in how:
            return Refused(
                "Triton kernels run on a GPU; on a CPU only in the simulator, or in Triton's interpreter",
                "use `opwright check`, which does so in a worker, or set TRITON_INTERPRET=1 before Python starts",
            )
        if _has_gluon(spec.source):
            return Refused("Gluon kernels run on a GPU only, in no simulator or interpreter", "use a GPU")
        return Accepted(how[target.engine])

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        super().validate(spec, contract)
        if not isinstance(spec.source, Path):
            _refuse_wrong_decorator_order(spec.source, contract)

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        launcher = _launcher(spec, contract)
        if not isinstance(spec.source, Path):
            return Artifact(spec.entry, payload=launcher)
        _refuse_wrong_decorator_order(launcher, contract)
        return Artifact(spec.entry, file=spec.source, payload=launcher)

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        for kernel in kernels_reached(artifact.payload):
            if is_interpreted(kernel):
                # Triton's own timer needs a GPU driver. Instead each configuration runs once, and the first is chosen.
                time_by_default(kernel, _run_once)
        engine = next(iter(engines_here()), Engine.NATIVE)
        if engine is Engine.INTERPRETER:
            return contract.signature.flat(artifact.payload)
        if engine is Engine.SIMULATOR:
            return _simulated(contract.signature.flat(on_simulated(artifact.payload)))
        return contract.signature.flat(recordable(artifact.payload, writes=bool(contract.signature.mutated)))

    def traceable(self, spec: KernelSpec, contract: Contract, launch: Launch) -> Launch | None:
        if Engine.SIMULATOR in engines_here():
            return None  # what torch.compile makes of a Triton kernel needs a GPU
        launcher = spec.source if not isinstance(spec.source, Path) else inspect.unwrap(launch)
        traced = traceable_launcher(launcher)
        return contract.signature.flat(traced) if traced is not None else None


def _launcher(spec: KernelSpec, contract: Contract) -> Callable[..., Any]:
    if not isinstance(spec.source, Path):
        return spec.source
    launcher: Callable[..., Any] = getattr(_import_file(spec.source, contract), spec.entry)
    return launcher


def _tuners(spec: KernelSpec, contract: Contract) -> list[Any]:
    """The autotuned kernels that a launcher reaches and that have several configurations."""
    return [
        k for k in kernels_reached(_launcher(spec, contract)) if type(k).__name__ == "Autotuner" and len(k.configs) > 1
    ]


def _has_gluon(source: Any) -> bool:
    """Whether a launcher reaches a kernel in Gluon, or its file, which is not imported for that, names Gluon."""
    if isinstance(source, Path):
        return source.is_file() and _IMPORTS_GLUON.search(source.read_text(errors="replace")) is not None
    return any(map(is_in_gluon, kernels_reached(source)))


def _simulated(launch: Launch) -> Launch:
    """The launcher, with its kernels in the simulator if their tensors are on the CPU; programs in a permuted order."""

    @functools.wraps(launch)
    def launch_simulated(*arguments: Any) -> Any:
        with _simulating(tree.tensors(list(arguments))):
            return launch(*arguments)

    return launch_simulated


def _simulating(given: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
    """A block in which launches are simulated, with programs in one of several orders, but in one for calls that are
    alike."""
    return simulate_triton(zlib.crc32(repr((_order.get(), [tuple(t.shape) for t in given])).encode()), given)


def _simulates() -> bool:
    """Whether this process simulates Triton's kernels. It can have none if Triton was never imported."""
    return next(iter(engines_here()), None) is Engine.SIMULATOR and "triton" in sys.modules


@contextlib.contextmanager
def _in_order(order: int) -> Iterator[None]:
    before = _order.set(order)
    try:
        # Nothing is known of the tensors of a backward that torch calls, such as that of a compiled graph.
        with _simulating(()) if _simulates() else contextlib.nullcontext():
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
