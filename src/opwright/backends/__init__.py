"""The languages that kernels are written in: one file each, one line each in ``BACKENDS``.

A backend is imported when it is first asked for, so that a missing language costs nothing.
"""

from __future__ import annotations

import functools
import importlib

from opwright.backends.base import Backend

__all__ = ["BACKENDS", "get_backend"]

BACKENDS: dict[str, str] = {
    "python": "opwright.backends.python:PythonBackend",
    "triton": "opwright.backends.triton:TritonBackend",
    "cuda": "opwright.backends.cuda:CudaBackend",
    "cpp": "opwright.backends.cpp:CppBackend",
    "mojo": "opwright.backends.mojo:MojoBackend",
    "numpy": "opwright.backends.numpy:NumpyBackend",
}


@functools.cache
def get_backend(name: str) -> Backend:
    """The backend called ``name``, which must be a key of ``BACKENDS``."""
    module, _, attribute = BACKENDS[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), attribute)()
    return backend
