"""Keeping values of any kind on an autograd context, from a forward to its backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from opwright import tree

__all__ = ["AuthorsContext", "save_values", "saved_values"]

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_NESTS = frozenset({list, tuple, dict})


class _Saved(NamedTuple):
    """What ``saved_values`` needs besides the tensors: how many come before, the other values (None: there are none),
    and how all are nested."""

    before: int
    others: list[Any] | None
    nest: Any


def save_values(ctx: Any, values: Sequence[Any], before: Sequence[Any] = ()) -> None:
    """Keep values of any kind on an autograd context: tensors where autograd tracks them, the rest beside.

    Args:
        before: tensors (or None) that somebody else keeps, to be found first among ``ctx.saved_tensors``.
    """
    kinds = set(map(type, values))
    if kinds <= _TENSORS:
        ctx.save_for_backward(*before, *values)
        ctx.opwright_saved = _Saved(len(before), None, None)
        return
    nest = None
    if not kinds.isdisjoint(_NESTS):
        nest = tree.map_leaves(lambda leaf: None, list(values))  # without the tensors, which autograd holds
        values = tree.leaves(list(values))
    tensors = [value if isinstance(value, torch.Tensor) else None for value in values]
    ctx.save_for_backward(*before, *tensors)
    others = [value if tensor is None else None for value, tensor in zip(values, tensors, strict=True)]
    ctx.opwright_saved = _Saved(len(before), others, nest)


def saved_values(ctx: Any) -> list[Any]:
    """What ``save_values`` kept."""
    before, others, nest = ctx.opwright_saved
    values = list(ctx.saved_tensors[before:])
    if others is not None:
        values = [other if tensor is None else tensor for tensor, other in zip(values, others, strict=True)]
    if nest is not None:
        values = tree.rebuild(nest, values)
    return values


class AuthorsContext:
    """What a custom backward sees of ``ctx`` where the arguments are kept beside its author's tensors.

    What the author sets is found in the backward by the same name, and apart from what we keep.
    """

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    @classmethod
    def in_backward(cls, ctx: Any) -> AuthorsContext:
        author = cls(ctx)
        vars(author).update(getattr(ctx, "opwright_authors_own", ()))  # none, if the gradient was registered since
        return author

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

    def keep(self, arguments: Sequence[Any]) -> None:
        """Keep what the author wants to have in the backward, and the arguments."""
        own = vars(self)
        ctx = own.pop("_ctx")
        save_values(ctx, arguments, own.pop("_to_save", ()))
        ctx.opwright_authors_own = own
