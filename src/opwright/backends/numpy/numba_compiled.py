"""A NumPy function compiled by Numba, which suits loops over elements and time steps."""

from __future__ import annotations

import inspect
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from opwright import tree
from opwright.backends.build_tools import build_tools
from opwright.backends.numba_jit.constants import Constants
from opwright.backends.numba_jit.jit import (
    Integers,
    first_line,
    is_of_the_compiler,
    with_numba,
    with_positional_parameters,
)
from opwright.backends.numpy.choice import SMALL, is_small, shown
from opwright.backends.numpy.effects import unknown_effect_in_numba
from opwright.backends.numpy.torch_compiled import Compilation
from opwright.errors import CompileError

__all__ = ["NumbaCompiled", "Stopped"]


# How often compiled code follows what it takes for constants.
_MOST_CHANGES = 8


class _Compiled(NamedTuple):
    """What runs calls like an earlier one: compiled with these constants, for arrays that are contiguous or not."""

    jitted: Any
    constants: Constants
    layouts: list[bool]


class Stopped(CompileError):
    """Compiled code cannot go on with these values; what it has written is not undone."""


class NumbaCompiled:
    """Runs a NumPy function compiled by Numba, on arrays and numbers.

    Attributes:
        may_stop: whether it may stop with :class:`Stopped` after it has written to what it was given.
    """

    def __init__(self, function: Callable[..., Any], name: str, about_to_compile: Callable[[], None]) -> None:
        self._function = with_positional_parameters(function)
        self._by_name = None if self._function is function else inspect.signature(function)
        self._name = name
        self._about_to_compile = about_to_compile
        self._constants = Constants(function)
        self._changes = 0
        self._jitted: Any = None
        self._integers: Integers = "refused"
        self._argument_limit = SMALL
        self._mixes = False
        self._known = 0
        self._quick: dict[Any, _Compiled] = {}
        self._lock = threading.RLock()  # of everything that compiling changes
        self.may_stop = False
        self.compilations: list[Compilation] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._by_name is not None:
            bound = self._by_name.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = tuple(bound.arguments.values()), {}
        return self._called(args, kwargs)

    def _called(self, args: Any, kwargs: Any) -> Any:
        with self._lock:
            self._prepare(args, kwargs)
            jitted = self._jitted
            is_compiled = not kwargs and tuple(map(jitted.typeof_pyval, args)) in jitted.overloads
            if not is_compiled:
                return self._compile_and_run(args, kwargs)
        return self._run(jitted, args, kwargs)

    def _prepare(self, args: Any, kwargs: Any) -> None:
        """Have what Numba compiles for such arguments, with what is outside as it is now."""
        leaves = tree.leaves((args, kwargs))
        if any(isinstance(leaf, int) and not -(2**63) < leaf < 2**63 for leaf in leaves):
            raise Stopped(f"{self._name}: an integer of more than 64 bits", fix="let NumPy run it, as it does now")
        if not all(map(is_small, leaves)) and self._argument_limit == SMALL:
            self._argument_limit = 1 << 63
            self._forget()
        if not self._constants.are_current():
            self._take_constants()
        if self._jitted is None:
            self._refuse(leaves)
            self._jitted = with_numba(
                self._function,
                self._name,
                integers=self._integers,
                argument_limit=self._argument_limit,
                stops_at_integers=self._mixes,
            )
        if self._integers == "numpy":
            self._refuse_numbers(leaves)

    def _compile_and_run(self, args: Any, kwargs: Any) -> Any:
        signatures = self._jitted.signatures
        if len(signatures) != self._known or not signatures:
            return self._first(args, kwargs)
        try:
            result = self._run(self._jitted, args, kwargs)
        except Exception as error:
            if not is_of_the_compiler(error):
                raise
            return self._first(args, kwargs)  # other types, which may need other rules
        if len(self._jitted.signatures) != self._known:
            self._note(args, 0.0)
        return result

    def _run(self, jitted: Any, args: Any, kwargs: Any) -> Any:
        try:
            return jitted(*args, **kwargs)
        except OverflowError as error:
            raise self._stopped(error) from error

    def _stopped(self, error: OverflowError) -> Exception:
        """What to raise for an integer that does not fit: another error if the function has raised it itself."""
        from opwright.backends.numba_jit.refusals import DoesNotFit

        if not isinstance(error, DoesNotFit):
            return error
        return Stopped(
            f"{self._name}: compiled by Numba, it met a number that does not fit, a division by zero or the like, "
            "which Python or NumPy may treat otherwise",
            fix="let NumPy run such calls, as it does now",
        )

    def _forget(self) -> None:
        """Compile anew at the next call."""
        self._jitted, self._known = None, 0
        self._quick.clear()

    def _take_constants(self) -> None:
        """Take what names outside of the function have now for constants."""
        self._changes += 1
        if self._changes > _MOST_CHANGES:
            why = f"{self._name}: what it reads from outside has changed {self._changes} times"
            raise Stopped(why, fix="pass it as an argument, or let NumPy run such calls, as it does now")
        self._forget()
        self._constants = Constants(self._function)

    def quickly(self, key: Any, args: Any) -> Any:
        """The result of a call like an earlier one; NotImplemented if layouts or constants are others."""
        compiled = self._quick.get(key)
        if (
            compiled is None
            or not compiled.constants.are_current()
            or compiled.layouts != [a.flags.c_contiguous for a in args if type(a) is np.ndarray]
        ):
            return NotImplemented
        return self._run(compiled.jitted, args, {})

    def remember(self, key: Any, args: Any) -> None:
        """Remember a call on plain arrays and numbers, for ``quickly``."""
        layouts = [a.flags.c_contiguous for a in args if type(a) is np.ndarray]
        with self._lock:
            if len(self._quick) < 4096 and self._jitted is not None and self._by_name is None:
                self._quick[key] = _Compiled(self._jitted, self._constants, layouts)

    def _first(self, args: Any, kwargs: Any) -> Any:
        from opwright.backends.numba_jit.refusals import noting

        self._refuse(tree.leaves((args, kwargs)))
        self._about_to_compile()
        start = time.perf_counter()
        build_tools().notify(f"compiling {self._name} (numba); this call waits for it")
        with warnings.catch_warnings(), noting() as found:
            warnings.simplefilter("ignore")
            try:
                result = self._run(self._jitted, args, kwargs)
            except Exception as error:
                if not is_of_the_compiler(error) and not found.reasons:
                    raise
                has_narrow = found.reasons or any(map(_is_narrow, tree.leaves((args, kwargs))))
                if (self._integers == "numpy" and (self._mixes or not found.mixes)) or not has_narrow:
                    raise self._not_compiled((found.reasons or [first_line(error)])[0], str(error)) from error
                self._integers = "numpy"
                self._mixes |= found.mixes
                self._forget()
                return self._called(args, kwargs)
            finally:
                self.may_stop |= found.writes
        self._note(args, time.perf_counter() - start)
        return result

    def _not_compiled(self, why: str, log: str) -> CompileError:
        return CompileError(
            f"{self._name}: Numba cannot compile it: {why}",
            log=log,
            fix='write it with what Numba supports, or use compiler="torch"',
        )

    def _note(self, args: Any, seconds: float) -> None:
        self._known = len(self._jitted.signatures)
        self.compilations.append(Compilation(", ".join(map(shown, args)), "by Numba", seconds))

    def _refuse(self, leaves: list[Any]) -> None:
        if effect := unknown_effect_in_numba(self._function):
            raise CompileError(
                f"{self._name} {effect}, whose effects are not known", fix="leave it out, or call the function itself"
            )
        for leaf in leaves:
            if type(leaf).__module__.partition(".")[0] == "numba":
                raise CompileError(
                    f"{self._name}: {type(leaf).__name__} is an object of Numba's, which NumPy's run would share",
                    fix="pass arrays and numbers, or decorate the function with numba.njit itself",
                )
            if hasattr(leaf, "__dlpack__") and not isinstance(leaf, np.ndarray):
                raise CompileError(
                    f"{self._name}: Numba takes arrays, not {type(leaf).__name__}", fix='use compiler="torch"'
                )

    def _refuse_numbers(self, leaves: list[Any]) -> None:
        """Refuse numbers of NumPy that Numba takes for Python integers, where it makes a difference."""
        for leaf in leaves:
            if isinstance(leaf, np.integer) and leaf.dtype.itemsize == 8:
                raise CompileError(
                    f"{self._name}: Numba takes {leaf!r} for a Python integer, which has no dtype of its own",
                    fix="pass int(…), or an array",
                )


def _is_narrow(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iu" and value.dtype != np.int64
