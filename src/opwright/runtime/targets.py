"""Finds operators by target (a file, ``module``, ``module:op``), and the import path of an operator."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from opwright.errors import OpwrightError, TargetError
from opwright.import_file import import_file
from opwright.runtime.op import Op, defined_in
from opwright.runtime.register import registration

__all__ = ["ImportPath", "find_import_path", "import_operator", "load_target", "name_target"]


@dataclass(frozen=True)
class ImportPath:
    """The module that defines an operator when it is imported; ``file`` if it is a script, not a package's."""

    module: str
    file: str | None
    qualname: str


def load_target(target: str) -> list[Op]:
    """The operators of a target.

    Args:
        target: ``path/to/file.py``, ``package.module``, or either followed by ``:operator``.

    Raises:
        TargetError: there is no such file, module or operator, or importing it failed.
    """
    if not isinstance(target, str):
        raise TargetError(
            f"a target must be a file, a module or an operator that @ow.op has defined, got {target!r}",
            fix="pass the operator; its functional form is checked with it",
        )
    location, _, name = target.partition(":")
    module = (
        _import_file(Path(location))
        if location.endswith(".py") or Path(location).is_file()
        else _import_module(location)
    )
    found = defined_in(vars(module))
    if not found:
        raise TargetError(
            f"{location} must define an operator, got none",
            fix='define one with @ow.op("namespace::name") at module level',
        )
    if not name:
        return found
    chosen = [o for o in found if name in (o.contract.name, o.contract.qualname)]
    if not chosen:
        raise TargetError(
            f"{location}: the operator must be one of {', '.join(o.contract.name for o in found)}, got {name!r}",
            fix=f"write {location}:{found[0].contract.name}",
        )
    return chosen


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(
            f"a target must be a file that exists, or a module, got {str(path)!r}",
            fix="name a .py file, or a module that Python can import",
        )
    if path.suffix != ".py":
        raise TargetError(
            f"a target must be a .py file or a module, got {str(path)!r}",
            fix="name the .py file that defines the operator; other sources are attached there, as in op.cpp(...)",
        )
    path, name = path.resolve(), path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python path/to/file.py` does
    try:
        return import_file(path, name)
    except (OpwrightError, KeyboardInterrupt):
        raise  # errors of contracts and kernels are clear by themselves
    except BaseException as error:
        raise TargetError(
            f"importing {path} raised {type(error).__name__}: {error}", fix=f"run `python {path}` to see where"
        ) from error


def _import_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise TargetError(
                f"a target must be a .py file or a module, got {name!r}",
                fix="name a file that exists, or a module that Python can import",
            ) from None
        raise TargetError(f"importing {name} failed: {error}", fix=f"pip install {error.name}") from error


def find_import_path(operator: Op) -> ImportPath | None:
    """The path to import an operator; None for one defined in a function or a notebook.

    It is the module that attaches kernels to it, if that is another one than the module that defines it.
    """
    functions = [kernel.spec.source for kernel in operator.kernels.values()]
    of_kernels = [f.__module__ for f in reversed(functions) if inspect.isfunction(f)]
    for name in dict.fromkeys([*of_kernels, operator.contract.module]):
        module = sys.modules.get(name)
        if module is not None and name != "__main__" and _holds(module, operator):
            return ImportPath(name, _file_of_script(module), operator.contract.qualname)
    return None


def _file_of_script(module: ModuleType) -> str | None:
    """The file of a module that cannot be imported by its name."""
    file, name = getattr(module, "__file__", None), module.__name__
    importable = module.__spec__ is not None and importlib.util.find_spec(name.split(".")[0]) is not None
    try:
        same = importable and (found := importlib.util.find_spec(name)) is not None and found.origin == file
    except (ImportError, ValueError):
        same = False
    return None if same else file


def _holds(module: ModuleType, operator: Op) -> bool:
    return any(_is_or_holds(value, operator) for value in list(vars(module).values()))


def _is_or_holds(value: Any, operator: Op) -> bool:
    """Whether a name of a module stands for an operator, or for a list, tuple or dictionary of operators."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
    return any(one is operator for one in held)


def import_operator(path: ImportPath) -> Op | None:
    """Import a module and return its operator, or None if the module no longer defines it."""
    module = importlib.import_module(path.module) if path.file is None else _import_file(Path(path.file))
    found = registration.find(path.qualname)
    if isinstance(found, Op):
        return found
    return next((o for o in defined_in(vars(module)) if o.contract.qualname == path.qualname), None)  # an adopted one


def name_target(operator: Op) -> str | None:
    """The target of this operator on the command line; None if it has none."""
    path = find_import_path(operator)
    if path is None:
        return None
    module = sys.modules[path.module]
    file = path.file if path.file or "." in path.module else getattr(module, "__file__", None)
    if file is None:
        return f"{path.module}:{operator.contract.name}"
    here = Path(file)
    shown = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    return f"{shown}:{operator.contract.name}"
