"""A NumPy function compiled by Numba, which suits loops over elements and time steps."""

from __future__ import annotations

import importlib.util
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from opwright import tree
from opwright.backends.build_tools import build_tools
from opwright.backends.numpy.choice import shown
from opwright.backends.numpy.torch_compiled import Compilation
from opwright.contract.reference import replace_globals
from opwright.errors import CompileError

__all__ = ["INSTALL", "NumbaCompiled", "first_line", "has_numba", "with_numba"]

INSTALL = "pip install 'opwright[numba]'"


def has_numba() -> bool:
    """Whether Numba is installed."""
    return importlib.util.find_spec("numba") is not None


def with_numba(
    function: Callable[..., Any],
    who: str,
    *,
    check_indices: bool = True,
    parallel: bool = False,
    fastmath: bool = False,
) -> Any:
    """Numba's form of a function and of those of its file that it calls; it compiles at the first call.

    Divisions by zero give what NumPy gives.

    Raises:
        CompileError: Numba is not installed, or this is not a Python function.
    """
    if not has_numba():
        raise CompileError(f"{who}: Numba is not installed", fix=INSTALL)
    if not isinstance(function, types.FunctionType):
        raise CompileError(f"{who}: Numba compiles Python functions only", fix="pass a function that is defined by def")
    import numba

    def jit(each: types.FunctionType) -> Any:
        return numba.njit(
            each, error_model="numpy", boundscheck=check_indices, parallel=parallel, fastmath=fastmath, nogil=True
        )

    helpers = {
        id(value): jit(replace_globals(value, {}))  # type: ignore[arg-type]
        for value in _names_read(function)
        if isinstance(value, types.FunctionType) and value.__module__ == function.__module__ and value is not function
    }
    return jit(replace_globals(function, helpers))  # type: ignore[arg-type]


def _names_read(function: types.FunctionType) -> list[Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*cells, *(function.__globals__.get(name) for name in function.__code__.co_names)]


class NumbaCompiled:
    """Runs a NumPy function compiled by Numba, on arrays and numbers."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._jitted: Any = None
        self._known = 0
        self._quick: dict[Any, list[bool]] = {}
        self.compilations: list[Compilation] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._jitted is None:
            self._refuse(tree.leaves((args, kwargs)))
            self._jitted = with_numba(self._function, self._name)
        signatures = self._jitted.signatures
        if len(signatures) != self._known or not signatures:
            return self._first(args, kwargs)
        result = self._jitted(*args, **kwargs)
        if len(self._jitted.signatures) != self._known:
            self._note(args, 0.0)
        return result

    def quickly(self, key: Any, args: Any) -> Any:
        """The result of a call like an earlier one; NotImplemented for arrays of another layout."""
        layouts = self._quick.get(key)
        if layouts is None or layouts != [a.flags.c_contiguous for a in args if type(a) is np.ndarray]:
            return NotImplemented
        return self._jitted(*args)

    def remember(self, key: Any, args: Any) -> None:
        """Remember a call on plain arrays and numbers, for ``quickly``."""
        if len(self._quick) < 4096:
            self._quick[key] = [a.flags.c_contiguous for a in args if type(a) is np.ndarray]

    def _first(self, args: Any, kwargs: Any) -> Any:
        self._refuse(tree.leaves((args, kwargs)))
        start = time.perf_counter()
        build_tools().notify(f"compiling {self._name} (numba); this call waits for it")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = self._jitted(*args, **kwargs)
            except Exception as error:
                if type(error).__module__.startswith("numba"):
                    raise CompileError(
                        f"{self._name}: Numba cannot compile it: {first_line(error)}",
                        log=str(error),
                        fix='write it with what Numba supports, or use compiler="torch"',
                    ) from error
                raise
        self._note(args, time.perf_counter() - start)
        return result

    def _note(self, args: Any, seconds: float) -> None:
        self._known = len(self._jitted.signatures)
        self.compilations.append(Compilation(", ".join(map(shown, args)), "by Numba", seconds))

    def _refuse(self, leaves: list[Any]) -> None:
        for leaf in leaves:
            if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "iu" and leaf.dtype.itemsize < 8:
                raise CompileError(
                    f"{self._name}: Numba computes numbers of {leaf.dtype} as int64, which NumPy does not",
                    fix='pass int64, or use compiler="torch"',
                )
            if hasattr(leaf, "__dlpack__") and not isinstance(leaf, np.ndarray):
                raise CompileError(
                    f"{self._name}: Numba takes arrays, not {type(leaf).__name__}", fix='use compiler="torch"'
                )


def first_line(error: Exception) -> str:
    """The line of one of Numba's messages that tells what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Failed in", "File", "-", "During"))]
    return (telling or lines or [type(error).__name__])[0]
