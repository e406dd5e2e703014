"""What a function does that is not known to write arrays only.

Code that torch.compile compiles whole is traced, and its writes to anything else are refused. Between compiled pieces,
Python runs the function's own code. That is allowed for functions that use nothing but what is listed here.
"""

from __future__ import annotations

import builtins
import cmath
import dis
import math
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from opwright.backends.instructions import OF_OWN_VARIABLES
from opwright.backends.native.extension import is_tested_python
from opwright.backends.numba_jit.names_in_code import with_inner_codes
from opwright.backends.numpy.state import with_helpers
from opwright.errors import CompileError
from opwright.internals.numpy_layer import Array, numpy_functions

__all__ = ["refuse_unknown_arguments", "unknown_effect", "unknown_effect_in_numba"]

# Besides those of its own variables: sets, and items of containers, which are compared; and the handling of errors.
_KNOWN = OF_OWN_VARIABLES | {
    "BUILD_SET", "SET_ADD", "SET_UPDATE", "STORE_SLICE", "DELETE_SUBSCR", "GET_LEN", "PUSH_EXC_INFO",
    "POP_EXCEPT", "CHECK_EXC_MATCH", "DELETE_DEREF",
}  # fmt: skip
# What others do, in words.
_WORDS = {
    "STORE_GLOBAL": "writes the global variable", "DELETE_GLOBAL": "deletes the global variable",
    "STORE_ATTR": "writes the attribute", "DELETE_ATTR": "deletes the attribute", "IMPORT_NAME": "imports",
    "BEFORE_WITH": "enters a context", "LOAD_BUILD_CLASS": "defines a class", "YIELD_VALUE": "yields",
    "LOAD_SUPER_ATTR": "uses super()",
}  # fmt: skip
_BUILTINS = frozenset({
    "abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "float", "frozenset", "int", "isinstance",
    "len", "list", "max", "min", "pow", "range", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple",
    "zip", "True", "False", "None",
})  # fmt: skip
# Functions of NumPy that torch's NumPy layer does not have, and that have no effects.
_OF_NUMPY = frozenset({
    "accumulate", "argpartition", "asfortranarray", "c_", "compress", "delete", "digitize", "ediff1d", "extract",
    "finfo", "frexp", "histogram2d", "iinfo", "in1d", "inf", "insert", "interp", "intersect1d", "isin", "ix_",
    "lexsort", "mgrid", "nan", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian",
    "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "ndenumerate", "ndindex", "newaxis", "ogrid", "packbits",
    "partition", "pi", "polyfit", "polyval", "r_", "ravel_multi_index", "reduce", "reduceat", "roots", "select",
    "setdiff1d", "spacing", "trapezoid", "trapz", "trim_zeros", "union1d", "unpackbits", "unravel_index", "unwrap",
})  # fmt: skip
_OF_ARRAYS = frozenset({"base", "byteswap", "flags", "item", "strides", "tobytes", "tolist"})
# What they change is compared, where a caller can see it.
_OF_CONTAINERS = frozenset({
    "add", "append", "clear", "copy", "count", "discard", "extend", "get", "index", "insert", "items", "keys", "pop",
    "popitem", "remove", "reverse", "setdefault", "sort", "update", "values",
})  # fmt: skip


def _attributes() -> frozenset[str]:
    spaces = (numpy_functions, getattr(numpy_functions, "linalg", None), getattr(numpy_functions, "fft", None))
    every = (*spaces, Array, math, cmath)
    found = frozenset(name for space in every for name in dir(space) if not name.startswith("_"))
    return (found | _OF_NUMPY | _OF_ARRAYS | _OF_CONTAINERS) - {"random", "resize", "setflags", "tofile"}


def unknown_effect(function: Callable[..., Any]) -> str:
    """What a function, or one of its file that it calls, does that may have an effect outside of arrays.

    "" if everything is known.
    """
    if not isinstance(function, types.FunctionType):
        return "is not a function of Python"
    if not is_tested_python():
        return "is compiled for a Python whose instructions are not known"
    known = _attributes()
    return next((effect for each in with_helpers(function) for effect in _of_function(each, known)), "")


