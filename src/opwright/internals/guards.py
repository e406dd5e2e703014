"""Guards: compare tensors with those of an earlier call, in one C++ call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.internals.lookup import find

__all__ = ["guard_tensors"]


def _guards_what_matters(guards: Any) -> bool:
    """A guard accepts a tensor that is alike, and none that differs in a property that selects a kernel."""

    class Subclass(torch.Tensor):
        pass

    def empty(*shape: int, **options: Any) -> torch.Tensor:
        return torch.empty(shape, **{"device": "cpu", **options})

    guard = guards(empty(2, 3), dynamic_dims_sizes=None, dynamic_dims_strides=None)
    others = (
        empty(2, 4), empty(3, 2).mT, empty(2, 3, 1), empty(2, 3, dtype=torch.float64), empty(2, 3, device="meta"),
        empty(2, 3, requires_grad=True), empty(2, 3).as_subclass(Subclass),
    )  # fmt: skip
    with torch.inference_mode():
        holds_in_inference_mode = guard.check(empty(2, 3))
    return guard.check(empty(2, 3)) is True and not (holds_in_inference_mode or any(map(guard.check, others)))


_guards: Any = find("guards", _guards_what_matters)


def guard_tensors(tensors: Sequence[torch.Tensor], any_strides: Sequence[bool] | None = None) -> Callable[..., bool]:
    """A function that compares tensors with these: by type, dtype, device, sizes, strides, dispatch keys and
    requires_grad. It returns False for a tensor that is passed twice, and raises for more or fewer tensors.

    Args:
        any_strides: for each tensor, whether its strides may differ (default: none may).
    """
    if _guards is None:
        return _guard_in_python(tensors, any_strides or [False] * len(tensors))
    sizes: Any = None
    strides: Any = None
    if any_strides is not None:
        sizes = [list(t.shape) for t in tensors]
        strides = [[None] * t.dim() if a else list(t.stride()) for t, a in zip(tensors, any_strides, strict=True)]
    check: Callable[..., bool] = _guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def _guard_in_python(like: Sequence[torch.Tensor], any_strides: Sequence[bool]) -> Callable[..., bool]:
    def facts(tensor: torch.Tensor, any_: bool) -> tuple[Any, ...]:
        return (
            type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.shape,
            None if any_ else tensor.stride(),
            tensor.requires_grad, tensor.is_inference(), tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip

    expected = [facts(t, any_) for t, any_ in zip(like, any_strides, strict=True)]

    def holds(*tensors: torch.Tensor) -> bool:
        if len(set(map(id, tensors))) < len(tensors):
            return False
        return [facts(t, any_) for t, any_ in zip(tensors, any_strides, strict=True)] == expected

    return holds
