"""Makes a Triton launcher traceable by torch.compile, and finds the kernels that it may launch. Imports no Triton."""

from __future__ import annotations

import ast
import copy
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from opwright.backends.reachable import values_reached
from opwright.contract.reference import replace_globals
from opwright.internals.triton import is_gluon

__all__ = ["is_in_gluon", "is_interpreted", "kernels_reached", "traceable_launcher"]


def kernels_reached(launcher: Any) -> Iterator[Any]:
    """The Triton kernels (jitted, autotuned, with heuristics, interpreted) that a launcher may launch:
    those in its globals and closure, and in functions of the same file that it calls."""
    return filter(_is_kernel, values_reached(launcher))


def _is_kernel(value: Any) -> bool:
    return type(value).__module__.startswith(("triton.runtime", "triton.experimental.gluon")) and hasattr(value, "fn")


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton's interpreter runs it."""
    while kernel is not None:
        if type(kernel).__name__ == "InterpretedFunction":
            return True
        kernel = getattr(kernel, "fn", None)
    return False


def is_in_gluon(kernel: Any) -> bool:
    """Whether it is in Gluon, Triton's language of layouts, which only a GPU runs."""
    while not is_gluon(kernel) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return is_gluon(kernel)


def traceable_launcher(launcher: Callable[..., Any]) -> Callable[..., Any] | None:
    """The launcher with its kernels wrapped for torch's tracer; None without kernels that can be traced."""
    kernels = list(kernels_reached(launcher))
    if not kernels or any(is_interpreted(k) or is_in_gluon(k) for k in kernels):
        return None  # Inductor writes kernels anew, in Triton
    # A user writes kernel[grid](...); torch's tracer needs wrap_triton(kernel)[grid](...).
    return replace_globals(launcher, {id(k): _Traceable(k) for k in kernels})


class _Traceable:
    """A kernel whose launches torch's tracer sees. Triton makes a float of Python a float32; Inductor passes a float64
    (torch 2.11 to 2.15). A tile times this number is then computed in float64, or the kernel does not compile. So the
    traced kernel converts such numbers first."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._with_float32 = functools.cache(lambda names: _with_float32(kernel, names))

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **keywords: self._launched(args, keywords)[grid](*args, **keywords)

    def run(self, *args: Any, **keywords: Any) -> Any:
        return self._launched(args, keywords).run(*args, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.library.wrap_triton(self._kernel), name)

    def _launched(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        given = {**dict(zip(self._kernel.arg_names, args, strict=False)), **keywords}
        floats = tuple(name for name, value in given.items() if isinstance(value, float | torch.SymFloat))
        return torch.library.wrap_triton(self._with_float32(floats))


def _with_float32(kernel: Any, names: tuple[str, ...]) -> Any:
    """The kernel, with these of its parameters converted first. It is returned as it is if they are constants or of
    another type, or if its text is not of a known form."""
    if not hasattr(kernel, "src"):  # autotuned, or with heuristics
        inner = _with_float32(kernel.fn, names)
        if inner is kernel.fn:
            return kernel
        found = copy.copy(kernel)
        found.fn = inner
        return found
    # An annotation may name another type, such as ``tl.float64``; ``float`` is this one.
    stated = {p.name for p in kernel.params if p.is_constexpr or p.annotation_type not in ("", "fp32")}
    text = _converting(kernel.src, [name for name in names if name not in stated], _language_in(kernel.fn))
    if text is None:
        return kernel
    cls, found = type(kernel), copy.copy(kernel)
    found.__class__ = type(cls.__name__, (cls,), {"src": property(lambda _: text), "__module__": cls.__module__})
    # Inductor identifies a kernel by its function.
    of = kernel.fn
    found.fn = types.FunctionType(of.__code__, of.__globals__, of.__name__, of.__defaults__, of.__closure__)
    return found


def _language_in(function: Any) -> str | None:
    """The name that ``triton.language`` has in a function's file."""
    language, names = sys.modules.get("triton.language"), function.__globals__
    if names.get("tl") is language:
        return "tl"  # which Inductor's file has, too
    return next((name for name, value in names.items() if value is language), None)


def _converting(text: str, names: list[str], language: str | None) -> str | None:
    """The text of a function, with lines that convert these parameters before its first statement."""
    if not names or language is None:
        return None
    function = ast.parse(text).body[0]
    if not isinstance(function, ast.FunctionDef):
        return None
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None and len(function.body) > 1:
        first = function.body[1]
    lines = text.splitlines()
    indent = lines[first.lineno - 1][: first.col_offset]
    if indent.strip():  # it is on the line of another
        return None
    lines[first.lineno - 1 : first.lineno - 1] = [
        f"{indent}{n} = {language}.cast({n}, {language}.float32)" for n in names
    ]
    return "\n".join(lines) + "\n"
