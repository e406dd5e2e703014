"""Finds the Python function that a shared object exports beside its operator (``templates/python_call.h``).

Shared objects of packages have it, too. They are built for Python's stable ABI, and find Python's functions in the
process, so that they also load where there is no Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opwright.backends.native.tensor_access import access_to_tensors

__all__ = ["python_function"]

_EXPORTED = "opwright_python_function"


def python_function(file: Path, unique: str) -> Callable[..., Any] | None:
    """The host function as a Python function, which does not check its arguments; None if it was built without Python's
    headers, has arguments that only the dispatcher passes, or if the layout of this torch's tensors is not known."""
    library = ctypes.PyDLL(str(file))
    make = getattr(library, f"{_EXPORTED}_{unique}", None) or getattr(library, _EXPORTED, None)
    access = access_to_tensors()
    if make is None or access is None:
        return None
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_size_t, ctypes.c_void_p]
    function: Callable[..., Any] | None = make(*access)
    return function
