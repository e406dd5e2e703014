"""Kernels written in NumPy, compiled by torch.compile to C++ on a CPU and to Triton on a GPU."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.utils import _pytree

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
    """One torch.compile'd function for each pattern of dtypes, ranks, sizes 0 and 1 and fixed values.

    Within a pattern a size becomes symbolic when it changes. torch.compile specialises on the rest anyway; with
    a function (and a code object) of its own, no pattern counts against another's limit of recompilations. What else
    it may specialise on (equal sizes, some numbers) it decides itself: at its limit we start with a new function.
    """

    def __init__(self, function: Any, contract: Contract, notify: Any) -> None:
        self._function = function
        self._contract = contract
        self._notify = notify
        self._compiled: dict[tuple[object, ...], Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        # Strides, gradients and grad mode would each be one more reason to compile again.
        plain = [_plain(a) for a in arguments]
        key = tuple(_pattern(a) for a in plain)
        if key not in self._compiled:
            tensors = [a for a in _pytree.tree_leaves(plain) if isinstance(a, torch.Tensor)]
            self._notify(", ".join(f"{t.dtype}[{t.dim()}-d]".removeprefix("torch.") for t in tensors))
            self._compiled[key] = self._compile()
        with torch.no_grad():
            try:
                result = self._compiled[key](*plain)
            except torch._dynamo.exc.FailOnRecompileLimitHit:
                self._compiled[key] = self._compile()
                result = self._compiled[key](*plain)
        return tuple(r.contiguous() for r in result) if isinstance(result, tuple) else result.contiguous()

    def _compile(self) -> Any:
        # Not dynamic=True: a dim that never changes (the d of n × d points) stays a constant, for much faster loops.
        return torch.compile(_fresh_wrapper(self._function, self._contract), fullgraph=True)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.detach().contiguous() if isinstance(value, torch.Tensor) else value


def _pattern(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device.type, tuple(min(s, 2) for s in value.shape)
    if isinstance(value, list):
        return tuple(_pattern(v) for v in value)
    return type(value) if type(value) in (int, float) else value


def _as_array(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_array(v) for v in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _fresh_wrapper(function: Any, contract: Contract) -> Any:
    split = len(contract.signature.positional)
    names = [a.name for a in contract.signature.keyword_only]

    def on_tensors(*tensors: Any) -> Any:
        arrays = [_as_array(t) for t in tensors]
        keywords = dict(zip(names, arrays[split:], strict=True))
        out = function(*arrays[:split], **keywords)
        return tuple(torch.as_tensor(o) for o in out) if isinstance(out, tuple) else torch.as_tensor(out)

    # torch.compile keeps its results by code object, and all closures of a def share one.
    code = on_tensors.__code__.replace(co_name=f"on_tensors_{contract.name}")
    return types.FunctionType(code, on_tensors.__globals__, code.co_name, None, on_tensors.__closure__)
