"""Products of many factors: in another order than the reference's, a part of one may leave the range of its dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.internals.compiler import DispatchMode

__all__ = ["PartsOfProducts", "parts_of_products"]


@dataclass
class PartsOfProducts:
    """Whether the product of some of the factors is infinite, or zero, in the dtype of the computation."""

    overflow: bool = False
    underflow: bool = False

    def explain(self, got: torch.Tensor) -> torch.Tensor:
        """A mask of the elements that such a part may have made infinite, NaN or zero."""
        explained = torch.zeros(got.shape, dtype=torch.bool)
        if self.overflow:
            explained |= ~got.isfinite()
        if self.underflow:
            explained |= got == 0
        return explained


def parts_of_products(run: Callable[[Any], Sequence[torch.Tensor]], arguments: Any) -> PartsOfProducts:
    """Run a computation, and see what its products of whole axes have as factors."""
    mode = _Factors()
    with mode:
        run(arguments)
    return mode.parts


class _Factors(DispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.parts = PartsOfProducts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("cumprod", "prod"):
            self._look_at(args[0], next((a for a in args[1:] if type(a) is int), None))
        return func(*args, **(kwargs or {}))

    def _look_at(self, factors: torch.Tensor, axis: int | None) -> None:
        if not factors.is_floating_point():
            return
        limits = torch.finfo(factors.dtype)
        powers = factors.abs().double().log2().nan_to_num(0, 0, 0)  # a zero or an infinity makes a zero in any order
        powers = powers.flatten() if axis is None or not powers.dim() else powers.movedim(axis, -1)
        most, least = powers.clamp(min=0).sum(-1), powers.clamp(max=0).sum(-1)
        self.parts.overflow |= bool((most > math.log2(limits.max)).any())
        self.parts.underflow |= bool((least < math.log2(limits.tiny)).any())
