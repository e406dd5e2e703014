"""Names of NumPy that torch.compile does not trace, written with those that it does.

``np.mgrid``, ``np.ogrid``, ``np.ndarray(shape, dtype)``, ``np.cov``, and methods of ufuncs (``np.add.at``). A function
that uses one of them is compiled with a namespace in NumPy's place that has these, and everything else as it is.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from opwright.backends.numpy.state import codes_of, outer_values
from opwright.contract.numpy.ufunc_methods import ACCUMULATIONS, METHODS, REDUCTIONS, at
from opwright.contract.reference import replace_globals

__all__ = ["HAS_EQUIVALENT", "Traced"]


class _Grid:
    """``np.mgrid`` and ``np.ogrid``."""

    def __init__(self, is_open: bool) -> None:
        self._is_open = is_open

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, tuple):
            return _ticks(key)
        axes = np.meshgrid(*[_ticks(each) for each in key], indexing="ij", sparse=self._is_open)
        return tuple(axes) if self._is_open else np.stack(axes)


def _ticks(key: slice) -> Any:
    start = 0 if key.start is None else key.start
    if isinstance(key.step, complex):
        return np.linspace(start, key.stop, int(abs(key.step)))
    return np.arange(start, key.stop, 1 if key.step is None else key.step)


class _Ufunc:
    """A ufunc of two arguments with its methods."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc = ufunc
        self._name = ufunc.__name__
        self._reduce = getattr(np, REDUCTIONS.get(self._name, ""), _lacks(f"np.{self._name}.reduce"))
        self._accumulate = getattr(np, ACCUMULATIONS.get(self._name, ""), _lacks(f"np.{self._name}.accumulate"))

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._ufunc(*args, **keywords)

    def outer(self, a: Any, b: Any) -> Any:
        a, b = np.asarray(a), np.asarray(b)
        return self._ufunc(a.reshape(a.shape + (1,) * b.ndim), b)

    def at(self, a: Any, indices: Any, b: Any) -> None:
        if isinstance(indices, np.ndarray) and indices.dtype == np.bool_:  # each element is indexed once
            a[indices] = self._ufunc(a[indices], np.asarray(b))  # a number counts as int64 or float64 here
            return
        if isinstance(indices, tuple):
            indices = tuple([_as_tensor(each) for each in indices])
        _at(self._name, torch.as_tensor(a), _as_tensor(indices), _as_tensor(b))

    def reduce(self, array: Any, axis: Any = 0, **keywords: Any) -> Any:
        return self._reduce(array, axis=axis, **keywords)

    def accumulate(self, array: Any, axis: Any = 0, **keywords: Any) -> Any:
        return self._accumulate(array, axis=axis, **keywords)


def _lacks(method: str) -> Callable[..., Any]:
    def refuse(*args: Any, **keywords: Any) -> Any:
        raise NotImplementedError(f"{method} has no equivalent")

    return refuse


def _as_tensor(value: Any) -> Any:
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value


def _at(name: str, array: torch.Tensor, indices: Any, values: Any) -> torch.Tensor:
    """``ufunc.at`` as one step of a graph (see ``_equivalents_of``)."""
    at(getattr(np, name), array, indices, values)
    return array


def _cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None) -> Any:
    rows = _variables(m, rowvar)
    if y is not None:
        rows = np.concatenate((rows, _variables(y, rowvar)))
    centred = rows - rows.mean(axis=1, keepdims=True)
    freedom = (0 if bias else 1) if ddof is None else ddof
    return np.squeeze(np.matmul(centred, np.conj(centred).T) / (rows.shape[1] - freedom))


def _variables(m: Any, rowvar: bool) -> Any:
    rows = np.atleast_2d(m)
    return rows if rowvar or np.asarray(m).ndim < 2 else rows.T


def _array(shape: Any, dtype: Any = float) -> Any:
    return np.empty(shape, dtype)


_EQUIVALENTS: dict[str, Any] = {"mgrid": _Grid(False), "ogrid": _Grid(True), "cov": _cov}
HAS_EQUIVALENT = frozenset(_EQUIVALENTS)


class Traced:
    """What torch.compile traces for a function: a copy with equivalents in the place of what it uses, or itself.

    The copy has the values that global and closed-over names had when it was made.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        found = _equivalents_of(function)
        self._scope, self._read = _read(function) if found else ({}, {})
        self._cells = [(cell, _contents(cell)) for cell in _cells(function)] if found else []
        self.function = _with(function, found) if found else function

    def is_current(self) -> bool:
        """Whether the names that the copy reads still have the values that it was made with."""
        return all(self._scope.get(name) is value for name, value in self._read.items()) and all(
            _contents(cell) is value for cell, value in self._cells
        )


def _with(function: Callable[..., Any], found: dict[str, Any]) -> Callable[..., Any]:
    namespace = types.ModuleType("numpy")
    namespace.__dict__.update({**vars(np), **found})
    replaced = {id(getattr(np, name)): value for name, value in found.items()}
    return replace_globals(function, {id(np): namespace, **replaced}, in_a_module=False)


def _equivalents_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The equivalents that a function needs, by their names in NumPy."""
    if not isinstance(function, types.FunctionType) or _rebinds(function):
        return {}
    names = {name for code in codes_of(function) for name in (*code.co_names, *code.co_freevars)}
    found = {name: value for name, value in _EQUIVALENTS.items() if name in names}
    if "ndarray" in names and "isinstance" not in names:
        found["ndarray"] = _array
    if "at" in names:
        torch.compiler.allow_in_graph(_at)
    if METHODS & names:
        ufuncs = {name: getattr(np, name, None) for name in names}
        found |= {n: _Ufunc(u) for n, u in ufuncs.items() if isinstance(u, np.ufunc) and u.nin == 2}
    return found


def _rebinds(function: types.FunctionType) -> bool:
    """Whether it assigns global or closed-over names, which would be those of a copy."""
    return any(
        step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars)
        for code in codes_of(function)
        for step in dis.get_instructions(code)
    )


def _read(function: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The global names of a function's file, and those of them that it and its helpers read, with their values."""
    scope = function.__globals__
    return scope, {name: scope.get(name) for code in codes_of(function) for name in code.co_names}


def _cells(function: Callable[..., Any]) -> list[types.CellType]:
    return [value for value in outer_values(function) if isinstance(value, types.CellType)]


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
