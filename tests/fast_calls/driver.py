"""An imitated driver: launchers around ``ow.cuda_module`` kernels are recorded and repeated on CPU tensors.

``driver.cpp`` has the kernels of ``launched.cu`` as functions on the CPU. A launch in Python calls them directly, a
recorded one through the imitated ``cuLaunchKernel``, which counts its calls. On a GPU nothing is imitated.

This file knows private names of the recorder; nothing else in this folder does, but for ``forms.py``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import opwright as ow
from opwright.backends.cuda import module as cuda_module
from opwright.backends.cuda.backend import CudaBackend
from opwright.backends.gpu.arguments import Packer
from opwright.backends.gpu.device_code import Parameter, typed_parameter
from opwright.backends.gpu.launcher import _recorded
from opwright.backends.gpu.recording import Recorder, plain_number
from opwright.backends.native import native_call
from opwright.backends.native.native_call import GpuKernel
from opwright.backends.native.tensor_access import address_of
from opwright.fast_path import recorded_launch
from opwright.machine import this_machine
from opwright.results import Accepted

__all__ = ["KERNELS", "forget_launches", "imitate", "is_available", "recorded_launches"]

_HERE = Path(__file__).parent
KERNELS = ow.cuda_module((_HERE / "launched.cu").read_text())
# The parameters of each kernel, as a demangler writes their types. A kernel's handle is its place, from 1.
_PARAMETERS = {
    "scale": ("float const*", "float*", "float", "int"),
    "subtract": ("float const*", "float const*", "float*", "int"),
    "increase": ("float*", "int", "int"),
}
_CPU = -1


def is_available() -> bool:
    """Whether the driver can be compiled."""
    return this_machine().cxx is not None


@functools.cache
def _driver() -> ctypes.CDLL:
    """The compiled driver, from a folder that later processes find again."""
    source = _HERE / "driver.cpp"
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    file = Path(tempfile.gettempdir()) / f"opwright-imitated-driver-{key}-{os.getuid()}.so"
    if not file.exists():
        compiler = this_machine().cxx
        assert compiler is not None, "see is_available"
        unfinished = file.with_suffix(f".{os.getpid()}")
        flags = ["-shared", "-fPIC", "-O1", "-ffp-contract=off"]
        subprocess.run([compiler.path, *flags, str(source), "-o", str(unfinished)], check=True)
        unfinished.replace(file)
    return ctypes.CDLL(str(file))


def recorded_launches() -> int:
    """How many launches the imitated driver has made: those of recorded launchers."""
    return ctypes.c_int64.in_dll(_driver(), "launches").value


class _ImitatedFunction:
    """A kernel on the CPU, with the part of ``DeviceFunction``'s interface that a recording uses."""

    def __init__(self, name: str) -> None:
        self._handle = [*_PARAMETERS].index(name) + 1
        self._parameters = [_parameter(text) for text in _PARAMETERS[name]]
        self._packer = Packer(name, self._parameters)

    def launch(self, configuration: Any, arguments: Sequence[Any]) -> None:
        words = self._packer.pack(arguments, _CPU)
        blocks, threads = _product(configuration.grid), _product(configuration.block)
        array = (ctypes.c_int64 * 4)(*words)
        _driver().opwright_launch(ctypes.c_int64(self._handle), ctypes.c_int64(blocks), ctypes.c_int64(threads), array)

    def recorded(self, arguments: Sequence[Any], device: int, recorder: Recorder) -> list[Any]:
        words = self._packer.pack([plain_number(argument) for argument in arguments], device)
        kinds = self._packer.native_arguments or [None] * len(words)
        parts = zip(arguments, words, self._parameters, kinds, strict=True)
        return [_recorded(recorder, *each) for each in parts]

    def prepared(self, configuration: Any, device: int) -> GpuKernel:
        return GpuKernel(
            self._handle, configuration.grid, configuration.block, configuration.shared_bytes, len(self._parameters)
        )


def forget_launches() -> None:
    """Prepare the next launch of each kernel anew: the first one with a configuration calls other functions of torch
    than later ones."""
    for name in _PARAMETERS:
        KERNELS[name]._configured.clear()


def _parameter(type_name: str) -> Parameter:
    return typed_parameter(type_name, 8 if type_name.endswith("*") else 4, "pointer")


def _product(extent: Sequence[int]) -> int:
    return extent[0] * extent[1] * extent[2]


def imitate() -> None:
    """From now on in this process, launchers in CUDA take CPU tensors, and are recorded with them."""
    functions = {name: _ImitatedFunction(name) for name in _PARAMETERS}

    def run(source: Any, name: str, configuration: Any, arguments: Sequence[Any], *_: Any) -> None:
        if not configuration.is_empty:
            functions[name].launch(configuration, arguments)

    cuda_module.simulate = run  # type: ignore[assignment]
    for name, function in functions.items():
        KERNELS[name]._functions[_CPU] = function  # type: ignore[assignment]
    CudaBackend.probe = lambda *_: Accepted()  # type: ignore[method-assign]
    recorded_launch._are_on_a_gpu = lambda arguments: True
    addresses = tuple(
        address_of(f) for f in (_driver().cuLaunchKernel, _driver().current_stream, _driver().current_device)
    )
    native_call.gpu_functions = lambda: addresses  # type: ignore[assignment]
