"""Everything that a call of a function may change, to run it twice: its arguments, and what it reads by name.

Arrays are changed back in place, so that views, shared memory and identities stay as they are.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opwright.contract.numpy.comparison import is_foreign_array
from opwright.errors import ArgumentError

__all__ = ["Copies", "State", "codes_of", "outer_values", "refuse_subclasses", "with_helpers"]


@dataclass(frozen=True)
class _Saved:
    """One object, and its contents at some time."""

    target: Any
    contents: Any


class State:
    """The contents of arrays, tensors, containers, objects and random generators that some values lead to."""

    def __init__(self, *roots: Any) -> None:
        self._saved: dict[int, _Saved] = {}
        for root in (*roots, *_GLOBAL_STREAMS):
            self._save(root)

    def _save(self, value: Any) -> None:
        if id(value) in self._saved or isinstance(value, _UNCHANGING) or value is None:
            return
        if is_foreign_array(value):
            value = np.from_dlpack(value)
        if isinstance(value, np.ndarray):
            self._saved[id(value)] = _Saved(value, value.copy())
            if value.dtype.hasobject:
                return
        elif isinstance(value, torch.Tensor):
            self._saved[id(value)] = _Saved(value, value.detach().clone())
        elif isinstance(value, list):
            self._saved[id(value)] = _Saved(value, list(value))
            self._save_each(value)
        elif isinstance(value, tuple):
            self._save_each(value)
        elif isinstance(value, dict):
            self._saved[id(value)] = _Saved(value, dict(value))
            self._save_each(value.values())
        elif isinstance(value, set):
            self._saved[id(value)] = _Saved(value, set(value))
        elif isinstance(value, np.random.Generator):
            self._saved[id(value)] = _Saved(value, value.bit_generator.state)
        elif isinstance(value, _GlobalStream):
            self._saved[id(value)] = _Saved(value, value.get())
        elif isinstance(value, types.CellType):
            self._saved[id(value)] = _Saved(value, _contents(value))
            self._save(_contents(value))
        elif hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in _TOOLS:
            self._saved[id(value)] = _Saved(value, dict(vars(value)))
            self._save_each(vars(value).values())

    def _save_each(self, values: Any) -> None:
        for value in list(values):
            self._save(value)

    def targets(self) -> list[Any]:
        """The objects whose contents are saved."""
        return [saved.target for saved in self._saved.values()]

    def restore(self) -> None:
        """Put all contents back, in place."""
        for saved in self._saved.values():
            target, contents = saved.target, saved.contents
            if isinstance(target, np.ndarray):
                if target.flags.writeable:
                    target[...] = contents
            elif isinstance(target, torch.Tensor):
                _overwrite(target, contents)
            elif isinstance(target, list):
                target[:] = contents
            elif isinstance(target, dict | set):
                target.clear()
                target.update(contents)
            elif isinstance(target, np.random.Generator):
                target.bit_generator.state = contents
            elif isinstance(target, _GlobalStream):
                target.set(contents)
            elif isinstance(target, types.CellType):
                target.cell_contents = contents
            else:
                vars(target).clear()
                vars(target).update(contents)

    def changed(self) -> list[Any]:
        """The objects whose contents are no longer those that were saved."""
        return [saved.target for saved in self._saved.values() if not _has(saved.target, saved.contents)]

    def changed_objects(self) -> list[Any]:
        """Those of them that are neither arrays nor generators that the function was given."""
        return [c for c in self.changed() if not isinstance(c, np.ndarray | torch.Tensor | np.random.Generator)]

    def arrays(self) -> list[Any]:
        """The arrays, those of tensors on a CPU among them."""
        found = [saved.target for saved in self._saved.values()]
        return [
            t.detach().numpy() if isinstance(t, torch.Tensor) else t
            for t in found
            if isinstance(t, np.ndarray) or (isinstance(t, torch.Tensor) and t.is_cpu)
        ]


@dataclass(frozen=True, eq=False)
class _GlobalStream:
    """A stream of random numbers of which a process has one."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], None]


