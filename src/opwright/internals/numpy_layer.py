"""torch's NumPy on tensors, and its two settings that are global in a process: the default float dtype, and the device
on which compiled code makes arrays. Patches of them act in a block only, and depend on this thread's block.

Also the writes to Python objects in NumPy code that torch.compile traces, which it repeats after a graph has run. It
knows every one of them: what it does not know, it does not trace. They are refused while they are traced, before any
code runs.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from opwright.internals.lookup import all_found, find

__all__ = [
    "Array", "OutsideWriteError", "arrays_made_by", "can_refuse_writes", "default_dtypes", "has_numpy",
    "is_device_constructor", "numpy_functions", "reset_run_call", "set_run_call", "without_default_device",
]  # fmt: skip

# NumPy's namespace and its array, on tensors. None if this torch has none.
numpy_functions: Any = find("numpy")


class _NoArray:
    """Replaces the array type if this torch has none."""


Array: Any = find("numpy_array") or _NoArray


def has_numpy() -> bool:
    """Whether this torch has NumPy on tensors."""
    return numpy_functions is not None and Array is not _NoArray


class _PatchedWhileUsed:
    """A patch of the process that is active while at least one block, in any thread, uses it."""

    def __init__(self, install: Callable[[], Callable[[], None]]) -> None:
        self._install = install
        self._users = 0
        self._restore: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._restore = self._install()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._restore()


# -- the default float dtype -----------------------------------------------------------------------------------------

_dtypes: contextvars.ContextVar[tuple[torch.dtype, torch.dtype] | None] = contextvars.ContextVar(
    "opwright_numpy_dtypes", default=None
)


def _patch_default_dtypes() -> Callable[[], None]:
    module: Any = find("numpy_dtypes")
    if module is None:
        return lambda: None
    before = module.default_dtypes()

    class BlockDtypes(type(before)):  # type: ignore[misc]
        """torch's record of default dtypes, with other values for threads in a block."""

        @property
        def float_dtype(self) -> Any:
            chosen = _dtypes.get()
            return self[0] if chosen is None else chosen[0]

        @property
        def complex_dtype(self) -> Any:
            chosen = _dtypes.get()
            return self[1] if chosen is None else chosen[1]

    ours = module._default_dtypes = BlockDtypes(*before)

    def restore() -> None:
        if module._default_dtypes is ours:  # unless they were changed in the meantime
            module._default_dtypes = before

    return restore


_patched_dtypes = _PatchedWhileUsed(_patch_default_dtypes)


@contextlib.contextmanager
def default_dtypes(floating: torch.dtype, complex_: torch.dtype) -> Iterator[None]:
    """A block in which, in this thread, torch's NumPy uses these dtypes by default."""
    token = _dtypes.set((floating, complex_))
    try:
        with _patched_dtypes.use():
            yield
    finally:
        _dtypes.reset(token)


# -- the device of new arrays ----------------------------------------------------------------------------------------

# Runs one NumPy call of a traced graph: takes torch's wrapper of the call, and the call's arguments.
RunCall = Callable[..., Any]
_run_call: contextvars.ContextVar[RunCall | None] = contextvars.ContextVar("opwright_numpy_calls", default=None)
# The original __call__ of torch's wrappers of NumPy's functions, methods and operators, by type.
_original_calls: dict[type, Callable[..., Any]] = {}


def _patch_calls() -> None:
    for wrapper in (w for w in map(find, ("numpy_calls", "numpy_methods", "numpy_operators")) if w is not None):
        _original_calls[wrapper] = wrapper.__call__
        wrapper.__call__ = _call
    _patch_dtype()
    _patch_writes(lambda: _run_call.get() is not None)


def _patch_dtype() -> None:
    """Answer ``array.dtype`` while torch.compile traces in such a block, which torch itself refuses."""
    arrays, dtypes = find("traced_array"), find("traced_dtype")
    if arrays is None or dtypes is None:
        return
    method = next((name for name in _GET_ATTRIBUTE if name in vars(arrays)), None)
    if method is None:
        return
    original = getattr(arrays, method)

    def get_attribute(variable: Any, tx: Any, name: str) -> Any:
        if name != "dtype" or _run_call.get() is None:
            return original(variable, tx, name)
        tensor = variable.as_proxy().node.meta["example_value"]
        return dtypes(np.dtype(str(tensor.dtype).removeprefix("torch.")))

    setattr(arrays, method, get_attribute)


# Dynamo's access to an attribute, in torch 2.13 and in torch 2.15.
_GET_ATTRIBUTE = ("var_getattr", "tp_getattro_impl")


def _call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    run = _run_call.get()
    if run is None:
        return _original_calls[type(wrapper)](wrapper, *args, **kwargs)
    return run(wrapper, *args, **kwargs)


_installed = threading.Lock()


@contextlib.contextmanager
def arrays_made_by(run: RunCall) -> Iterator[None]:
    """A block in which, in this thread, ``run`` runs the NumPy calls of traced graphs."""
    token = set_run_call(run)
    try:
        yield
    finally:
        reset_run_call(token)


