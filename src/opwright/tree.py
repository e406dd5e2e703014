"""Nested lists, tuples and dictionaries of values, as in arguments and results of operators.

Everything else is a leaf: tensors, arrays, numbers, None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["form", "leaves", "map_leaves", "map_only", "map_tensors", "rebuild", "tensors"]


# The types of most arguments. A list of them alone is known to be flat in a fraction of the time of a walk.
_COMMON = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})


def leaves(value: Any) -> list[Any]:
    """Every leaf, in order."""
    if _is_flat(value):
        return list(value)
    found: list[Any] = []
    _collect(value, found)
    return found


def tensors(value: Any) -> list[torch.Tensor]:
    """Every leaf that is a tensor, in order."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same nest with each leaf replaced by ``function(leaf)``."""
    if type(value) is list:
        return [map_leaves(function, item) for item in value]
    if type(value) is tuple:
        return tuple([map_leaves(function, item) for item in value])
    if _is_named_tuple(value):
        return type(value)(*[map_leaves(function, item) for item in value])
    if type(value) is dict:
        return {key: map_leaves(function, item) for key, item in value.items()}
    return function(value)


def map_only(kind: type | tuple[type, ...], function: Callable[[Any], Any], value: Any) -> Any:
    """The same nest with each leaf of a kind replaced by ``function(leaf)``."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, kind) else leaf, value)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same nest with each tensor replaced by ``function(tensor)``."""
    return map_only(torch.Tensor, function, value)


def rebuild(like: Any, new_leaves: Iterable[Any]) -> Any:
    """A nest like another one, with other leaves in the order of ``leaves(like)``."""
    remaining = iter(new_leaves)
    if _is_flat(like):
        return [next(remaining) for _ in like]
    return map_leaves(lambda _: next(remaining), like)


def form(value: Any) -> Any:
    """The structure of a nest without its leaves: hashable, and equal for nests that differ only in leaves."""
    if type(value) in (list, tuple) or _is_named_tuple(value):
        return (type(value), *[form(item) for item in value])
    if type(value) is dict:
        return (dict, *[(key, form(item)) for key, item in value.items()])
    return None


def _collect(value: Any, found: list[Any]) -> None:
    if type(value) in (list, tuple) or _is_named_tuple(value):
        for item in value:
            _collect(item, found)
    elif type(value) is dict:
        for item in value.values():
            _collect(item, found)
    else:
        found.append(value)


def _is_flat(value: Any) -> bool:
    return type(value) is list and _COMMON.issuperset(map(type, value))


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")
