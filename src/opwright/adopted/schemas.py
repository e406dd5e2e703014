"""What torch knows of an operator that others have registered: its schema, and the devices that it has kernels for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from opwright.internals.registration import registered_kernels, schema_of

__all__ = ["SchemaFacts", "schema_facts"]


@dataclass(frozen=True)
class SchemaFacts:
    """What an operator's schema states.

    Attributes:
        arguments: their names.
        written: those that it declares to write.
        returns_alias: whether a result may be an argument, or a view of one.
        devices: the types of devices for which it has a kernel; empty if any, or if that is not known.
    """

    arguments: tuple[str, ...]
    written: frozenset[str]
    returns_alias: bool
    devices: tuple[str, ...]


def schema_facts(overload: Any) -> SchemaFacts | None:
    """What the schema of an operator states; None if torch does not show it."""
    schema = schema_of(overload)
    if schema is None:
        return None
    written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    is_alias = any(r.alias_info is not None for r in schema.returns)
    return SchemaFacts(tuple(a.name for a in schema.arguments), written, is_alias, _devices_of(overload))


def _devices_of(overload: Any) -> tuple[str, ...]:
    keys = set(re.findall(r"^(\w+)(?:\[alias\])?:", registered_kernels(overload.name()) or "", re.MULTILINE))
    if keys & {"CompositeImplicitAutograd", "CompositeExplicitAutograd"}:
        return ()
    return tuple(device for key, device in (("CPU", "cpu"), ("CUDA", "cuda")) if key in keys)