def set_run_call(run: RunCall) -> contextvars.Token[RunCall | None]:
    """Begin such a block; returns what ends it."""
    if not _original_calls:
        with _installed:  # once, and for good: outside of such blocks, torch's own functions run
            if not _original_calls:
                _patch_calls()
    return _run_call.set(run)


def reset_run_call(token: contextvars.Token[RunCall | None]) -> None:
    """End such a block."""
    _run_call.reset(token)


def is_device_constructor(function: Any) -> bool:
    """Whether a torch function makes tensors on the device of an enclosing ``torch.device(...)``."""
    constructors = find("device_constructors")
    return constructors is not None and function in constructors()


def can_place_arrays() -> bool:
    """Whether compiled NumPy can make its arrays on a GPU."""
    keys = (
        "numpy_calls", "numpy_methods", "numpy_operators", "device_context", "device_constructors", "pop_function_mode",
        "function_mode_count", "function_mode_at",
    )  # fmt: skip
    return all_found(*map(find, keys))


@contextlib.contextmanager
def without_default_device() -> Iterator[None]:
    """A block in which an enclosing ``with torch.device(...)`` has no effect."""
    if not can_place_arrays():
        yield
        return
    context, pop = find("device_context"), find("pop_function_mode")
    count, at = find("function_mode_count"), find("function_mode_at")
    assert context is not None and pop is not None and count is not None and at is not None  # noqa: PT018
    with contextlib.ExitStack() as stack:
        while count() and isinstance(at(count() - 1), context):
            stack.enter_context(pop())
        yield


def default_device_is_chosen() -> bool:
    """Whether ``with torch.device(...)`` or ``torch.set_default_device`` may be active."""
    count, is_on = find("function_mode_count"), find("function_modes")
    return count is None or is_on is None or bool(count() > 0 or is_on())


# -- writes to Python objects ------------------------------------------------------------------------


class OutsideWriteError(Exception):
    """NumPy code writes to an object that was there before the call; it may write to arrays only."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.message = f"it writes to {what}, outside of its arrays"
        self.fix = "return the new value, or write it where the function is called; arrays may be written: a[...] = b"


def can_refuse_writes() -> bool:
    """Whether this torch reports writes while it traces."""
    return _side_effects() is not None


def _side_effects() -> Any:
    return find("side_effects", lambda found: callable(found.store_attr) and callable(found.mutation))


def _patch_writes(is_active: Callable[[], bool]) -> None:
    """Refuse writes to objects that were there before, in traces during which ``is_active``.

    ``x.total += a`` of an array stores the same array again, which is not a write to ``x``.
    """
    side_effects = _side_effects()
    if side_effects is None:
        return
    store_attr, mutation = side_effects.store_attr, side_effects.mutation

    def checked_store(self: Any, item: Any, name: str, value: Any, *args: Any, **keywords: Any) -> None:
        if is_active() and _was_there(item):
            if _is_same_array(item, name, value):
                return
            raise OutsideWriteError(_described(item, name))
        store_attr(self, item, name, value, *args, **keywords)

    def checked_mutation(self: Any, item: Any, *args: Any, **keywords: Any) -> None:
        if is_active() and _was_there(item):
            raise OutsideWriteError(_described(item))
        mutation(self, item, *args, **keywords)

    side_effects.store_attr, side_effects.mutation = checked_store, checked_mutation


def _was_there(item: Any) -> bool:
    """Whether a traced object was there before the call; torch.compile marks the others as new."""
    return not type(item.mutation_type).__name__.endswith("New")


def _is_same_array(item: Any, name: str, value: Any) -> bool:
    """Whether the value is the array that the attribute or variable has, perhaps written in place."""
    if not (isinstance(value, find("traced_array") or ()) and hasattr(item, "value")):
        return False
    if type(inspect.getattr_static(item.value, name, None)) is not np.ndarray:  # a number is never written in place
        return False
    node, wrapper = value.as_proxy().node, find("numpy_operators")
    while wrapper is not None and isinstance(node.target, wrapper) and node.target.op.__name__ in _IN_PLACE:
        node = node.args[0]
        if not hasattr(node, "meta"):  # a number
            return False
    source: Any = getattr(node.meta.get("grapharg"), "source", None)
    if type(source).__name__ == "NumpyTensorSource":
        source = source.base
    return bool(getattr(source, "member", None) == name and source.base == item.source)


_IN_PLACE = frozenset({
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
    "imatmul",
})  # fmt: skip


def _described(item: Any, name: str = "") -> str:
    """The object that is written, as it is read in the function."""
    if name == "cell_contents":
        return "a variable of the function around it"
    place = _shown(getattr(item, "source", None))
    if "Global" in type(item).__name__ or (name and not place):
        return f"the global variable {name}"
    if name:
        return f"{place}.{name}"
    return f"{place or 'an object'}, which was there before"


def _shown(source: Any) -> str:
    """The name by which a value is read; "" for a module."""
    text = str(getattr(source, "global_name", None) or getattr(source, "member", ""))
    if text.startswith("__import_"):
        return ""
    base = _shown(source.base) if hasattr(source, "base") else ""
    return f"{base}.{text}" if base and text else text
