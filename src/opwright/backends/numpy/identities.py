"""Which values of a result are the same objects as arguments, or as one another.

``return F`` gives the caller's own array in NumPy. Compiled code gives another array on the same memory, in whose place
the caller's is put. Which values these are follows from types and layouts, and is learned from NumPy's result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Arguments", "Same", "put", "same_objects"]


class _Attribute(NamedTuple):
    """A step from an object to one of its attributes; other steps are indices and keys."""

    name: str


class Same(NamedTuple):
    """A value of a result that is the same object as another value.

    Attributes:
        place: the steps from the result to it.
        origin: the steps to the other value, from the arguments by position and name.
        in_result: the other value is in the result, too.
    """

    place: tuple[Any, ...]
    origin: tuple[Any, ...]
    in_result: bool = False


@dataclass
class Arguments:
    """The arguments of one call, with the arrays and containers that they lead to."""

    args: Any
    keywords: dict[str, Any]

    def __post_init__(self) -> None:
        self.paths: dict[int, tuple[Any, ...]] = {}
        self.twice: set[int] = set()
        self._has_container = False
        for i, value in (*enumerate(self.args), *self.keywords.items()):
            self._collect(value, (i,))

    def _collect(self, value: Any, path: tuple[Any, ...]) -> None:
        if value is None or isinstance(value, bool | str | type):
            return
        if id(value) in self.paths:
            self.twice.add(id(value))
            return
        self.paths[id(value)] = path
        self._has_container |= isinstance(value, list | dict)
        if isinstance(value, list | tuple):
            steps: Any = enumerate(value)
        elif isinstance(value, dict):
            steps = value.items()
        elif isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dict__"):
            return
        else:
            steps = ((_Attribute(name), each) for name, each in vars(value).items())
        for step, each in steps:
            self._collect(each, (*path, step))

    def may_be_stored_again(self) -> bool:
        """Whether ``d["a"] = x`` may store the object that is there, which another call would not show."""
        return self._has_container and bool(self.twice)


def same_objects(result: Any, arguments: Arguments, outside: Collection[int]) -> tuple[tuple[Same, ...], bool, str]:
    """What is the same object as another value; whether that holds for other calls; what cannot be the same.

    Args:
        outside: ids of the objects that the function reaches otherwise than through its arguments.
    """
    found: list[Same] = []
    places: dict[int, tuple[Any, ...]] = {}
    is_certain = True
    for place, value in _walk(result, (), set(arguments.paths)):
        if id(value) in arguments.paths:
            found.append(Same(place, arguments.paths[id(value)]))
            is_certain &= id(value) not in arguments.twice
        elif id(value) in places:
            found.append(Same(place, places[id(value)], in_result=True))
        elif id(value) in outside:
            return (), True, "the result has an object from outside itself; return a copy, or a view such as a[...]"
        else:
            places[id(value)] = place
    return tuple(found), is_certain, ""


def _walk(value: Any, place: tuple[Any, ...], known: set[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The arrays and containers of a result, each with the steps to it; nothing within those that are known."""
    if isinstance(value, np.ndarray | list | dict):
        yield place, value
        if id(value) in known:
            return
        known = known | {id(value)}
    if isinstance(value, list | tuple | dict):
        for step, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _walk(each, (*place, step), known)


def put(same: tuple[Same, ...], result: Any, args: Any, keywords: dict[str, Any]) -> Any:
    """The result with the objects themselves in their places."""
    for place, origin, in_result in same:
        if in_result:
            other = _at(result, origin)
        else:
            other = _at(args[origin[0]] if isinstance(origin[0], int) else keywords[origin[0]], origin[1:])
        result = _replaced(result, place, other)
    return result


def _at(value: Any, steps: tuple[Any, ...]) -> Any:
    for step in steps:
        value = getattr(value, step.name) if isinstance(step, _Attribute) else value[step]
    return value


def _replaced(value: Any, steps: tuple[Any, ...], other: Any) -> Any:
    if not steps:
        return other
    first, *rest = steps
    inner = _replaced(value[first], tuple(rest), other)
    if not isinstance(value, tuple):
        value[first] = inner
        return value
    items = [inner if i == first else item for i, item in enumerate(value)]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
