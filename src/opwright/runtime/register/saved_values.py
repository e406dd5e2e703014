"""Saves values of any type on an autograd context, from a forward to its backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from opwright import tree

__all__ = ["CustomContext", "save_values", "saved_values"]

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_NESTS = frozenset({list, tuple, dict})


class _Saved(NamedTuple):
    """What ``saved_values`` needs besides the tensors: the number of tensors before them, the other values or None,
    and the nesting of all."""

    before: int
    others: list[Any] | None
    nest: Any


def save_values(ctx: Any, values: Sequence[Any], before: Sequence[Any] = ()) -> None:
    """Save values of any type on an autograd context: tensors with save_for_backward, others as an attribute.

    Args:
        before: other tensors (or None) that come first in ``ctx.saved_tensors``.
    """
    kinds = {type(value) for value in values}
    if kinds <= _TENSORS:
        ctx.save_for_backward(*before, *values)
        ctx.opwright_saved = _Saved(len(before), None, None)
        return
    nest = None
    if not kinds.isdisjoint(_NESTS):
        nest = tree.map_leaves(lambda leaf: None, list(values))  # without the tensors, which autograd holds
        values = tree.leaves(list(values))
    is_tensor = [isinstance(value, torch.Tensor) for value in values]
    ctx.save_for_backward(*before, *[v if tensor else None for v, tensor in zip(values, is_tensor, strict=True)])
    others = [None if tensor else v for v, tensor in zip(values, is_tensor, strict=True)]
    ctx.opwright_saved = _Saved(len(before), others, nest)


def saved_values(ctx: Any) -> list[Any]:
    """The values that ``save_values`` saved."""
    before, others, nest = ctx.opwright_saved
    values = list(ctx.saved_tensors[before:])
    if others is not None:
        values = [other if tensor is None else tensor for tensor, other in zip(values, others, strict=True)]
    if nest is not None:
        values = tree.rebuild(nest, values)
    return values


class CustomContext:
    """The ``ctx`` of a custom backward whose arguments are saved besides its own tensors.

    Attributes that the custom ``setup_context`` sets are available in the backward, separate from opwright's own.
    """

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    @classmethod
    def in_backward(cls, ctx: Any) -> CustomContext:
        custom_ctx = cls(ctx)
        # Without attributes, if the gradient was registered after the forward.
        vars(custom_ctx).update(getattr(ctx, "opwright_custom_attributes", ()))
        return custom_ctx

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        needs: tuple[bool, ...] = self._ctx.needs_input_grad
        return needs

    def save_for_backward(self, *tensors: Any) -> None:
        self._to_save = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        ctx = self._ctx
        saved: tuple[Any, ...] = ctx.saved_tensors[: ctx.opwright_saved.before]
        return saved

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_ctx"], name)

    def save_with(self, arguments: Sequence[Any]) -> None:
        """Save the custom attributes and tensors, and the arguments."""
        own = vars(self)
        ctx = own.pop("_ctx")
        save_values(ctx, arguments, own.pop("_to_save", ()))
        ctx.opwright_custom_attributes = own
