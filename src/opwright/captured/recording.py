"""``ow.capture``: records the calls of operators, functions and modules while a block runs."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from opwright.captured.calls_file import HEADER, record_of
from opwright.captured.own_namespaces import OWN_NAMESPACES
from opwright.errors import CheckError
from opwright.internals.compiler import DispatchMode
from opwright.internals.registration import OVERLOAD, PACKET, name_of_custom_op
from opwright.runtime.base_op import BaseOp

__all__ = ["Recording", "capture"]


class Recording:
    """What was recorded until now.

    Attributes:
        counts: the number of calls, by the text of their line.
        left_out: why calls were left out, by target.
    """

    def __init__(self, file: TextIO, *, values: bool) -> None:
        self._file, self._values = file, values
        self.counts: dict[str, int] = {}
        self.left_out: dict[str, str] = {}

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(self.counts.values())

    def add(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Record a call. A line is written for each call that is unlike all before."""
        try:
            recorded = [record_of(value, values=self._values) for value in args]
            named = {name: record_of(value, values=self._values) for name, value in kwargs.items()}
        except (TypeError, RuntimeError) as error:  # an object, or a tensor without strides
            self.left_out[target] = str(error)
            return
        line = json.dumps({"target": target, "args": recorded, "kwargs": named})
        if line not in self.counts:
            self._file.write(line + "\n")
            self._file.flush()
        self.counts[line] = self.counts.get(line, 0) + 1

    def end(self) -> None:
        self._file.write(json.dumps({"end": True, "lines": len(self.counts), "counts": [*self.counts.values()]}) + "\n")


@contextlib.contextmanager
def capture(path: str | Path, *targets: Any, values: bool = False) -> Iterator[Recording]:
    """Record the calls that a block makes: shapes, strides, dtypes, devices and numbers.

    Args:
        path: the file, for ``ow.check(op, inputs=path)`` and ``opwright bench --inputs``.
        targets: operators (of ``@ow.op``, ``torch.ops``, or a ``custom_op``), functions of torch such as
            ``torch.nn.functional.silu``, and modules. By default, all operators that are not torch's own.
        values: also write the values of tensors.

    Raises:
        CheckError: a target is none of these.

    Calls that a compiled graph makes of an operator are recorded, as are those in eager mode. Functions and modules
    that torch.compile has traced are not called any more, and not recorded.

    >>> import tempfile, torch
    >>> import opwright as ow
    >>> silu = torch.nn.functional.silu
    >>> with tempfile.TemporaryDirectory() as folder, ow.capture(f"{folder}/calls.ow", silu) as found:
    ...     _ = silu(torch.ones(3))
    >>> found.calls
    1
    """
    names = [_overload_names(target) for target in targets]
    functions = {
        target: resolve_name(target) for target, name in zip(targets, names, strict=True) if _is_torchs(target, name)
    }
    modules = [target for target in targets if isinstance(target, torch.nn.Module)]
    for target, name in zip(targets, names, strict=True):
        if not name and target not in functions and not isinstance(target, torch.nn.Module):
            raise CheckError(
                f"ow.capture must be given operators, functions of torch or modules, got {target!r}",
                fix="call it through an operator, or capture the module that calls it",
            )
    operators = {each for name in names for each in name}
    with Path(path).open("w") as file:
        file.write(json.dumps(HEADER) + "\n")
        recording = Recording(file, values=values)
        with contextlib.ExitStack() as stack:
            for module in modules:
                stack.enter_context(_hooked(module, recording))
            if functions:
                stack.enter_context(_Functions(recording, functions))
            if operators or not targets:
                stack.enter_context(_Operators(recording, operators))
            try:
                yield recording
            finally:
                recording.end()


def _overload_names(target: Any) -> frozenset[str]:
    """The names of an operator's overloads; none unless it is an operator."""
    if isinstance(target, BaseOp):
        return frozenset({target.contract.qualname})
    if name := name_of_custom_op(target):
        return frozenset({name})
    if isinstance(target, PACKET):
        return frozenset(getattr(target, name).name() for name in target.overloads())
    if OVERLOAD is not None and isinstance(target, OVERLOAD):
        return frozenset({target.name()})
    return frozenset()


def _is_torchs(target: Any, operator: frozenset[str]) -> bool:
    return not operator and not isinstance(target, torch.nn.Module) and callable(target) and bool(resolve_name(target))


class _Operators(DispatchMode):  # type: ignore[misc]  # found at run time
    def __init__(self, recording: Recording, names: set[str]) -> None:
        super().__init__()
        self._recording, self._names = recording, names

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name()
        if name in self._names or (not self._names and function.namespace not in OWN_NAMESPACES):
            self._recording.add(name, args, kwargs or {})
        return function(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __init__(self, recording: Recording, names: Mapping[Any, str]) -> None:
        super().__init__()
        self._recording, self._names = recording, names

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in self._names:
            self._recording.add(self._names[func], args, _without_defaults(func, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _without_defaults(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that differ from their defaults: torch's functions pass all of them to a mode."""
    parameters = inspect.signature(function).parameters if inspect.isfunction(function) else {}
    return {
        name: value
        for name, value in kwargs.items()
        if name not in parameters or not _is_same(value, parameters[name].default)
    }


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (
        type(value) is type(default) and isinstance(value, int | float | str) and value == default
    )


@contextlib.contextmanager
def _hooked(module: torch.nn.Module, recording: Recording) -> Iterator[None]:
    def record(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = [
            t.detach() for t in (*dict(module.named_parameters()).values(), *dict(module.named_buffers()).values())
        ]
        recording.add(type(module).__name__, [*args, *kwargs.values(), *state], {})

    handle = module.register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
