"""Test inputs from the function of a task that makes all inputs of a call from its sizes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.judged.sources import Source

__all__ = ["custom_values"]


def custom_values(
    file: str, function: str, name: str, sizes: Sequence[str], fixed: Mapping[str, Any]
) -> Callable[..., torch.Tensor]:
    """A function for ``ow.inputs.drawn_by``: the input ``name`` of the call with these sizes.

    Args:
        file, function: ``function(sizes and numbers, device)`` returns all inputs by name.
        sizes: the dims that it reads.
        fixed: other sizes, and numbers.
    """

    def drawn(shape: Sequence[int], generator: torch.Generator, **values: int) -> torch.Tensor:
        found = _inputs(file, function, tuple(sorted({**fixed, **values}.items())))[name]
        return found.reshape(tuple(shape)).clone()

    own = inspect.signature(drawn)
    first = list(own.parameters.values())[:2]
    named = [inspect.Parameter(size, inspect.Parameter.KEYWORD_ONLY) for size in sizes]
    drawn.__signature__ = own.replace(parameters=[*first, *named])  # type: ignore[attr-defined]
    return drawn


@functools.lru_cache(2)
def _inputs(file: str, function: str, values: tuple[tuple[str, Any], ...]) -> Mapping[str, torch.Tensor]:
    """All inputs, so that those of one call belong together."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found: Mapping[str, torch.Tensor] = _names(file)[function](dict(values), torch.device("cpu"))
        return found


@functools.cache
def _names(file: str) -> Mapping[str, Any]:
    return Source(Path(file)).run({})
