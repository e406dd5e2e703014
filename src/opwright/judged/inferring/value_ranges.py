"""The values of a task's inputs: indices stay below a size, and what a reference is undefined for is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opwright import tree

__all__ = ["Range", "float_ranges", "integer_range"]

# The lowest and the highest value; the highest may be an expression of dims.
Range = tuple[float, float | str]
# Of a range of indices, the share that the largest drawn one reaches at least.
_REACHED = 0.5


def integer_range(drawn: Sequence[tuple[Mapping[str, int], torch.Tensor]]) -> Range | None:
    """The range of an integer argument: below or up to a constant, if the values that the task draws follow it.

    Args:
        drawn: what the task draws for several values of its constants.

    Returns:
        None if the task draws nothing.
    """
    drawn = [(constants, tensor) for constants, tensor in drawn if tensor.numel()]
    if not drawn:
        return None
    low = min(int(tensor.min()) for _, tensor in drawn)
    tops = [(constants, int(tensor.max())) for constants, tensor in drawn]
    for name in drawn[0][0]:
        if len({constants[name] for constants, _ in tops}) == 1:
            continue  # one value shows no dependence
        for highest, text in ((-1, f"{name}-1"), (0, name)):  # an index, and a length
            if all(_REACHED * (c[name] + highest) <= top <= c[name] + highest for c, top in tops):
                return low, text
    return low, max(top for _, top in tops)


@dataclasses.dataclass(frozen=True)
class _Inputs:
    """Inputs that the task draws, and standard normal ones of the same form."""

    own: tuple[torch.Tensor, ...]

    def with_normal(self, which: Sequence[int]) -> list[torch.Tensor]:
        # torch draws no float8.
        return [torch.randn(t.shape).to(t.dtype) if i in which else t for i, t in enumerate(self.own)]


def float_ranges(call: Callable[[Sequence[torch.Tensor]], Any], own: Sequence[torch.Tensor]) -> dict[int, Range]:
    """Ranges for floating arguments with which the reference is NaN, or raises, for normal values, and is not for those
    that the task draws: those of what it draws.

    Args:
        call: the reference, of tensors in place of ``own``.
        own: what the task draws; small, as the reference runs.

    Returns:
        By position. Empty if normal values are fine, or if the task's own are not.
    """
    inputs = _Inputs(tuple(own))
    floating = [i for i, t in enumerate(own) if t.is_floating_point() and t.numel()]
    if not _is_defined(call, inputs.own) or _is_defined(call, inputs.with_normal(floating)):
        return {}
    kept = [i for i in floating if not _is_defined(call, inputs.with_normal([i]))] or floating
    return {i: _range_of(own[i]) for i in kept}


def _range_of(tensor: torch.Tensor) -> Range:
    """From the least to the largest element; of elements that are all equal, a range around them."""
    low, high = float(tensor.double().min()), float(tensor.double().max())
    return (low, high) if low < high else (min(0.5 * low, 2 * low), max(0.5 * high, 2 * high))


def _is_defined(call: Callable[[Sequence[torch.Tensor]], Any], tensors: Sequence[torch.Tensor]) -> bool:
    try:
        outputs = tree.tensors(call(tensors))
    except Exception:  # the task's own code may raise anything
        return False
    return not any(t.is_floating_point() and bool(t.isnan().any()) for t in outputs)
