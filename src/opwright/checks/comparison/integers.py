"""Integer results that may be others than the reference's: places of values that are equal but for rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["distinct", "has_no_place_twice", "is_between", "places_twice"]

# So many pairs of integers would be equal, if each was drawn by itself.
_PAIRS = 20


def distinct(seen: Sequence[torch.Tensor]) -> torch.Tensor:
    """How many different integers runs with errors gave for each element."""
    return (torch.stack(list(seen)).sort(0).values.diff(dim=0) != 0).sum(0) + 1


def places_twice(places: torch.Tensor) -> torch.Tensor:
    """Which integers are in their row (the last axis) already."""
    order = places.sort(dim=-1, stable=True)
    again = torch.zeros(places.shape, dtype=torch.bool)
    again[..., 1:] = order.values[..., 1:] == order.values[..., :-1]
    return torch.zeros_like(again).scatter(-1, order.indices, again)


def has_no_place_twice(places: torch.Tensor) -> bool:
    """Whether no row of integers has one of them twice, which chance would not explain."""
    if not places.dim() or not places.numel() or bool(places_twice(places).any()):
        return False
    values, length = 1 + int(places.max()) - int(places.min()), places.shape[-1]
    pairs = places.numel() // length * length * (length - 1) // 2
    return pairs >= _PAIRS * values


def is_between(values: torch.Tensor, seen: Sequence[torch.Tensor]) -> torch.Tensor:
    """Whether integers are among those that runs gave, or just beside, and not negative where none of these is."""
    found, values = torch.stack(list(seen)).long(), values.long()
    low, high = found.amin(0), found.amax(0)
    beside = (high - low) // 8
    return (values >= torch.where(low >= 0, (low - beside).clamp_min(0), low - beside)) & (values <= high + beside)
