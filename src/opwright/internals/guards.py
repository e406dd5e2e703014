"""Guards: compare tensors with those of an earlier call, in one C++ call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.internals.lookup import find

__all__ = ["HAS_GUARDS", "guard_tensors"]


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
    of_any_size = guards(empty(2, 3), dynamic_dims_sizes=[[None] * 2], dynamic_dims_strides=[[None] * 2])
    return (
        guard.check(empty(2, 3)) is True
        and not (holds_in_inference_mode or any(map(guard.check, others)))
        and all(map(of_any_size.check, others[:2]))
        and not any(map(of_any_size.check, others[2:]))
    )


_guards: Any = find("guards", _guards_what_matters)
# Whether ``guard_tensors`` runs in C++ (a fraction of a microsecond, instead of a few for each tensor).
HAS_GUARDS = _guards is not None


def guard_tensors(
    tensors: Sequence[torch.Tensor], any_strides: Sequence[bool] | None = None, *, any_sizes: bool = False
) -> Callable[..., bool]:
    """A function that compares tensors with these: by type, dtype, device, sizes, strides, dispatch keys and
    requires_grad. It returns False for a tensor that is passed twice, and raises for more or fewer tensors.

    Args:
        any_strides: for each tensor, whether its strides may differ (default: none may).
        any_sizes: whether all sizes and strides may differ; the number of dims may not.
    """
    if _guards is None:
        return _guard_in_python(tensors, any_strides or [False] * len(tensors), any_sizes)
    sizes: Any = None
    strides: Any = None
    if any_sizes:
        sizes = strides = [[None] * t.dim() for t in tensors]
    elif any_strides is not None:
        sizes = [list(t.shape) for t in tensors]
        strides = [[None] * t.dim() if a else list(t.stride()) for t, a in zip(tensors, any_strides, strict=True)]
    check: Callable[..., bool] = _guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def _guard_in_python(like: Sequence[torch.Tensor], any_strides: Sequence[bool], any_sizes: bool) -> Callable[..., bool]:
    def facts(tensor: torch.Tensor, any_: bool) -> tuple[Any, ...]:
        return (
            type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.dim() if any_sizes else tensor.shape,
            None if any_ or any_sizes else tensor.stride(),
            tensor.requires_grad, tensor.is_inference(), tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip

    expected = [facts(t, any_) for t, any_ in zip(like, any_strides, strict=True)]

    def holds(*tensors: torch.Tensor) -> bool:
        if len(set(map(id, tensors))) < len(tensors):
            return False
        return [facts(t, any_) for t, any_ in zip(tensors, any_strides, strict=True)] == expected

    return holds
