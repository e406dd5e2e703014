"""Makes a Triton launcher traceable by torch.compile, and finds the kernels that it may launch. Imports no Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from opwright.backends.reachable import values_reached
from opwright.contract.reference import replace_globals

__all__ = ["is_interpreted", "kernels_reached", "traceable_launcher"]


def kernels_reached(launcher: Any) -> Iterator[Any]:
    """The Triton kernels (jitted, autotuned, with heuristics, interpreted) that a launcher may launch:
    those in its globals and closure, and in functions of the same file that it calls."""
    return filter(_is_kernel, values_reached(launcher))


def _is_kernel(value: Any) -> bool:
    return type(value).__module__.startswith("triton.runtime") and hasattr(value, "fn")


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton's interpreter runs it."""
    while kernel is not None:
        if type(kernel).__name__ == "InterpretedFunction":
            return True
        kernel = getattr(kernel, "fn", None)
    return False


def traceable_launcher(launcher: Callable[..., Any]) -> Callable[..., Any] | None:
    """The launcher with its kernels wrapped for torch's tracer; None without kernels that can be traced."""
    kernels = list(kernels_reached(launcher))
    if not kernels or any(is_interpreted(k) for k in kernels):
        return None
    # A user writes kernel[grid](...); torch's tracer needs wrap_triton(kernel)[grid](...).
    wrapped = {id(k): torch.library.wrap_triton(k) for k in kernels}
    return replace_globals(launcher, wrapped)
