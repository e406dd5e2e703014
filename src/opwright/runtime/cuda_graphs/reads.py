"""Observes one run of a function: which Python code it executed, and which tensors it read that it did not make."""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from opwright import tree
from opwright.internals.compiler import DispatchMode
from opwright.internals.slow_imports import DYNAMO
from opwright.internals.tensors import memory_of

__all__ = ["Reads", "globals_read_by", "is_library", "names_read_by", "observing", "restoring"]

# Code of these packages reads its own globals, which are settings and caches. Those of all other code are compared.
_LIBRARIES = frozenset({"torch", "triton", "numpy", "opwright", "kernelsim"}) | sys.stdlib_module_names
# These operations take a tensor that was made just now from a Python value or from a NumPy array. Those of cuDNN's
# recurrent networks take a ``dropout_state``, which torch keeps, and detaches before. A detached tensor was not read:
# what reads it is noted.
_DETACH = torch.ops.aten.detach.default
_FRESH = frozenset({"aten::lift", "aten::lift_fresh", "aten::lift_fresh_copy"})
# Operations on a batch update these arguments, which their schemas do not say.
_STATISTICS = frozenset({"running_mean", "running_var"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"})
_BY_STRING = frozenset({"getattr", "hasattr", "attrgetter", "__getattribute__"})


class Reads:
    """The code that a run executed and the tensors that it read.

    Attributes:
        codes: each executed code object with its global variables.
        names_by_object: for the id of an object, the names in torch's own methods that ran on it.
        external: each tensor that an operation read, and that is neither given nor made in the run, by its memory.
        before: the external tensors that the run wrote, each with a copy from before.
        operations: the number of operations that run now; what is made within one is not observed.
        has_recurrent_dropout: whether a recurrent network dropped elements by the ``dropout_state`` that torch keeps.
    """

    def __init__(self, given: Sequence[Tensor]) -> None:
        self.codes: dict[CodeType, dict[str, Any]] = {}
        self.names_by_object: dict[int, set[str]] = {}
        self.external: dict[tuple[str, int], Tensor] = {}
        self.before: list[tuple[Tensor, Tensor]] = []
        self._given = {memory_of(tensor) for tensor in given}
        self._made: set[tuple[str, int]] = set()
        self.operations = 0
        self.has_recurrent_dropout = False

    def note_read(self, tensor: Tensor) -> None:
        """Note a tensor that the run read, or that it returned."""
        memory = memory_of(tensor)
        if memory not in self._given and memory not in self._made:
            self.external.setdefault(memory, tensor)

    def note_made(self, tensor: Tensor) -> None:
        """Note the result of an operation. It may be a view of an external tensor, which stays external."""
        memory = memory_of(tensor)
        if memory not in self.external:
            self._made.add(memory)

    def note_written(self, tensor: Tensor) -> None:
        """Note a tensor, which has been read, before an operation writes it."""
        read = self.external.get(memory_of(tensor))
        if read is not None and not any(tensor is known for known, _ in self.before):
            self.before.append((tensor, tensor.detach().clone()))

    @property
    def written(self) -> list[Tensor]:
        """The external tensors that the run wrote."""
        return [tensor for tensor, _ in self.before]

    def note_call(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a Python function that begins to run, as ``sys.setprofile`` reports it."""
        if event != "call":
            return
        code, package = frame.f_code, _package_of(frame.f_globals)
        self.codes.setdefault(code, frame.f_globals)
        if package == "triton" and code.co_name == "run" and not self.operations:
            self._note_launch([frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {})])
        if code.co_argcount and code.co_varnames[0] == "self" and package == "torch":
            names = self.names_by_object.setdefault(id(frame.f_locals.get("self")), set())
            names |= names_read_by(code)

    def _note_launch(self, arguments: Any) -> None:
        """Note the arguments of a Triton kernel, which no operation launches. It may write each of them."""
        for tensor in tree.tensors(arguments):
            self.note_read(tensor)
            self.note_written(tensor)


class _Operations(DispatchMode):  # type: ignore[misc]
    """Notes the tensors of each operation."""

    supports_higher_order_operators = True

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is _DETACH:
            return function(*args, **kwargs)
        schema = getattr(function, "_schema", None)
        if schema is not None:  # a higher-order operator has none
            self._note_by_name(schema, args, kwargs)
        for tensor in tree.tensors([args, kwargs]):
            self._reads.note_read(tensor)
        for tensor in tree.tensors(_written(schema, args, kwargs) if schema is not None else []):
            self._reads.note_written(tensor)
        self._reads.operations += 1
        try:
            result = function(*args, **kwargs)
        finally:
            self._reads.operations -= 1
        for tensor in tree.tensors(result):
            self._reads.note_made(tensor)
        return result

    def _note_by_name(self, schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Note arguments that torch has made without an operation."""
        given = _named(schema, args, kwargs)
        for tensor in tree.tensors(list(given.values()) if schema.name in _FRESH else given.get("dropout_state")):
            self._reads.note_made(tensor)
        if "dropout_state" in given and given.get("train") and given.get("dropout"):
            self._reads.has_recurrent_dropout = True


def _named(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs


def _written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    given = _named(schema, args, kwargs)
    is_written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    return [given[name] for name in given if name in is_written or name in _STATISTICS]


@contextlib.contextmanager
def observing(given: Sequence[Tensor]) -> Iterator[Reads]:
    """A block whose Python code and operations are noted, those of its backward included. What it writes to external
    tensors is undone at its end. Functions that torch.compile has compiled run as they are written."""
    reads = Reads(given)
    profile = sys.getprofile()
    # Without its threads, autograd runs a backward in this thread, which is the one that is observed.
    in_this_thread = torch.autograd.set_multithreading_enabled
    try:
        with _uncompiled(), in_this_thread(False), _Operations(reads):
            sys.setprofile(reads.note_call)
            try:
                yield reads
            finally:
                sys.setprofile(profile)
    finally:
        _restore(reads.before)


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    if DYNAMO not in sys.modules:  # nothing is compiled, and its import takes seconds
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@contextlib.contextmanager
def restoring(tensors: Sequence[Tensor]) -> Iterator[None]:
    """A block at whose end these tensors have the values from before."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        _restore(before)


def _restore(before: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in reversed(before):  # a view that was noted later may have a part of what was written before
        tensor.data.copy_(value)


# -- what code reads -------------------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def names_read_by(code: CodeType) -> frozenset[str]:
    """The names of attributes that a code object may read; those that it only sets are not among them."""
    reads = [i for i in dis.get_instructions(code) if i.opcode in dis.hasname and not _only_sets(i.opname)]
    names = {str(i.argval) for i in reads}
    if names & _BY_STRING:
        names |= {constant for constant in code.co_consts if isinstance(constant, str)}
    return frozenset(names)


@functools.lru_cache(4096)
def globals_read_by(code: CodeType) -> frozenset[str]:
    """The names of global variables, and of imported modules, that a code object may read."""
    return frozenset(str(i.argval) for i in dis.get_instructions(code) if i.opname in _GLOBAL)


def is_library(variables: dict[str, Any]) -> bool:
    """Whether global variables are those of torch, opwright, Triton, NumPy or the standard library."""
    return _package_of(variables) in _LIBRARIES


def _package_of(variables: dict[str, Any]) -> str:
    name = str(variables.get("__name__", ""))
    if name.startswith("opwright.gallery"):
        return "opwright.gallery"
    return name.partition(".")[0]


def _only_sets(operation: str) -> bool:
    return operation.startswith(("STORE", "DELETE"))
