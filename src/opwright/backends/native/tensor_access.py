"""How native code gets tensors from Python objects in this Python and this torch.

The C++ side of it is ``templates/python_tensor.h``, and in extensions of ours ``templates/extension.h``.
"""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from pathlib import Path
from typing import Any

import torch

from opwright.internals.tensors import address_in_object

__all__ = ["LIBRARIES", "access_to_tensors", "address_of", "python_headers"]

LIBRARIES = Path(torch.__file__).parent / "lib"
# ``PyObject* THPVariable_Wrap(const at::TensorBase&)``
_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"


def python_headers() -> Path | None:
    """The folder of this Python's headers; None if they are not installed."""
    folder = Path(sysconfig.get_path("include"))
    return folder if (folder / "Python.h").is_file() else None


@functools.cache
def access_to_tensors() -> tuple[int, int | None] | None:
    """The offset of the C++ tensor in a Python tensor (0: unknown), and the address of torch's function that wraps one.

    torch 2.14 has functions that need neither, which a shared object finds itself. None if neither is known.
    """
    offset = _offset_of_tensor()
    if hasattr(ctypes.CDLL(str(LIBRARIES / "libtorch_cpu.so")), "torch_tensor_from_pyobject"):
        return offset or 0, None
    python = ctypes.CDLL(str(LIBRARIES / "libtorch_python.so"))
    wrap = getattr(python, _WRAP, None)
    if offset is None or wrap is None:
        return None
    return offset, address_of(wrap)


def _offset_of_tensor() -> int | None:
    tensor = torch.empty(0)
    address = address_in_object(tensor)
    if address is None:
        return None
    for offset in range(object.__basicsize__, torch.Tensor.__basicsize__, ctypes.sizeof(ctypes.c_void_p)):
        if ctypes.c_void_p.from_address(id(tensor) + offset).value == address:
            return offset
    return None


def address_of(function: Any) -> int:
    """The address of a C function that ctypes loaded."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None  # the function exists
    return address
