"""Makes a Triton launcher traceable by torch.compile, and finds the kernels that it may launch. Imports no Triton."""

from __future__ import annotations

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
    wrapped = {id(k): torch.library.wrap_triton(k) for k in kernels}
    return replace_globals(launcher, wrapped)