_GLOBAL_STREAMS = (
    _GlobalStream("random", random.getstate, random.setstate),
    _GlobalStream("np.random", lambda: np.random.get_state(legacy=False), np.random.set_state),
)


class Copies:
    """The contents of the arrays among some arguments; :class:`State` has those of everything, and takes longer."""

    def __init__(self, arguments: Iterable[Any]) -> None:
        self._saved = [(a, a.copy()) for a in arguments if type(a) is np.ndarray and a.flags.writeable]

    def restore(self) -> None:
        """Put all contents back, in place."""
        for array, contents in self._saved:
            array[...] = contents


# Their objects are tools, not data.
_TOOLS = frozenset({"opwright", "kernelsim", "torch", "numpy", "numba", "builtins", "functools", "_thread"})
# Values that nothing can change, and code.
_UNCHANGING = (
    str, bytes, int, float, complex, bool, np.generic, np.dtype, type, types.ModuleType, types.FunctionType,
    types.BuiltinFunctionType, np.ufunc, torch.dtype, torch.device, range, slice,
)  # fmt: skip


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values without a trace for autograd."""
    if tensor.is_cpu:
        tensor.detach().numpy()[...] = values.numpy()
    else:
        tensor.detach().copy_(values)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _has(target: Any, contents: Any) -> bool:
    if isinstance(target, np.ndarray):
        return _same_bits(target, contents)
    if isinstance(target, torch.Tensor):
        return torch.equal(target.detach().nan_to_num(), contents.nan_to_num())
    if isinstance(target, list):
        return len(target) == len(contents) and all(a is b for a, b in zip(target, contents, strict=True))
    if isinstance(target, types.CellType):
        return _contents(target) is contents
    if isinstance(target, _GlobalStream):
        return repr(target.get()) == repr(contents)
    if isinstance(target, np.random.Generator):
        return bool(target.bit_generator.state == contents)
    if isinstance(target, set):
        return bool(target == contents)
    now = target if isinstance(target, dict) else vars(target)
    return list(now) == list(contents) and all(now[key] is contents[key] for key in now)


def _same_bits(a: Any, b: Any) -> bool:
    if a.dtype.kind in "fc":
        return bool(np.array_equal(a, b, equal_nan=True))
    return bool(np.array_equal(a, b))


def outer_values(function: Callable[..., Any]) -> list[Any]:
    """What a function reads from outside of its arguments: globals by name, and variables of functions around it."""
    found: list[Any] = []
    for each in with_helpers(function):
        found += each.__closure__ or ()
        found += [value for name in _names_in(each.__code__) if (value := each.__globals__.get(name)) is not None]
    return [value for value in found if not isinstance(value, _UNCHANGING)]


def with_helpers(function: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """A function and those of its file that it calls."""
    waiting: list[Any] = [getattr(function, "__func__", function)]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, types.FunctionType) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        used = [each.__globals__.get(name) for name in _names_in(each.__code__)]
        used += [_contents(cell) for cell in each.__closure__ or ()]
        waiting += [u for u in used if getattr(u, "__module__", None) == each.__module__]


def codes_of(function: Callable[..., Any]) -> set[types.CodeType]:
    """The code of a function, of those of its file that it calls, and of functions within them."""
    found: set[types.CodeType] = set()
    waiting = [each.__code__ for each in with_helpers(function)]
    while waiting:
        code = waiting.pop()
        found.add(code)
        waiting += [c for c in code.co_consts if isinstance(c, types.CodeType) and c not in found]
    return found


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def refuse_subclasses(values: list[Any], who: str) -> None:
    """Refuse arrays of NumPy's own subclasses, whose operators are others.

    Raises:
        ArgumentError: with the class, and how to pass its values.
    """
    for value in values:
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            raise ArgumentError(
                f"{who} was given a {type(value).__name__}, whose operators differ from an array's",
                fix="pass its values as an array: x.filled(...)" if hasattr(value, "filled") else "pass np.asarray(x)",
            )
