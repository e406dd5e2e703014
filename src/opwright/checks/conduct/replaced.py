"""Functions that measure and compare, as they were before a kernel was loaded, and those that were replaced since.

A kernel may replace ``torch.allclose``, ``time.perf_counter`` or a method of ``torch.cuda.Event``, so that whoever
measures it in the same process gets another answer.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from opwright.checks.conduct.user_code import OPWRIGHT, owner_of

__all__ = ["Functions"]

_MODULES = (
    "builtins", "time", "timeit", "statistics", "math", "random", "gc", "threading", "torch", "torch.cuda",
    "torch.testing", torch.testing.assert_close.__module__, "torch.autograd", "torch.autograd.profiler",
    "torch.profiler", "torch.nn", "torch.nn.functional", "torch.linalg", "torch.random", "torch.utils.benchmark",
    "numpy", "numpy.testing", "triton.testing",
)  # fmt: skip


@dataclass(frozen=True)
class _Namespace:
    """The functions of a module or a class by name, each with the code that it runs."""

    owner: Any
    functions: Mapping[str, tuple[Any, Any]]


class Functions:
    """The functions of the modules that measure and compare, and of opwright's own."""

    def __init__(self) -> None:
        own = [name for name in sys.modules if name.partition(".")[0] == "opwright"]
        modules = [sys.modules[name] for name in (*_MODULES, *own) if name in sys.modules]
        self._before: dict[str, _Namespace] = {}
        for module in modules:
            self._add(module.__name__, module)
            for name, value in list(vars(module).items()):
                if isinstance(value, type) and _belongs_to(value, module.__name__):
                    self._add(f"{module.__name__}.{name}", value)

    def _add(self, name: str, owner: Any) -> None:
        found = {key: (value, _code(value)) for key, value in list(vars(owner).items()) if _is_function(value)}
        self._before[name] = _Namespace(owner, found)

    def replaced(self) -> Iterator[str]:
        """The names of functions that are other ones by now."""
        for name, namespace in self._before.items():
            now = vars(namespace.owner)
            for key, (value, code) in namespace.functions.items():
                found = now.get(key)
                if (found is not value or _code(found) is not code) and not _by_torch_itself(found):
                    yield f"{name}.{key}"
            yield from (f"{name}.{key}" for key in now.keys() - namespace.functions.keys() if _hides(namespace, key))


def _belongs_to(cls: type, module: str) -> bool:
    return str(cls.__module__).partition(".")[0] == module.partition(".")[0]


def _is_function(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def _code(value: Any) -> Any:
    function = getattr(value, "__func__", value)
    return function.__code__ if isinstance(function, FunctionType) else None


def _by_torch_itself(value: Any) -> bool:
    """Whether a function is of a private module of torch: torch.compile replaces some when it first compiles."""
    package, _, module = str(value.__module__).partition(".") if isinstance(value, FunctionType) else ("", "", "")
    return package == "torch" and module.startswith("_")


def _hides(namespace: _Namespace, key: str) -> bool:
    """Whether a new name hides the function of a base class, or a builtin one, that was used before."""
    owner = namespace.owner
    value = vars(owner)[key]
    if not _is_function(value) or owner_of(getattr(_code(value), "co_filename", "")) == OPWRIGHT:
        return False
    if isinstance(owner, type):
        return any(_is_function(vars(base)[key]) for base in owner.__mro__[1:-1] if key in vars(base))
    return owner is not builtins and key in vars(builtins)
