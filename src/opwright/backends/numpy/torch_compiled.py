"""A NumPy function compiled by torch.compile: one compiled function for each pattern of dtypes and ranks."""

from __future__ import annotations

import functools
import inspect
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.backends.build_tools import build_tools
from opwright.backends.numpy import tracing
from opwright.backends.numpy.arrays import as_numpy, borrow, refuse_shared_writes
from opwright.backends.numpy.effects import refuse_unknown_arguments
from opwright.backends.numpy.equivalents import Traced
from opwright.backends.numpy.placement import arrays_made_on, numpy_steps, place_of_arrays
from opwright.contract.dtypes import short, zeros_in
from opwright.contract.numpy.rules import DefaultFloatDtype
from opwright.internals.compiler import graph_break_reasons, is_recompile_limit
from opwright.internals.numpy_layer import default_device_is_chosen
from opwright.internals.tensors import version_of

__all__ = ["Compilation", "TorchCompiled"]


@dataclass(frozen=True)
class Compilation:
    """One time that a function was compiled.

    Attributes:
        arguments: the arguments that it was compiled for, such as ``X: float64[5, 2]``.
        reason: why no earlier compilation could be used.
        seconds: the duration of the call that waited for it.
    """

    arguments: str
    reason: str
    seconds: float


class TorchCompiled:
    """Runs a NumPy function compiled.

    Args:
        on_compile: called before something is compiled, and before the code runs for the first time.
    """

    may_stop = False  # it ends each call that it begins

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        device: torch.device | None,
        default_float_dtype: DefaultFloatDtype,
        fullgraph: bool,
        dynamic: bool | None,
        on_compile: Callable[[], None],
    ) -> None:
        self._function = function
        self._traced = Traced(function)
        self._name = name
        self._device = device
        self._default_float_dtype = default_float_dtype
        self._fullgraph = fullgraph
        self._dynamic = dynamic
        self._on_compile = on_compile
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._quick: dict[Any, Callable[..., Any]] = {}
        self._graphs = 0
        self._breaks: list[str] = []
        self._warned = False
        self._described: list[dict[str, str]] = []
        self.compilations: list[Compilation] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        like = (args, kwargs)
        chosen, leaves = self._device_for_arrays(), tree.leaves(like)
        if not self._fullgraph:
            refuse_unknown_arguments(leaves, self._name)
        borrowed = borrow(leaves, chosen, self._name)
        place = borrowed.device or chosen
        # Without fullgraph, there are NumPy arrays between the compiled pieces, all on the CPU.
        with arrays_made_on(place if self._fullgraph else None, self._default_float_dtype):
            result = self._run(borrowed.leaves, like)
        borrowed.write_back(self._name)
        return tree.map_tensors(borrowed.give_back, result)

    def quickly(self, key: Any, args: Sequence[Any]) -> Any:
        """The result of a call like an earlier one, on plain arrays and numbers; NotImplemented if it is not like that.

        Args:
            key: dtypes, shapes and types of the arguments.
        """
        compiled = self._quick.get((key, torch.is_grad_enabled()))
        if compiled is None or default_device_is_chosen() or not self._traced.is_current():
            return NotImplemented
        values, tensors = [], []
        for value in args:
            if type(value) is np.ndarray:
                flags = value.flags
                if not (flags.c_contiguous and flags.writeable):
                    return NotImplemented
                value = torch.from_numpy(value)
                tensors.append(value)
            values.append(value)
        graphs = self._graphs
        with numpy_steps(self._default_float_dtype):
            result = compiled(*values)
        if self._graphs != graphs:  # it may be another graph, which writes
            del self._quick[key, torch.is_grad_enabled()]
        if len(tensors) > 1 and any(version_of(tensor) != 0 for tensor in tensors):
            refuse_shared_writes(args, tensors, self._name)
        if type(result) is torch.Tensor:
            return as_numpy(result)
        return tree.map_tensors(as_numpy, result)

    def remember(self, key: Any, args: Sequence[Any]) -> None:
        """Remember the compiled function of a call on plain arrays and numbers, for ``quickly``."""
        if not self._fullgraph or self._device is not None or default_device_is_chosen():
            return
        if all(type(a) is not np.ndarray or (a.flags.c_contiguous and a.dtype.isnative) for a in args):
            like: Any = (tuple(args), {})
            leaves = [torch.from_numpy(a) if type(a) is np.ndarray and a.flags.writeable else a for a in args]
            found = self._compiled.get(self._key(leaves, like))
            if found is not None and len(self._quick) < 4096:
                self._quick[key, torch.is_grad_enabled()] = found

    def _device_for_arrays(self) -> torch.device | None:
        """The device that arrays are moved to; None leaves them on the CPU."""
        chosen = self._device or (torch.get_default_device() if default_device_is_chosen() else None)
        return chosen if chosen is not None and chosen.type != "cpu" else None

    def _key(self, leaves: Sequence[Any], like: Any) -> Any:
        return tree.form(like), tuple(map(_pattern, leaves)), torch.is_grad_enabled(), place_of_arrays()

    def _run(self, leaves: Sequence[Any], like: Any) -> Any:
        key = self._key(leaves, like)
        before, start = self._graphs, time.perf_counter()
        reasons = None if self._fullgraph else graph_break_reasons()
        args, kwargs = tree.rebuild(like, leaves)
        try:
            result = self._compiled_for(key)(*args, **kwargs)
        except Exception as error:
            if is_recompile_limit(error):
                del self._compiled[key]  # start with a new function
                return self._run(leaves, like)
            if (explained := tracing.explain_break(error, self._name)) is not None:
                raise explained from error
            raise
        if self._graphs > before:
            self._record(args, kwargs, time.perf_counter() - start)
        if reasons is not None:
            # A break before any operation makes no graph; it appears only in torch's counters.
            counted = graph_break_reasons() - reasons
            self._warn_of_breaks([*self._breaks, *map(tracing.cause_of, counted)])
        return result

    def _compiled_for(self, key: Any) -> Callable[..., Any]:
        if not self._traced.is_current():
            self._traced = Traced(self._function)
            self._compiled.clear()
        if key not in self._compiled:
            make = tracing.on_tensors if self._fullgraph else tracing.on_tensors_in_pieces
            self._compiled[key] = make(
                self._traced.function,
                self._name,
                functools.partial(
                    tracing.compile_whole,
                    default_float_dtype=self._default_float_dtype,
                    fullgraph=self._fullgraph,
                    dynamic=self._dynamic,
                    on_graph=self._announce,
                ),
            )
        return self._compiled[key]

    # -- messages and descriptions ----------------------------------------------------------------------

    def _announce(self, ended_by: str) -> None:
        self._on_compile()
        self._graphs += 1
        if ended_by:
            self._breaks.append(ended_by)
        build_tools().notify(f"compiling {self._name} (torch.compile); this call waits for it")

    def _record(self, args: Sequence[Any], kwargs: dict[str, Any], seconds: float) -> None:
        described = self._describe(args, kwargs)
        reason = _reason(described, self._described)
        self._described.append(described)
        arguments = ", ".join(f"{name}: {text}" for name, text in described.items())
        self.compilations.append(Compilation(arguments, reason, seconds))
        build_tools().notify(f"compiled {self._name} for ({arguments}) in {seconds:.1f} s; {reason}")

    def _describe(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, str]:
        try:
            bound = inspect.signature(self._function).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):  # a function in C has no signature to inspect
            bound = {**{str(i): a for i, a in enumerate(args)}, **kwargs}
        return {name: _show(value) for name, value in bound.items()}

    def _warn_of_breaks(self, breaks: Sequence[str]) -> None:
        if self._warned or not breaks:
            return
        self._warned = True
        causes = "; ".join(dict.fromkeys(breaks))
        what = "parts of it run in Python" if self._graphs else "nothing of it was compiled, all of it runs in Python"
        warnings.warn(f"{self._name} is not compiled whole, {what}: {causes}", stacklevel=6)


def _pattern(leaf: Any) -> Any:
    """The key of a compiled function for a leaf, so that none counts against another's limit of recompilations."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.device.type, leaf.requires_grad, tuple(min(s, 2) for s in leaf.shape)
    if type(leaf) in (int, float):
        return type(leaf), zeros_in(leaf)
    try:
        hash(leaf)
    except TypeError:
        return type(leaf)
    return leaf, zeros_in(leaf)


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{short(value.dtype)}{list(value.shape)}{place}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_show, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_show(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _reason(now: dict[str, str], before: Sequence[dict[str, str]]) -> str:
    """Why no earlier compilation could be used: how the arguments differ from the most similar ones."""
    if not before:
        return "the first call"

    def differences(then: dict[str, str]) -> list[str]:
        return [
            f"{name} was {then.get(name, 'not given')}" for name in {**then, **now} if now.get(name) != then.get(name)
        ]

    least = min(map(differences, before), key=len)
    return ", ".join(least) or "same sizes and dtypes: the strides, or whether gradients are recorded, differ"
