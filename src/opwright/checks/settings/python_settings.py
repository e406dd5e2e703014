"""Settings of Python, NumPy and torch that a kernel may leave changed.

They are read before and after every call, so each has to be read in less than a microsecond.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import sys
import threading
import warnings
from typing import Any

import numpy as np
import torch

__all__ = [
    "autocast", "filters", "numpy_generator", "places", "set_autocast", "set_filters", "set_numpy_errors",
    "set_numpy_generator", "set_path", "set_places", "set_streams", "set_tuning", "streams", "tuning",
]  # fmt: skip

# The state of NumPy's default kind of generator in C: 624 words, and how many of them were used.
_TWISTER_BYTES = 625 * 4
_STREAMS = ("stdin", "stdout", "stderr", "displayhook", "excepthook")


_bit_generator = np.random.get_bit_generator  # type: ignore[attr-defined]  # NumPy documents it, and does not list it


def numpy_generator() -> tuple[int, bytes]:
    """Where the state of NumPy's global generator lies, and its bytes; ``np.random.get_state`` takes 30 µs."""
    generator = _bit_generator()
    address = generator.ctypes.state_address
    return address, ctypes.string_at(address, _TWISTER_BYTES) if type(generator) is np.random.MT19937 else b""


def set_numpy_generator(value: tuple[int, bytes]) -> None:
    address, state = value
    if state and address == _bit_generator().ctypes.state_address:
        ctypes.memmove(address, state, len(state))


def set_numpy_errors(value: dict[str, Any]) -> None:
    np.seterr(**value)


def autocast() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def set_autocast(value: tuple[bool, torch.dtype]) -> None:
    torch.set_autocast_enabled("cpu", value[0])
    torch.set_autocast_dtype("cpu", value[1])


def filters() -> tuple[Any, ...]:
    return tuple(warnings.filters)


def set_filters(value: tuple[Any, ...]) -> None:
    with contextlib.suppress(TypeError):  # filters may be a list of a subclass
        warnings.filters[:] = value  # type: ignore[index]
    with warnings.catch_warnings():
        pass  # what was decided by the former filters is forgotten


def streams() -> tuple[Any, ...]:
    """The objects that Python prints to, and the functions that print values and exceptions."""
    return tuple([getattr(sys, name) for name in _STREAMS])


def set_streams(value: tuple[Any, ...]) -> None:
    for name, each in zip(_STREAMS, value, strict=True):
        setattr(sys, name, each)


def set_path(value: tuple[str, ...]) -> None:
    sys.path[:] = value


def places() -> tuple[Any, ...]:
    """On which processors this thread runs, and with which priority."""
    return os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)


def set_places(value: tuple[Any, ...]) -> None:
    os.sched_setaffinity(0, value[0])
    with contextlib.suppress(PermissionError):  # a lower priority stays
        os.setpriority(os.PRIO_PROCESS, 0, value[1])


def tuning() -> tuple[Any, ...]:
    """Garbage collection, the interval between threads, the limit of recursion, the stack of threads, and the level up
    to which messages are not logged."""
    limits = sys.getswitchinterval(), sys.getrecursionlimit(), threading.stack_size()
    return (gc.isenabled(), *limits, logging.root.manager.disable)


def set_tuning(value: tuple[Any, ...]) -> None:
    collects, interval, depth, stack, level = value
    (gc.enable if collects else gc.disable)()
    sys.setswitchinterval(interval)
    sys.setrecursionlimit(depth)
    threading.stack_size(stack)
    logging.disable(level)
