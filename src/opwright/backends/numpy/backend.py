"""Kernels written in NumPy, compiled by torch.compile to C++ on a CPU and to Triton on a GPU."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from opwright import tree
from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.numpy import tracing
from opwright.backends.numpy.placement import arrays_made_on
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short, zeros_in
from opwright.contract.numpy.rules import check_default_float_dtype
from opwright.internals.compiler import can_compile_graphs, is_recompile_limit
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused

__all__ = ["NumpyBackend"]


class _NumpyHooks(CheckHooks):
    is_compiled_function = True


class NumpyBackend(Backend):
    """``torch.compile`` of the function between ``Tensor.numpy`` and ``torch.as_tensor``.

    ``default_float_dtype="float32"`` makes temporaries float32 where NumPy would choose float64 by itself.
    """

    name = "numpy"
    takes = frozenset({"callable"})
    default_devices = ("cpu", "cuda")
    not_packaged = "opwright compiles NumPy when it runs", "write it in C++ or Triton as well"
    check_hooks = _NumpyHooks

    def available(self, machine: Machine) -> Probe:
        if machine.cxx is None:
            return Refused(
                "torch.compile turns NumPy into C++, and there is no C++ compiler",
                "install g++ (apt install g++), or set CXX",
            )
        if not can_compile_graphs():
            return Refused(f"torch {machine.torch} does not compile NumPy code", "use a torch between 2.11 and 2.15")
        return Accepted(f"compiled by torch.compile with {machine.cxx.version}")

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        super().validate(spec, contract)
        where = f"{contract.qualname}: the numpy kernel {spec.name!r}"
        check_default_float_dtype(spec.options.get("default_float_dtype", "float64"), where)
        assert callable(spec.source)  # ``takes`` has callables only
        tracing.refuse_lacking(spec.source, where)

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        return Artifact(spec.entry, payload=_CompiledPerPattern(spec, contract, tools.notify))

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        launch: Launch = artifact.payload
        return launch


class _CompiledPerPattern:
    """One function compiled by torch.compile for each pattern of dtypes, ranks, sizes 0 and 1 and fixed values.

    Within a pattern a size becomes symbolic when it changes. torch.compile specialises on the rest anyway; each pattern
    has a function (and a code object) of its own, so that none counts against another's limit of recompilations.
    torch.compile may also specialise on equal sizes or some numbers; at its limit, a new function is compiled.
    """

    def __init__(self, spec: KernelSpec, contract: Contract, notify: Callable[[str], None]) -> None:
        self._spec = spec
        self._contract = contract
        self._notify = notify
        self._compiled: dict[tuple[object, ...], Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        # Different strides, gradients or grad mode would each cause another compilation.
        plain = [_plain(a) for a in arguments]
        key = tuple(_pattern(a) for a in plain)
        compiled = self._compiled.get(key)
        default = self._spec.options.get("default_float_dtype", "float64")
        with torch.no_grad(), arrays_made_on(tree.tensors(plain)[0].device, default):
            if compiled is None:
                result = self._first_call(key, plain)
            else:
                try:
                    result = compiled(*plain)
                except Exception as error:
                    if not is_recompile_limit(error):
                        raise
                    result = self._compile_anew(key)(*plain)
        return tuple(r.contiguous() for r in result) if isinstance(result, tuple) else result.contiguous()

    def _first_call(self, key: tuple[object, ...], plain: list[Any]) -> Any:
        tensors = tree.tensors(plain)
        who = f"NumPy kernel {self._contract.qualname}:{self._spec.name}"
        what = ", ".join(f"{short(t.dtype)}[{t.dim()}-d]" for t in tensors)
        self._notify(f"compiling {who} for {what} (torch.compile)")
        start = time.perf_counter()
        try:
            result = self._compile_anew(key)(*plain)
        except Exception as error:
            del self._compiled[key]
            if (explained := tracing.explain_break(error, who)) is not None:
                raise explained from error
            raise
        self._notify(f"compiled {who} in {time.perf_counter() - start:.1f} s")
        return result

    def _compile_anew(self, key: tuple[object, ...]) -> Any:
        default = self._spec.options.get("default_float_dtype", "float64")
        # Not dynamic=True: a dim that never changes (the d of n × d points) stays a constant, for much faster loops.
        compile_ = functools.partial(tracing.compile_whole, default_float_dtype=default)
        function = _in_order(self._spec.source, self._contract)
        self._compiled[key] = tracing.on_tensors(function, self._contract.name, compile_)
        return self._compiled[key]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.detach().contiguous() if isinstance(value, torch.Tensor) else value


def _pattern(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device.type, tuple(min(s, 2) for s in value.shape)
    if isinstance(value, list):
        return tuple(_pattern(v) for v in value)
    return (type(value) if type(value) in (int, float) else value), zeros_in(value)


def _in_order(function: Any, contract: Contract) -> Any:
    """The function on arguments in signature order, some of which it may take by keyword only."""
    split = len(contract.signature.positional)
    names = [a.name for a in contract.signature.keyword_only]

    def call(*arguments: Any) -> Any:
        return function(*arguments[:split], **dict(zip(names, arguments[split:], strict=True)))

    return call
