"""Settings of the process that native code may change: read and set where the C library and the kernel have them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import resource
import signal
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "environment", "limits", "locale", "rounding", "set_environment", "set_limits", "set_locale", "set_rounding",
    "set_signal_handlers", "set_traps", "signal_handlers", "standard_streams", "traps", "umask",
]  # fmt: skip

# Variables that libraries set for themselves when they are first used.
_OF_LIBRARIES = (b"TORCH", b"PYTORCH", b"TRITON", b"CUDA_MODULE_LOADING", b"KMP_", b"NUMBA", b"MODULAR", b"OPWRIGHT")
_SIGNALS = {
    name: int(signal.Signals[name])
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGCHLD", "SIGPIPE", "SIGALRM", "SIGUSR1", "SIGUSR2")
}
_SIGACTION_BYTES = 256  # more than the structure takes anywhere
_LC_ALL = 6
_TO_NEAREST, _ALL_TRAPS = 0, 0x3D
_LIMITS = {
    name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}


@functools.cache
def _c() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.setlocale.restype = ctypes.c_char_p
    return library


@functools.cache
def _math() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libm.so.6")
    return None


def locale() -> str:
    return (_c().setlocale(_LC_ALL, None) or b"").decode(errors="replace")


def set_locale(value: str) -> None:
    _c().setlocale(_LC_ALL, value.encode())


def rounding() -> str:
    """How sums are rounded; found with sums, as processors have several registers for it."""
    one, tiny = 1.0, 1e-30
    if one + tiny > one:
        return "up"
    if one - tiny < one:
        return "down" if -one - tiny < -one else "towards zero"
    return "to the nearest"


def set_rounding(value: str) -> None:
    if (library := _math()) is not None and value == "to the nearest":
        library.fesetround(_TO_NEAREST)


def traps() -> int:
    """The floating-point exceptions that end the process, as a mask."""
    library = _math()
    return library.fegetexcept() if library is not None and hasattr(library, "fegetexcept") else 0


def set_traps(value: int) -> None:
    if (library := _math()) is not None and hasattr(library, "fedisableexcept"):
        library.fedisableexcept(_ALL_TRAPS & ~value)


def environment() -> dict[str, bytes]:
    """The variables as the C library has them, which ``os.environ`` does not follow."""
    array = ctypes.c_void_p.in_dll(_c(), "environ").value
    if array is None:
        return {}
    if not _last_read.is_of(array):
        _last_read.read(array)
    return _last_read.variables


@dataclass
class _Environment:
    """The variables as they were read from an array of addresses. One that is set again has another address: as long as
    all addresses are the same, so are the values, which takes long to read."""

    array: int = 0
    addresses: bytes = b""
    variables: dict[str, bytes] = field(default_factory=dict)

    def is_of(self, array: int) -> bool:
        return array == self.array and ctypes.string_at(array, len(self.addresses)) == self.addresses

    def read(self, array: int) -> None:
        at = ctypes.cast(array, ctypes.POINTER(ctypes.c_char_p))
        each = list(iter(map(at.__getitem__, itertools.count()).__next__, None))
        self.array, self.addresses = array, ctypes.string_at(array, (len(each) + 1) * ctypes.sizeof(ctypes.c_char_p))
        parts = [variable.partition(b"=") for variable in each if variable is not None]
        self.variables = {os.fsdecode(n): v for n, _, v in parts if not n.lstrip(b"_").startswith(_OF_LIBRARIES)}


_last_read = _Environment()


def set_environment(values: dict[str, bytes]) -> None:
    for name in environment().keys() - values.keys():
        os.environ.pop(name, None)
        os.unsetenv(name)
    for name, value in values.items():
        os.environ[name] = os.fsdecode(value)


def signal_handlers() -> dict[str, int]:
    """The addresses of the functions that run on signals of other processes; Python's ``signal`` knows its own only."""
    sigaction, action, found = _c().sigaction, ctypes.create_string_buffer(_SIGACTION_BYTES), {}
    for name, number in _SIGNALS.items():
        sigaction(number, None, action)
        # The first member. Of the others the C library leaves bits as they were in memory.
        found[name] = ctypes.c_void_p.from_buffer(action).value or 0
    return found


def set_signal_handlers(values: dict[str, int]) -> None:
    now = signal_handlers()
    for name in [name for name in values if values[name] != now[name]]:
        _c().signal(_SIGNALS[name], ctypes.c_void_p(values[name]))


def limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(number) for name, number in _LIMITS.items()}


def set_limits(values: dict[str, tuple[int, int]]) -> None:
    for name, value in values.items():
        with contextlib.suppress(ValueError, OSError):  # a lower hard limit stays
            resource.setrlimit(_LIMITS[name], value)


def umask() -> int:
    """The bits that new files do not get. They can be read only by setting them."""
    value = os.umask(0o077)
    os.umask(value)
    return value


def standard_streams() -> tuple[Any, ...]:
    """The files behind the descriptors 0 to 2, None for a closed one."""
    return tuple(map(_file_behind, range(3)))


def _file_behind(descriptor: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    return None
