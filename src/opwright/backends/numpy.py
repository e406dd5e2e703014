"""Kernels written in NumPy, compiled by torch.compile to C++ on a CPU and to Triton on a GPU."""

from __future__ import annotations

import types
from typing import Any

import torch

from opwright.backends.base import Artifact, Backend, BuildTools, KernelSpec, Launch
from opwright.contract.contract import Contract
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused

__all__ = ["NumpyBackend"]


class NumpyBackend(Backend):
    """``torch.compile`` of the function between ``Tensor.numpy`` and ``torch.as_tensor``."""

    name = "numpy"
    takes = frozenset({"callable"})
    default_devices = ("cpu", "cuda")

    def available(self, machine: Machine) -> Probe:
        if machine.cxx is None:
            return Refused(
                "torch.compile turns NumPy into C++, and there is no C++ compiler",
                "install g++ (apt install g++), or set CXX",
            )
        return Accepted(f"compiled by torch.compile with {machine.cxx.version}")

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        def notify(what: str) -> None:
            tools.notify(f"compiling NumPy kernel {contract.qualname}:{spec.name} for {what} (torch.compile)")

        assert not isinstance(spec.source, str)  # ``takes`` admits callables only
        return Artifact(spec.entry, payload=_CompiledPerPattern(spec.source, contract, notify))

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        launch: Launch = artifact.payload
        return launch


class _CompiledPerPattern:
    """One torch.compile'd function for each pattern of dtypes, ranks and sizes 0 and 1.

    Within a pattern shapes are symbolic. torch.compile specialises on the rest anyway; with a function
    (and a code object) of its own, no pattern counts against another's limit of recompilations.
    """

    def __init__(self, function: Any, contract: Contract, notify: Any) -> None:
        self._function = function
        self._contract = contract
        self._notify = notify
        self._compiled: dict[tuple[object, ...], Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        # Strides, gradients and grad mode would each be one more reason to compile again.
        plain = [a.detach().contiguous() if isinstance(a, torch.Tensor) else a for a in arguments]
        key = tuple(
            (a.dtype, a.device.type, tuple(min(s, 2) for s in a.shape)) if isinstance(a, torch.Tensor) else type(a)
            for a in plain
        )
        if key not in self._compiled:
            tensors = [a for a in plain if isinstance(a, torch.Tensor)]
            self._notify(", ".join(f"{t.dtype}[{t.dim()}-d]".removeprefix("torch.") for t in tensors))
            self._compiled[key] = torch.compile(
                _fresh_wrapper(self._function, self._contract), dynamic=True, fullgraph=True
            )
        with torch.no_grad():
            result = self._compiled[key](*plain)
        return tuple(r.contiguous() for r in result) if isinstance(result, tuple) else result.contiguous()


def _fresh_wrapper(function: Any, contract: Contract) -> Any:
    split = len(contract.signature.positional)
    names = [a.name for a in contract.signature.keyword_only]

    def on_tensors(*tensors: Any) -> Any:
        arrays = [t.numpy() if isinstance(t, torch.Tensor) else t for t in tensors]
        keywords = dict(zip(names, arrays[split:], strict=True))
        out = function(*arrays[:split], **keywords)
        return tuple(torch.as_tensor(o) for o in out) if isinstance(out, tuple) else torch.as_tensor(out)

    # torch.compile keeps its results by code object, and all closures of a def share one.
    code = on_tensors.__code__.replace(co_name=f"on_tensors_{contract.name}")
    return types.FunctionType(code, on_tensors.__globals__, code.co_name, None, on_tensors.__closure__)
