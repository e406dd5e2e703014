"""The languages that kernels are written in: one file each, one line each in ``BACKENDS``.

A backend is imported when it is first asked for, so that a missing language costs nothing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator

from opwright.backends.base import Backend

__all__ = ["BACKENDS", "get_backend", "import_all", "under_check"]

BACKENDS: dict[str, str] = {
    "python": "opwright.backends.python:PythonBackend",
    "triton": "opwright.backends.triton.backend:TritonBackend",
    "cuda": "opwright.backends.cuda.backend:CudaBackend",
    "cpp": "opwright.backends.native.cpp:CppBackend",
    "mojo": "opwright.backends.mojo.backend:MojoBackend",
    "max": "opwright.backends.mojo.max:MaxBackend",
    "numpy": "opwright.backends.numpy.backend:NumpyBackend",
    "numba": "opwright.backends.numba.backend:NumbaBackend",
}


@functools.cache
def get_backend(name: str) -> Backend:
    """The backend called ``name``, which must be a key of ``BACKENDS``."""
    module, _, attribute = BACKENDS[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), attribute)()
    return backend


def import_all() -> None:
    """Import every backend, once, before processes are forked that need several of them."""
    for name in BACKENDS:
        get_backend(name)


@contextlib.contextmanager
def under_check(order: int = 1) -> Iterator[None]:
    """Enter what each language needs in a process that checks kernels (``Backend.under_check``)."""
    with contextlib.ExitStack() as stack:
        for name in BACKENDS:
            stack.enter_context(get_backend(name).under_check(order))
        yield
