"""Sends an operator to another process by value, if its module cannot be imported there.

This is for a notebook's operator, a test's local one, or a kernel attached from another module. Triton kernels are sent
as plain functions with their source and decorated again in the other process, where Triton's interpreter is chosen.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import linecache
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import jaxtyping
import torch
from jaxtyping import AbstractDtype

from opwright.backends.base import KernelSpec
from opwright.contract.fingerprint import names_in_code
from opwright.internals.triton import is_gluon
from opwright.runtime.kernel import Kernel
from opwright.runtime.op import Op
from opwright.runtime.register import registration

__all__ = ["dump", "load"]


def dump(operator: Op) -> bytes:
    """The operator by value. Raises TypeError or PicklingError if it contains an object that cannot be pickled."""
    buffer = io.BytesIO()
    with _lock, _by_value(_modules_of(operator)):
        _Pickler(buffer).dump((operator, _named_by(operator) if operator._brings_others else []))
    return buffer.getvalue()


# cloudpickle's by-value modules are a setting of the process, and kernels are checked from several threads.
_lock = threading.Lock()


def _modules_of(operator: Op) -> list[types.ModuleType]:
    """The user's modules of an operator. Importing one in the other process would define the operator twice."""
    functions = [operator.contract.function, *(k.spec.source for k in operator.kernels.values())]
    names = {f.__module__ for f in functions if inspect.isfunction(f)} - {"__main__"}
    return [sys.modules[n] for n in names if n in sys.modules and not n.startswith("opwright.")]


def _named_by(operator: Op) -> list[Op]:
    """Other operators that an operator's functions call by name, as ``torch.ops.namespace.name``: their module is not
    imported in the other process either."""
    found: dict[str, Op] = {}
    waiting = [operator]
    while waiting:
        one = waiting.pop()
        functions = [one.contract.function, *(k.spec.source for k in one.kernels.values())]
        names = {name for f in functions if inspect.isfunction(f) for name in _names_in(f, set())}
        for qualname in (f"{namespace}::{name}" for namespace in names for name in names):
            other = registration.find(qualname)
            if isinstance(other, Op) and other is not operator and qualname not in found:
                found[qualname] = other
                waiting.append(other)
    return list(found.values())


def _names_in(function: Any, seen: set[int]) -> Iterator[str]:
    """The names in a function's code, and in the functions of its module and its closure that it calls."""
    if id(function) in seen:
        return
    seen.add(id(function))
    names = set(names_in_code(function.__code__))
    yield from names
    captured = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a name that is not assigned yet
            captured.append(cell.cell_contents)
    for reached in (*map(function.__globals__.get, names), *captured):
        if inspect.isfunction(reached) and reached.__module__ == function.__module__:
            yield from _names_in(reached, seen)


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
    operator, _ = pickle.loads(data)
    assert isinstance(operator, Op)  # the bytes come from dump()
    return operator


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Op):
            is_plain = type(obj)._by_value is Op._by_value  # others, such as mutants, say what they become
            is_ours = obj.contract.module.startswith("opwright.")
            return _of_gallery(obj) if is_plain and is_ours else obj._by_value()
        if isinstance(obj, types.CodeType):
            make, arguments = self.dispatch_table[types.CodeType](obj)
            return _code_of_file, (make, arguments, obj.co_filename)
        if isinstance(obj, _BY_PATH):
            return _reduce_torch_operator(obj)
        if isinstance(obj, torch.Tensor) and type(obj) is torch.Tensor and _is_sent_as_integers(obj):
            bits = obj.detach().view(_BITS[obj.dtype.itemsize])
            return _tensor_of_bits, (bits, obj.dtype, obj.requires_grad)
        if isinstance(obj, type) and issubclass(obj, AbstractDtype) and vars(jaxtyping).get(obj.__name__) is not obj:
            return _make_dtype_class, (obj.__name__, obj.__module__, obj.dtypes)
        if isinstance(obj, _CACHED) and _is_sent_by_value(obj.__wrapped__):
            return _with_cache, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType and obj.__name__ in sys.modules:
            return importlib.import_module, (obj.__name__,)  # such as torch.backends.cudnn
        if type(obj).__name__ in _JITTED and hasattr(obj, "fn"):
            return _apply_jit, (obj.fn, *_source_of(obj.fn), _jit_options(obj), is_gluon(obj))
        return super().reducer_override(obj)


