"""What NumPy's results have and compiled ones lose: arrays without dims, classes of tuples, memory of their own.

An optimiser that finds nothing left of ``x + 0`` may return ``x`` itself.

These are the same for all calls of a compiled form. They are learned from NumPy's result.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opwright.backends.numpy.identities import Same, put

__all__ = ["Finishing", "finish", "finish_values", "learn", "with_same"]


@dataclass(frozen=True)
class Finishing:
    """What to change in one value: in its items, or in itself.

    Attributes:
        each: what to change in each item of a list, of any length.
        is_certain: whether it holds for other calls; an empty list does not tell.
        same: of a whole result: its values that are the same objects as arguments, or as one another.
    """

    items: tuple[Any, ...] = ()
    kind: type | None = None
    as_array: bool = False
    as_copy: bool = False
    each: Finishing | None = None
    is_certain: bool = True
    same: tuple[Same, ...] = ()


def with_same(finishing: Finishing | None, same: tuple[Same, ...], is_certain: bool) -> Finishing | None:
    """What to change in a whole result, with the objects that are the same."""
    if not same and is_certain:
        return finishing
    finishing = finishing or Finishing()
    return replace(finishing, same=same, is_certain=finishing.is_certain and is_certain)


def learn(expected: Any, came: Any, borrowed: Set[int] = frozenset()) -> Finishing | None:
    """What turns a compiled result into one like NumPy's; None if there is nothing to do.

    Args:
        borrowed: ids of the arrays in ``came`` that lie in memory of arguments, and in NumPy do not.
    """
    if isinstance(expected, list | tuple) and isinstance(came, list | tuple) and len(expected) == len(came):
        items = tuple(learn(e, c, borrowed) for e, c in zip(expected, came, strict=True))
        kind = type(expected) if type(expected) is not type(came) else None
        if isinstance(came, list):
            return _of_list(items, kind)
        return Finishing(items, kind, is_certain=_are_certain(items)) if kind or any(items) else None
    if isinstance(expected, dict) and isinstance(came, dict) and list(expected) == list(came):
        items = tuple(learn(expected[key], came[key], borrowed) for key in expected)
        return Finishing(items, is_certain=_are_certain(items)) if any(items) else None
    if isinstance(expected, np.ndarray) and isinstance(came, np.ndarray | np.generic):
        as_array = isinstance(came, np.generic) and expected.ndim == 0
        as_copy = id(came) in borrowed
        return Finishing(as_array=as_array, as_copy=as_copy) if as_array or as_copy else None
    if isinstance(expected, np.generic) and type(came) in (bool, int, float, complex):
        return Finishing(kind=type(expected))  # Numba returns Python's numbers
    return None


def _are_certain(items: tuple[Finishing | None, ...]) -> bool:
    return all(item is None or item.is_certain for item in items)


def _of_list(items: tuple[Finishing | None, ...], kind: type | None) -> Finishing | None:
    """What to change in a list, whose length other calls change."""
    if len(set(items)) != 1:
        return Finishing(items, kind, is_certain=False)
    is_certain = _are_certain(items)
    return Finishing(each=items[0], kind=kind, is_certain=is_certain) if kind or items[0] else None


def finish(finishing: Finishing | None, value: Any, args: Any, keywords: dict[str, Any]) -> Any:
    """The compiled result of a call with what was learned."""
    if finishing is None:
        return value
    value = finish_values(finishing, value)
    return put(finishing.same, value, args, keywords) if finishing.same else value


def finish_values(finishing: Finishing | None, value: Any) -> Any:
    """A compiled result, or a part of one, with what was learned, except which objects are the same."""
    if finishing is None:
        return value
    if finishing.as_array:
        return np.asarray(value)
    if finishing.as_copy:
        return value.copy()
    if not isinstance(value, list | tuple | dict):
        return finishing.kind(value) if finishing.kind is not None else value
    of_items = finishing.items or [finishing.each] * len(value)
    if isinstance(value, dict):
        return {key: finish_values(f, value[key]) for key, f in zip(value, of_items, strict=True)}
    items = [finish_values(f, item) for f, item in zip(of_items, value, strict=True)]
    kind = finishing.kind or type(value)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
