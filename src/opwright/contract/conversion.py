"""Converts the arguments of a call to what torch's dispatcher passes to a kernel, by type and value.

The dispatcher reads each argument by the operator's schema: an ``int`` for a ``float`` becomes a ``float``, a NumPy
``float64`` a ``float``, a member of an ``IntEnum`` an ``int``, a text for a device a ``torch.device``, a tuple a list.
A call that does not go through the dispatcher converts its arguments here, so that a kernel gets the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright.contract.signature import Argument, Kind

__all__ = ["Conversion", "conversion_of"]

# Converts a value; it returns the value itself if the value cannot be converted, and ``bind`` then refuses it.
Conversion = Callable[[Any], Any]


def conversion_of(argument: Argument) -> tuple[type, Conversion] | None:
    """The type that needs no conversion, and the conversion of other values; None for a tensor and for what the
    dispatcher passes as it is. Lists are always converted, because the dispatcher makes a new list."""
    if argument.kind is Kind.TENSOR_LIST:
        return _NeverExact, _to_list
    if argument.kind is Kind.TENSOR or argument.is_group or any(_is_member(c) for c in argument.choices):
        return None
    return _CONVERSIONS.get(argument.scalar_type)


class _NeverExact:
    """The type of no argument."""


def _is_member(choice: Any) -> bool:
    return isinstance(choice, str | int) and type(choice) not in (str, int, bool)


def _to_float(value: Any) -> Any:
    if isinstance(value, float):
        return float.__float__(value)  # as the dispatcher, which does not call a subclass's own __float__
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(int.__int__(value))
        except OverflowError:
            return value
    return value


def _to_int(value: Any) -> Any:
    return int.__int__(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _to_str(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else value


def _to_device(value: Any) -> Any:
    try:
        return torch.device(value) if isinstance(value, str) else value
    except RuntimeError:
        return value


def _to_list(value: Any) -> Any:
    return [*value] if isinstance(value, list | tuple) else value


def _list_of(convert: Conversion) -> Conversion:
    def convert_items(value: Any) -> Any:
        return [convert(item) for item in value] if isinstance(value, list | tuple) else value

    return convert_items


def _unchanged(value: Any) -> Any:
    return value


_CONVERSIONS: dict[Any, tuple[type, Conversion]] = {
    float: (float, _to_float),
    int: (int, _to_int),
    bool: (bool, _unchanged),
    str: (str, _to_str),
    torch.device: (torch.device, _to_device),
    torch.dtype: (torch.dtype, _unchanged),
    Sequence[int]: (_NeverExact, _list_of(_to_int)),
    Sequence[float]: (_NeverExact, _list_of(_to_float)),
    Sequence[bool]: (_NeverExact, _list_of(_unchanged)),
}