def _of_gallery(operator: Op) -> Any:
    """An operator of this package, to which somebody has attached kernels: it is imported, and gets these. Its own
    functions name it, and would call another one than that defined by value."""
    specs = tuple(kernel.spec for kernel in operator.kernels.values())
    found = _imported, (operator.contract.module, operator.contract.qualname)
    return *found, (specs, _rules_of(operator)), None, None, _with_kernels


def _rules_of(operator: Op) -> list[str]:
    return [operator.contract.fingerprint, *operator._rules.fingerprint]


def _imported(module: str, qualname: str) -> Any:
    importlib.import_module(module)
    return registration.find(qualname)


def _with_kernels(operator: Op, state: tuple[tuple[KernelSpec, ...], list[str]]) -> None:
    specs, rules = state
    operator.kernels = {spec.name: Kernel(spec, operator.contract) for spec in specs}
    operator._changed()
    if _rules_of(operator) != rules:
        raise TypeError(f"{operator.contract.qualname} has rules that its module does not register")


def reduce_for_cloudpickle(operator: Op) -> Any:
    """An operator of a script or a notebook, as cloudpickle sends their functions: by value."""
    return operator._by_value() if _is_sent_by_value(operator.contract.function) else operator.__reduce__()


# -- code ---------------------------------------------------------------------------------------------------------


def _code_of_file(make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str) -> types.CodeType:
    """Code with its file's name, which errors name and mutation looks for; cloudpickle 3.1.3 does not send it."""
    return make(*arguments).replace(co_filename=file)


# -- operators of torch, by name ----------------------------------------------------------------------------------

# The types of torch.ops, of a namespace, of an operator with all its overloads, and of one overload.
_BY_PATH = (type(torch.ops), type(torch.ops.aten), type(torch.ops.aten.relu), type(torch.ops.aten.relu.default))


def _reduce_torch_operator(found: Any) -> tuple[Any, tuple[Any, ...]]:
    """By its path in ``torch.ops``; an operator of opwright, which the other process may lack, by value."""
    if isinstance(found, _BY_PATH[:2]):
        return _by_path, (found.__name__.removeprefix("torch.ops").lstrip("."),)
    path = str(found)  # aten.relu, or aten.relu.default
    namespace, name, *overload = path.split(".")
    own = registration.find(f"{namespace}::{name}")
    return (_by_path, (path,)) if own is None else (_of_operator, (own, bool(overload)))


def _by_path(path: str) -> Any:
    found: Any = torch.ops
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


def _of_operator(operator: Op, is_overload: bool) -> Any:
    return operator.overload if is_overload else operator.overload.overloadpacket


# -- tensors whose dtypes torch does not unpickle -------------------------------------------------------------------

_PICKLED = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip
# Integers of so many bytes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _is_sent_as_integers(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    return plain and tensor.dtype not in _PICKLED and tensor.dtype.itemsize in _BITS


def _tensor_of_bits(bits: torch.Tensor, dtype: torch.dtype, requires_grad: bool) -> torch.Tensor:
    return bits.view(dtype).requires_grad_(requires_grad)


# -- classes of dtypes ----------------------------------------------------------------------------------------------


def _make_dtype_class(name: str, module: str, dtypes: Any) -> type:
    """A class like ``jaxtyping.Float``, which needs its dtypes while it is made."""
    return type(name, (AbstractDtype,), {"dtypes": dtypes, "__module__": module})


# -- functions with a cache -----------------------------------------------------------------------------------------

_CACHED = type(functools.lru_cache(lambda: None))


def _is_sent_by_value(function: Any) -> bool:
    modules = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    return "<locals>" in function.__qualname__ or function.__module__ in modules


def _with_cache(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


# -- Triton's kernels -----------------------------------------------------------------------------------------------


_JITTED = ("JITFunction", "InterpretedFunction", "GluonJITFunction")
_JIT_OPTIONS = (
    "version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline", "launch_metadata"
)  # fmt: skip


def _source_of(function: Any) -> tuple[str, str]:
    """The file name and text that ``inspect.getsource`` reads, which Triton does; a notebook cell has no file."""
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    return file, "".join(linecache.getlines(file, function.__globals__))


def _jit_options(kernel: Any) -> dict[str, Any]:
    """What ``triton.jit`` was given besides the function."""
    if type(kernel).__name__ == "InterpretedFunction":
        return dict(kernel.kwargs)
    return {name: value for name in _JIT_OPTIONS if (value := getattr(kernel, name, None))}


def _apply_jit(function: Any, file: str, text: str, options: dict[str, Any], is_gluon: bool) -> Any:
    if file not in linecache.cache:
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    language = importlib.import_module("triton.experimental.gluon" if is_gluon else "triton")
    return language.jit(**options)(function)
