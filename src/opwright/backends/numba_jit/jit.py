"""Compiles a Python function, and those of its file that it calls, by Numba for the CPU."""

from __future__ import annotations

import importlib.util
import inspect
import re
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal

from opwright.backends.numba_jit.names_in_code import captured, used_globals
from opwright.contract.reference import replace_globals
from opwright.errors import CompileError

__all__ = [
    "INSTALL", "INSTALL_CUDA", "Integers", "first_line", "has_numba", "is_of_the_compiler", "with_numba",
    "with_positional_parameters",
]  # fmt: skip

Integers = Literal["numba", "refused", "numpy"]
INSTALL = "pip install 'opwright[numba]'"
INSTALL_CUDA = "pip install 'opwright[numba-cuda]'"


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
    integers: Integers = "numba",
    argument_limit: int = 1 << 63,
    stops_at_integers: bool = False,
) -> Any:
    """Numba's form of a function and of those of its file that it calls; it compiles at the first call.

    Divisions by zero give what NumPy gives.

    Args:
        integers: how to compute with integers other than int64, and with Python's numbers for which 64 bits may not
            suffice: as Numba does, not at all ("refused"), or as Python and NumPy do ("numpy").
        argument_limit: integers among the arguments, and sizes of arrays, will be below it.

        stops_at_integers: it returns a float, and stops where Python may return an integer ("numpy" only).

    Raises:
        CompileError: Numba is not installed, or this is not a Python function.
    """
    if not has_numba():
        raise CompileError(f"{who}: Numba is not installed", fix=INSTALL)
    if not isinstance(function, types.FunctionType):
        raise CompileError(f"{who}: Numba compiles Python functions only", fix="pass a function that is defined by def")
    import numba

    def jit(each: types.FunctionType, is_helper: bool) -> Any:
        options: dict[str, Any] = {"parallel": parallel, "fastmath": fastmath, "boundscheck": check_indices}
        if integers != "numba":
            options["pipeline_class"] = _compiler(integers == "numpy", is_helper, argument_limit, stops_at_integers)
        return numba.njit(each, error_model="numpy", nogil=True, **options)

    made: dict[int, Any] = {}

    def compiled(each: types.FunctionType, callers: tuple[types.FunctionType, ...]) -> Any:
        """The function with those that it calls; one that calls itself, however indirectly, is left to Numba."""
        helpers = {}
        for helper in _helpers_of(each):
            if helper is not each and helper not in callers:
                if id(helper) not in made:
                    made[id(helper)] = compiled(helper, (*callers, each))
                helpers[id(helper)] = made[id(helper)]
        return jit(replace_globals(each, helpers), is_helper=bool(callers))  # type: ignore[arg-type]

    return compiled(function, ())


def _compiler(replaces: bool, is_helper: bool, argument_limit: int, stops_at_integers: bool) -> type:
    from opwright.backends.numba_jit.pipeline import compiler

    return compiler(replaces, is_helper, argument_limit, stops_at_integers)


def _helpers_of(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """The functions of its file that a function names."""
    for watched in (*used_globals(function), *captured(function)):
        if isinstance(watched.value, types.FunctionType) and watched.value.__module__ == function.__module__:
            yield watched.value


def with_positional_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its keyword-only parameters after the others: Numba does not know those, nor their defaults."""
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__
    if not code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return function
    code = code.replace(co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0)
    made = types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


def is_of_the_compiler(error: BaseException) -> bool:
    """Whether Numba raised it while it compiled: an error of its own, or of Python in its code. Compiled code has no
    frames of Python."""
    names = [kind.__module__ for kind in type(error).__mro__]
    names += [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(name.partition(".")[0] == "numba" for name in names)


def first_line(error: Exception) -> str:
    """The line of one of Numba's messages that tells what is wrong."""
    too_large = re.search(r"Int value is too large: (\S+)", str(error))
    if too_large:
        return f"the integer {too_large[1]} has more than 64 bits"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Failed in", "File", "-", "During"))]
    return (telling or lines or [type(error).__name__])[0]
