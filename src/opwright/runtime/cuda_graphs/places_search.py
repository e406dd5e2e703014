"""Finds the places that a run of a function read: closures, globals, defaults, attributes of modules and objects."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from opwright.errors import ArgumentError
from opwright.internals.tensors import memory_of
from opwright.runtime.cuda_graphs.places import CONSTANTS, Places
from opwright.runtime.cuda_graphs.reads import Reads, globals_read_by, is_library, names_read_by

__all__ = ["covers", "find_places"]

# A container with more items is compared by its size alone; a tensor in it counts as not found.
_LARGE = 1000
_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Attributes of every module that are no settings of it: their tables and hooks are looked into one by one.
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


def find_places(
    name: str, function: Any, reads: Reads, known: Sequence[Tensor] = (), device: torch.device | None = None
) -> Places:
    """The places that a run of a function read.

    Args:
        name: the function's name in messages.
        function: the function.
        reads: what was observed in a run of it.
        known: tensors whose addresses the caller compares.
        device: that of the graph.

    Raises:
        ArgumentError: the run read a tensor whose place is not found.
    """
    searches = (_Search(function, reads, any_name=any_name) for any_name in (False, True))
    missing: list[Tensor] = []
    for search in searches:
        found = {memory_of(tensor) for tensor in (*known, *search.tensors)}
        missing = [tensor for memory, tensor in reads.external.items() if memory not in found]
        if not missing:
            return search.places(known, device)
    raise ArgumentError(
        f"{name} reads a tensor of shape {tuple(missing[0].shape)} on {missing[0].device} that is not an argument, and "
        "no variable or attribute that opwright finds holds it after the call, so a replay could not notice another "
        "tensor there",
        fix="pass it as an argument, or register it as a buffer of the module and write into it in place",
    )


def covers(places: Places, reads: Reads, known: Sequence[Tensor]) -> bool:
    """Whether another run read nothing besides these places and known tensors."""
    found = {memory_of(tensor) for tensor in (*known, *places.tensors)}
    return places.codes.issuperset(reads.codes) and found.issuperset(reads.external)


class _Search:
    """A walk from a function, and from the globals of the code that ran, through everything that the code names."""

    def __init__(self, function: Any, reads: Reads, *, any_name: bool) -> None:
        self.tensors: list[Tensor] = []
        self._reads = reads
        self._any_name = any_name  # whether attributes count that no executed code names
        self._places = Places(reads.codes)
        self._seen: dict[int, Any] = {}  # with the objects, so that no other one gets their ids
        self._todo: list[tuple[Any, str]] = []
        self._classes: set[type] = set()
        self._codes: set[CodeType] = set()  # of functions that were found
        own = {code: variables for code, variables in reads.codes.items() if not is_library(variables)}
        self._names = frozenset().union(*map(names_read_by, own))
        self._visit(function, _label_of(function))
        self._visit_globals(own)
        self._finish()
        self._visit_functions([code for code in own if code.co_freevars and code not in self._codes])
        self._finish()

    def places(self, known: Sequence[Tensor], device: torch.device | None) -> Places:
        """The places, with their present values."""
        ids = set(map(id, known))
        for tensor in self.tensors:
            self._places.add_tensor(tensor, device, compares_address=id(tensor) not in ids)
        self._places.remember()
        return self._places

    def _visit(self, value: Any, label: str) -> None:
        if id(value) not in self._seen and not isinstance(value, (*CONSTANTS, BuiltinFunctionType)):
            self._seen[id(value)] = value
            self._todo.append((value, label))

    def _finish(self) -> None:
        while self._todo:
            self._visit_parts(*self._todo.pop())

    def _visit_globals(self, own: Mapping[CodeType, dict[str, Any]]) -> None:
        names: dict[int, set[str]] = collections.defaultdict(set)
        for code, variables in own.items():
            names[id(variables)] |= globals_read_by(code)
            for name in globals_read_by(code) & sys.modules.keys():  # imported in a function
                self._visit(sys.modules[name], name)
        for variables in {id(v): v for v in own.values()}.values():
            self._visit_names(variables, names[id(variables)], "the global variable ")

    def _visit_functions(self, codes: Sequence[CodeType]) -> None:
        """Visit functions that ran and that the walk has not met, such as those that an operator calls."""
        if codes:
            for function in gc.get_referrers(*codes):
                if isinstance(function, FunctionType):
                    self._visit(function, _label_of(function))

    def _visit_names(self, values: Mapping[Any, Any], names: Collection[str] | None, label: str) -> None:
        self._places.add_names(values, names, label)
        for name in list(values) if names is None else [name for name in names if name in values]:
            self._visit(values[name], f"{label}[{name!r}]" if names is None else _dotted(label, name))

    def _visit_parts(self, value: Any, label: str) -> None:
        if isinstance(value, Tensor):
            self.tensors.append(value)
        elif isinstance(value, FunctionType):
            self._visit_function(value, label)
        elif isinstance(value, (MethodType, functools.partial, staticmethod, classmethod, property)):
            parts = ("__self__", "__func__", "func", "args", "keywords", "fget")
            for part in (getattr(value, part) for part in parts if hasattr(value, part)):
                self._visit(part, label)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, ModuleType):
            if not is_library(vars(value)):
                self._visit_names(vars(value), self._names_in(vars(value)), label)
        elif isinstance(value, (Mapping, list, tuple, set, collections.deque)):
            self._visit_container(value, label)
        if not isinstance(value, (Tensor, FunctionType, type, ModuleType)):
            self._visit_object(value, label)

    def _visit_function(self, function: FunctionType, label: str) -> None:
        if function.__code__ not in self._reads.codes:
            return
        self._codes.add(function.__code__)
        self._places.add_attributes(function, ("__code__", "__defaults__", "__kwdefaults__"), label)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            variable = f"the variable {name} of the closure of {label}"
            self._places.add_attributes(cell, ("cell_contents",), variable)
            try:
                self._visit(cell.cell_contents, variable)
            except ValueError:  # an empty cell
                continue
        self._visit(function.__defaults__, f"the defaults of {label}")
        self._visit(function.__kwdefaults__, f"the defaults of {label}")
        if function.__dict__:
            self._visit_names(function.__dict__, self._names_in(function.__dict__) | {"__wrapped__"}, label)

    def _visit_class(self, cls: type) -> None:
        for each in cls.__mro__:
            if each is object or each in self._classes:
                continue
            self._classes.add(each)
            values = vars(each)
            ran = {n for n, v in values.items() if getattr(_plain(v), "__code__", None) in self._reads.codes}
            names = frozenset(ran) if is_library({"__name__": each.__module__}) else self._names_in(values) | ran
            if names:
                self._visit_names(values, names, each.__qualname__)

    def _visit_container(self, value: Any, label: str) -> None:
        if len(value) > _LARGE or isinstance(value, set):
            self._places.add_size(value)
        elif isinstance(value, Mapping):
            if isinstance(value, dict):
                self._visit_names(value, None, label)
        else:
            if not isinstance(value, tuple):
                self._places.add_items(value, label)
            for i, item in enumerate(list(value)):
                self._visit(item, f"{label}[{i}]")

    def _visit_object(self, value: Any, label: str) -> None:
        package = type(value).__module__.partition(".")[0]
        is_module = isinstance(value, nn.Module)
        if package in ("opwright", "kernelsim", "triton") and not is_module:
            return  # an operator: its kernels are equivalent, and its counters change in each call
        if isinstance(value, threading.local):
            return  # another thread has other values, which a comparison in this one would miss
        self._visit_class(type(value))
        attributes = getattr(value, "__dict__", None)
        if is_module:
            self._visit_module(value, label)
        if isinstance(attributes, dict):
            self._places.add_attributes(value, ("__class__",), label)
            by_torch = self._reads.names_by_object.get(id(value), set())
            names = self._names_in(attributes) | by_torch | {"__wrapped__"}
            if is_module:
                names = (names - _OF_EVERY_MODULE) | ({"forward", "_modules"} if value._modules else {"forward"})
            self._visit_names(attributes, names, label)
        slots = [name for cls in type(value).__mro__ for name in _slots(cls)]
        read = tuple(name for name in slots if name in self._names or self._any_name)
        if read:
            self._places.add_attributes(value, read, label)
            for name in read:
                self._visit(getattr(value, name, None), f"{label}.{name}")

    def _visit_module(self, module: nn.Module, label: str) -> None:
        """Visit the parameters, buffers, modules and hooks of a module, whatever the code names."""
        for table in _TABLES:
            values = vars(module)[table]
            self._seen[id(values)] = values
            self._places.add_names(values, None, label)
            for name, value in values.items():
                self._visit(value, f"{label}.{name}")
        for name in _HOOKS:
            if name in vars(module):
                self._visit_hooks(vars(module)[name], f"the hooks of {label}")
        for name in _GLOBAL_HOOKS:
            if hasattr(module_hooks, name):
                self._visit_hooks(getattr(module_hooks, name), "the hooks of all modules")

    def _visit_hooks(self, hooks: Any, label: str) -> None:
        if isinstance(hooks, dict) and id(hooks) not in self._seen:
            self._seen[id(hooks)] = hooks
            self._visit_names(hooks, None, label)

    def _names_in(self, values: Mapping[str, Any]) -> frozenset[str]:
        return self._names | frozenset(values) if self._any_name else self._names


def _label_of(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _dotted(label: str, name: str) -> str:
    return f"{label}{name}" if label.endswith(" ") else f"{label}.{name}"


def _plain(value: Any) -> Any:
    """The function of a method that is static, of a class, or a property."""
    return getattr(value, "__func__", None) or getattr(value, "fget", None) or value


def _slots(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{cls.__name__.lstrip('_')}"
    return [
        private + name if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    ]
