"""Settings of the process that a kernel must leave as they are: what they were, and what a call made of them."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opwright.checks.settings import c_settings, python_settings
from opwright.internals.autograd import saved_tensors_hooks, set_saved_tensors_hooks
from opwright.workers.relatives import children

__all__ = [
    "RANDOM", "RANDOM_STATES", "SET_UP_ONCE", "changes", "expect_process", "random_states", "restore",
    "set_random_states", "settings", "watch_folder",
]  # fmt: skip

# Programs that compile, by what is in their command lines; packages that keep threads for their own work.
_COMPILERS = (b"torch._inductor", b"opwright/backends/cuda/nvrtc_child.py")
_LIBRARIES = ("torch", "triton", "concurrent", "multiprocessing", "tqdm", "filelock", "opwright", "kernelsim")

# The settings that a kernel may change whose contract says that it draws random numbers.
RANDOM = "the state of torch's generator"


@dataclass(frozen=True)
class _Setting:
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


def _set_deterministic(values: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(values[0], warn_only=values[1])


def _flushes_denormals() -> bool:
    return float(torch.full((), 1e-310, dtype=torch.float64, device="cpu") * 1) == 0


def _threads() -> frozenset[tuple[str, int | None]]:
    """The threads that run, except those of the libraries that compile and compute."""
    running = (thread for thread in threading.enumerate() if not _module_of(thread).startswith(_LIBRARIES))
    return frozenset((thread.name, thread.native_id) for thread in running)


def _module_of(thread: threading.Thread) -> str:
    """The module of what a thread runs: a function, or a method of its class."""
    target = getattr(thread, "_target", None)
    return str(getattr(type(thread) if target is None else target, "__module__", ""))


def _children() -> frozenset[tuple[str]]:
    """The processes that this one has started, except those in which torch and NVRTC compile."""
    return frozenset((str(pid),) for pid in children() if pid not in _own and not _compiles(pid))


_own = set[int]()  # the processes that opwright has started here


def expect_process(pid: int) -> None:
    """Take a process that this one has started for no doing of the kernel's."""
    _own.add(pid)


def _compiles(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(name in command for name in _COMPILERS)
    return True  # it has just ended


class _Folder:
    """What is in a folder. Whatever a kernel leaves there at first may be for later calls: only more of it counts."""

    def __init__(self) -> None:
        self._path = ""
        self._first: frozenset[tuple[str]] = frozenset()

    def watch(self, path: str) -> None:
        self._path, self._first = path, frozenset()

    def more(self) -> frozenset[tuple[str]]:
        now = frozenset((name,) for name in (os.listdir(self._path) if os.path.isdir(self._path) else ()))
        self._first = self._first or now
        return now - self._first


_temporary = _Folder()


def watch_folder(path: str) -> None:
    """Observe the folder in which this process, and no other, makes temporary files."""
    _temporary.watch(path)


def _leave(value: Any) -> None:
    """Threads, processes and files cannot be set back; the worker's end ends them."""


def _of_backend(path: str) -> _Setting:
    """A setting such as ``cudnn.benchmark`` in ``torch.backends``."""
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, torch.backends)
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


