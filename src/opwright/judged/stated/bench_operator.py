"""Operators of tritonbench as functions of their tensors: the file of such a task has a ``BenchOperator``.

The operator's file imports tritonbench, of which only the base class and the decorators decide what it does. Where the
package is missing, small ones take their place, and everything else of it is a stand-in that raises when it is called.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from opwright.errors import KernelError
from opwright.judged.sources import load_candidate

__all__ = ["BenchOperator"]

_PACKAGE = "tritonbench"
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32}


class BenchOperator:
    """The class ``Operator`` of a file, without arguments of a command line."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def inputs(self) -> list[Any]:
        """The arguments of the first call: tensors on the CPU, which need no gradient, and others."""
        example = next(iter(self._operator.get_input_iter()))
        arguments = list(example if isinstance(example, tuple | list) else (example,))
        return [t.detach().cpu() if isinstance(t, torch.Tensor) else t for t in arguments]

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """The result of a benchmark, which returns a function without arguments."""
        run = getattr(self._operator, name)(*arguments)
        if not callable(run):
            raise KernelError(
                f"{name} must return a function without arguments, got {type(run).__name__}", fix="correct it"
            )
        returned = run()
        return tuple(returned) if isinstance(returned, list) else returned

    def function(self, name: str) -> Callable[..., Any]:
        """A benchmark as a function."""
        return lambda *arguments: self.call(name, arguments)

    @functools.cached_property
    def _operator(self) -> Any:
        with _package():
            names = load_candidate(self._file)
        if "Operator" not in names:
            raise KernelError(f"{self._file.name} must define 'Operator', got none", fix="correct the file")
        options = {"precision": "bypass", "device": "cpu", "mode": "fwd", "bwd": False, "fwd_bwd": False}
        return names["Operator"](_Options(**options), [])


class _Options(argparse.Namespace):
    """The command's options; those that are not known are off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Mode(Enum):
    FWD, BWD, FWD_BWD, FWD_NO_GRAD = "fwd", "bwd", "fwd_bwd", "fwd_no_grad"


class _BenchmarkOperator:
    """What an operator gets from its base class."""

    DEFAULT_PRECISION = "fp32"

    def __init__(self, tb_args: Any = None, extra_args: Sequence[str] | None = None) -> None:
        self.tb_args, self.extra_args = tb_args, list(extra_args or ())
        self.device, self.mode, self.requires_grad = "cpu", _Mode.FWD_NO_GRAD, False
        self.dtype = _DTYPES.get(self.DEFAULT_PRECISION, torch.float32)
        self.use_cuda_graphs = False


def _decorator(*arguments: Any, **options: Any) -> Any:
    """A decorator that leaves the function as it is, with arguments or without."""
    return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else lambda function: function


class _Missing:
    """A name of the package that is not here: false, usable as a decorator's argument, and an error if called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self._name.rpartition(".")[2].startswith(("is_", "has_")):
            return False  # where the benchmark runs
        raise KernelError(f"{self._name} must be installed", fix=f"install {_PACKAGE}")


_OF_PACKAGE = {
    "BenchmarkOperator": _BenchmarkOperator, "Mode": _Mode, "register_benchmark": _decorator,
    "register_metric": _decorator, "register_x_val": _decorator, "override_args": _decorator,
}  # fmt: skip


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _OF_PACKAGE.get(name) or _Missing(f"{self.__name__}.{name}")


class _Finder:
    """Finds each module of the package as one of stand-ins."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != _PACKAGE:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing runs."""


@contextlib.contextmanager
def _package() -> Iterator[None]:
    """A block in which the package can be imported."""
    if importlib.util.find_spec(_PACKAGE) is not None:
        yield
        return
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
