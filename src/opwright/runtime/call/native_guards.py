"""Takes calls that are like an earlier one, without a frame of Python around the kernel.

``templates/guarded_call.cpp`` has guards, and the call slots of the classes whose objects keep guarded calls. It needs
some of torch's C++ headers and takes some seconds to build, in a thread after some calls; until then, as without a
compiler, calls take Python's way, which does the same.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.autograd import forward_ad

from opwright.backends.build_tools import BuildTools, build_tools
from opwright.backends.native.background import Background
from opwright.backends.native.extension import Extension, load_for_python
from opwright.internals.dispatch import can_detect_interceptors
from opwright.runtime.call.guard import Guard, holds_in_python

__all__ = ["guarded_calls", "holds_natively", "take_calls_of"]

_EXTENSION = Extension(
    "guarded_call",
    sources=("guarded_call.cpp",),
    flags=("-O2", "-std=c++20", "-fPIC", "-shared", "-Wall"),
    libraries=("torch_cpu", "c10"),
)
# Classes, each with the name of the attribute that keeps the guarded calls; empty: the object itself does.
_classes: list[tuple[type, str]] = []


def take_calls_of(cls: type, owner: str = "") -> None:
    """Once the extension is loaded, take the calls of a class whose ``__call__`` tries ``_guarded_calls`` for calls of
    ``_arity`` arguments, of which the last ones may be left to their defaults (``_tails``)."""
    _classes.append((cls, owner))
    if guarded_calls.loaded is not None:
        guarded_calls.loaded.take_calls_of(cls, owner)


class GuardedCalls:
    """The loaded extension."""

    def __init__(self, library: Path, access: tuple[int, int | None]) -> None:
        loaded = ctypes.PyDLL(str(library))
        loaded.opwright_reach_tensors(ctypes.c_size_t(access[0]))
        self._make = loaded.opwright_guard
        self._make.restype = ctypes.py_object
        self._make.argtypes = [*[ctypes.c_long] * 2, *[ctypes.py_object] * 7]
        self._take = loaded.opwright_take_calls
        self._take.restype, self._take.argtypes = ctypes.c_bool, [ctypes.py_object] * 4
        for cls, owner in _classes:
            self.take_calls_of(cls, owner)

    def take_calls_of(self, cls: type, owner: str) -> None:
        self._take(cls, cls.__call__, owner or None, vars(forward_ad))

    def holds(self, guard: Guard) -> Callable[..., bool]:
        """A function of a call's arguments that tells whether a guard holds."""
        positions, constants = _split(guard.constants)
        flag_positions, flags = _split(guard.flags)
        repeats = tuple(position for pair in guard.repeats for position in pair)
        tracking = -1 if guard.tracking is None else int(guard.tracking)
        made: Callable[..., bool] = self._make(
            guard.arguments,
            tracking,
            guard.tensors,
            guard.examples,
            positions,
            constants,
            flag_positions,
            flags,
            repeats,
        )
        return made


def _split(pairs: tuple[tuple[int, Any], ...]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    return tuple(position for position, _ in pairs), tuple(value for _, value in pairs)


def _load(tools: BuildTools, build: bool) -> GuardedCalls | None:
    if not can_detect_interceptors or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    without = "operators are called in Python, which costs some tenths of a microsecond more"
    return load_for_python(_EXTENSION, tools, GuardedCalls, without, build=build)


guarded_calls = Background(_load)


def holds_natively(guard: Guard, of: Any) -> Callable[..., bool]:
    """The native function, or before it is to be had one in Python that counts its calls.

    Args:
        of: the object that keeps the guarded call.
    """
    if guarded_calls.loaded is not None:
        return guarded_calls.loaded.holds(guard)
    holds, count = holds_in_python(guard), guarded_calls.counting(build_tools(), of)
    if count is None:
        return holds

    def counted(*arguments: Any) -> bool:
        count()
        return holds(*arguments)

    return counted