# torch.get_float32_matmul_precision raises where a program sets those of backends.
_OF_BACKENDS = (
    "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic", "cudnn.conv.fp32_precision",
    "cuda.matmul.fp32_precision", "mkldnn.matmul.fp32_precision", "mkldnn.enabled",
)  # fmt: skip
_THREADS, _VARIABLES, _HANDLERS = "the threads of Python", "the environment variables", "the handlers of signals"
_FILTERS, _PATH = "the filters of warnings", "sys.path"
_NUMPY = "the state of NumPy's random"
_OBJECTS = "sys.stdin, stdout, stderr, displayhook or excepthook"
_SETTINGS: dict[str, _Setting] = {
    "the default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
    "the default device": _Setting(torch.get_default_device, _set_device),
    "whether gradients are recorded": _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    "the number of torch's threads": _Setting(torch.get_num_threads, torch.set_num_threads),
    "whether algorithms are deterministic": _Setting(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _set_deterministic,
    ),
    **{f"torch.backends.{path}": _of_backend(path) for path in _OF_BACKENDS},
    "whether denormal numbers are flushed to zero": _Setting(_flushes_denormals, torch.set_flush_denormal),
    RANDOM: _Setting(lambda: torch.get_rng_state().numpy().tobytes(), lambda state: torch.set_rng_state(_bytes(state))),
    "the state of Python's random": _Setting(random.getstate, random.setstate),
    _NUMPY: _Setting(python_settings.numpy_generator, python_settings.set_numpy_generator),
    "how NumPy treats errors": _Setting(np.geterr, python_settings.set_numpy_errors),
    "autocast": _Setting(python_settings.autocast, python_settings.set_autocast),
    "whether autograd looks for anomalies": _Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "hooks of saved tensors": _Setting(saved_tensors_hooks, set_saved_tensors_hooks),
    _FILTERS: _Setting(python_settings.filters, python_settings.set_filters),
    _OBJECTS: _Setting(python_settings.streams, python_settings.set_streams),
    _PATH: _Setting(lambda: tuple(sys.path), python_settings.set_path),
    "processors or priority": _Setting(python_settings.places, python_settings.set_places),
    "garbage collection, switches of threads, recursion, stacks or logging": _Setting(
        python_settings.tuning, python_settings.set_tuning
    ),
    "the working directory": _Setting(os.getcwd, os.chdir),
    _VARIABLES: _Setting(c_settings.environment, c_settings.set_environment),
    "the locale": _Setting(c_settings.locale, c_settings.set_locale),
    "the rounding of floating-point numbers": _Setting(c_settings.rounding, c_settings.set_rounding),
    "the traps of floating-point numbers": _Setting(c_settings.traps, c_settings.set_traps),
    _HANDLERS: _Setting(c_settings.signal_handlers, c_settings.set_signal_handlers),
    "the limits of resources": _Setting(c_settings.limits, c_settings.set_limits),
    "the bits that new files do not get (umask)": _Setting(c_settings.umask, os.umask),
    "the standard streams": _Setting(c_settings.standard_streams, _leave),
    _THREADS: _Setting(_threads, _leave),
    "the child processes": _Setting(_children, _leave),
    "the temporary files": _Setting(_temporary.more, _leave),
}
_ON_GPU: dict[str, _Setting] = {
    "the current GPU": _Setting(torch.cuda.current_device, torch.cuda.set_device),
    "the current stream": _Setting(torch.cuda.current_stream, torch.cuda.set_stream),
    "the state of the GPU's generator": _Setting(
        lambda: torch.cuda.get_rng_state().numpy().tobytes(), lambda state: torch.cuda.set_rng_state(_bytes(state))
    ),
}
# Their values say nothing to a reader.
RANDOM_STATES = frozenset({RANDOM, _NUMPY, "the state of Python's random", "the state of the GPU's generator"})
# What a library sets up for itself when a kernel first uses it.
SET_UP_ONCE = frozenset({_THREADS, _VARIABLES, _HANDLERS, _FILTERS, _PATH})
_OPAQUE = RANDOM_STATES | {"the standard streams", _FILTERS, _OBJECTS, _PATH}


def _bytes(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _known(device: str) -> dict[str, _Setting]:
    return {**_SETTINGS, **(_ON_GPU if device == "cuda" else {})}


def random_states() -> dict[str, Any]:
    """The states of the generators of random numbers on the CPU."""
    return {name: _SETTINGS[name].read() for name in _SETTINGS.keys() & RANDOM_STATES}


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set them to what they were."""
    for name, value in states.items():
        _SETTINGS[name].write(value)


def settings(device: str) -> dict[str, Any]:
    """The settings as they are."""
    return {name: setting.read() for name, setting in _known(device).items()}


def changes(before: Mapping[str, Any], device: str) -> dict[str, str]:
    """The settings that are not as before, with a text that tells how."""
    now = settings(device)
    return {
        name: "" if name in _OPAQUE else _change(before[name], now[name])
        for name in before
        if _differs(before[name], now[name])
    }


def _differs(before: Any, now: Any) -> bool:
    return bool(now - before) if isinstance(now, frozenset) else now != before


def _change(before: Any, now: Any) -> str:
    if isinstance(now, dict):  # whose values may be long, or secret
        return ", ".join(sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k)))
    if isinstance(now, frozenset):
        return f"{', '.join(sorted({name for name, *_ in now - before}))} left"
    return f"{before} before, {now} after"


def restore(before: Mapping[str, Any], names: Mapping[str, str], device: str) -> None:
    """Set some settings to what they were, so that they do not change other calls."""
    known = _known(device)
    for name in names:
        known[name].write(before[name])
