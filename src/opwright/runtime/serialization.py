"""Sends an operator to another process by value, if its module cannot be imported there.

This is for a notebook's operator, a test's local one, or a kernel attached from another module. Triton kernels are sent
as plain functions with their source and decorated again in the other process, where Triton's interpreter is chosen.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import linecache
import pickle
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

from opwright.runtime.op import Op

__all__ = ["dump", "load"]


def dump(operator: Op) -> bytes:
    """The operator by value. Raises TypeError or PicklingError if it contains an object that cannot be pickled."""
    buffer = io.BytesIO()
    with _lock, _by_value(_modules_of(operator)):
        _Pickler(buffer).dump(operator)
    return buffer.getvalue()


# cloudpickle's by-value modules are a setting of the process, and kernels are checked from several threads.
_lock = threading.Lock()


def _modules_of(operator: Op) -> list[types.ModuleType]:
    """The user's modules of an operator. Importing one in the other process would define the operator twice."""
    functions = [operator.contract.function, *(k.spec.source for k in operator.kernels.values())]
    names = {f.__module__ for f in functions if inspect.isfunction(f)} - {"__main__"}
    return [sys.modules[n] for n in names if n in sys.modules and not n.startswith("opwright.")]


@contextlib.contextmanager
def _by_value(modules: list[types.ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def load(data: bytes) -> Op:
    """The reverse of ``dump``: define the operator in this process."""
    operator = pickle.loads(data)
    assert isinstance(operator, Op)  # the bytes come from dump()
    return operator


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    def reducer_override(self, obj: Any) -> Any:
        if type(obj).__name__ in ("JITFunction", "InterpretedFunction") and hasattr(obj, "fn"):
            return _apply_jit, (obj.fn, *_source_of(obj.fn))
        return super().reducer_override(obj)


def _source_of(function: Any) -> tuple[str, str]:
    """The file name and text that ``inspect.getsource`` reads, which Triton does; a notebook cell has no file."""
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    return file, "".join(linecache.getlines(file, function.__globals__))


def _apply_jit(function: Any, file: str, text: str) -> Any:
    import triton

    if file not in linecache.cache:
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return triton.jit(function)