def _of_function(function: types.FunctionType, known: frozenset[str]) -> Iterator[str]:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for code in with_inner_codes(function.__code__):
        for step in dis.get_instructions(code):
            name = step.argval
            if step.opname not in _KNOWN:
                yield f"{_WORDS.get(step.opname, f'does {step.opname} of')} {name}"
            elif step.opname in ("STORE_DEREF", "DELETE_DEREF") and name in cells:
                yield f"writes the variable {name} of the function around it"
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and name not in known:
                yield f"uses .{name}"
            elif step.opname == "LOAD_GLOBAL":
                if not _is_known_global(name, function):
                    yield f"uses {name}"
            elif step.opname == "LOAD_DEREF" and name in cells and not _is_known(_contents(cells[name]), function):
                yield f"uses {name}"


def _is_known_global(name: str, function: types.FunctionType) -> bool:
    if name in function.__globals__:
        return _is_known(function.__globals__[name], function)
    value = getattr(builtins, name, None)
    return name in _BUILTINS or (isinstance(value, type) and issubclass(value, Exception))


def _is_known(value: Any, function: types.FunctionType) -> bool:
    if any(value is module for module in (np, np.linalg, np.fft, math, cmath)):
        return True
    if isinstance(value, types.FunctionType):
        return value.__module__ == function.__module__  # it is looked at, too
    if isinstance(value, types.ModuleType):
        return False
    if getattr(value, "__module__", None) in ("numpy", "numpy.linalg", "math", "cmath") and callable(value):
        return getattr(value, "__name__", "") in _attributes()
    return isinstance(value, np.ufunc) or _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Whether it is data: operations and calls of it have no effects."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    plain = (np.ndarray, np.generic, np.dtype, torch.Tensor, int, float, complex, str, bytes, slice, range)
    is_class = isinstance(value, type) and (issubclass(value, np.generic) or value in (bool, int, float, complex))
    return value is None or value is Ellipsis or is_class or isinstance(value, plain)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return cell


_COMPILED_BY_NUMBA = frozenset({"numpy", "math", "cmath", "operator", "builtins", "numba", "scipy", "opwright"})


def unknown_effect_in_numba(function: Callable[..., Any]) -> str:
    """What a function that Numba compiles calls that may have an effect outside of arrays.

    Numba refuses most effects itself: what remains is output, Python code within compiled code, and functions in C.
    """
    waiting, seen = [function], set()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, types.FunctionType) or id(each) in seen:
            continue
        seen.add(id(each))
        for name, value in _named(each):
            target = getattr(value, "py_func", value)
            if isinstance(target, types.FunctionType) and target.__module__.partition(".")[0] not in _COMPILED_BY_NUMBA:
                waiting.append(target)
            elif name in ("print", "input", "open", "objmode") or (callable(target) and not _is_of_numba(target)):
                return f"calls {name}"
    return ""


def _named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The names that a function reads from outside, and those of attributes, with the value of each that has one."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, _contents(cell)) for name, cell in cells)
    for name in {name for code in with_inner_codes(function.__code__) for name in code.co_names}:
        yield name, function.__globals__.get(name, getattr(builtins, name, None))


def _is_of_numba(value: Any) -> bool:
    kind = type(value).__module__ if not isinstance(value, type | types.BuiltinFunctionType) else ""
    module = getattr(value, "__module__", None) or kind or "builtins"
    return str(module).partition(".")[0] in _COMPILED_BY_NUMBA


def refuse_unknown_arguments(leaves: Iterable[Any], who: str) -> None:
    """Refuse arguments of code that runs in pieces whose operations and calls may have effects.

    Raises:
        CompileError: with the class of the argument.
    """
    for leaf in leaves:
        if not (_is_plain(leaf) or hasattr(leaf, "__dlpack__")):
            raise CompileError(
                f"{who}: an argument is of class {type(leaf).__name__}, whose effects are not known",
                fix="pass arrays and numbers, or leave out allow_breaks=True",
            )
