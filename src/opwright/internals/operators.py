"""What the schema of an operator of torch's dispatcher declares."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opwright.internals.lookup import find

__all__ = ["OPERATIONS", "Declared", "DeclaredArgument", "declared_arguments"]

_functions: Any = find("variable_functions", lambda functions: {"add", "matmul"} <= set(dir(functions)))
# The names of torch's functions that are operations on tensors: ``torch.add``, not ``torch.is_grad_enabled``.
OPERATIONS = frozenset(() if _functions is None else dir(_functions))


@dataclass(frozen=True)
class DeclaredArgument:
    """An argument of a schema.

    Attributes:
        writes: the operator writes into it.
        is_aliased: a result may be a view of it, or it itself.
    """

    name: str
    default: Any
    writes: bool
    is_aliased: bool


@dataclass(frozen=True)
class Declared:
    """``name`` is with its namespace, as in ``aten::add``."""

    name: str
    overload: str
    arguments: Sequence[DeclaredArgument]


@functools.cache
def declared_arguments(operator: Any) -> Declared | None:
    """What an overload declares; None if it is not known, as of a higher-order operator."""
    schema_of = find("operator_schema")
    if schema_of is None:
        return None
    name, _, overload = operator.name().partition(".")
    try:
        schema = schema_of(name, overload)
    except (RuntimeError, TypeError):
        return None
    arguments = [
        DeclaredArgument(
            a.name,
            a.default_value if a.has_default_value() else None,
            writes=a.alias_info is not None and a.alias_info.is_write,
            is_aliased=a.alias_info is not None,
        )
        for a in schema.arguments
    ]
    return Declared(schema.name, schema.overload_name, arguments)
