"""Operators of torch's dispatcher: what their schemas declare, and one that puts numbers into a CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.internals.lookup import find

__all__ = ["OPERATIONS", "Declared", "DeclaredArgument", "declared_arguments", "words_by_launches"]

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


_add_to_each: Any = find("add_to_each")


def words_by_launches(words: list[int], device: torch.device) -> torch.Tensor:
    """Integers of 64 bits on a GPU, written by launches of which they are arguments: a CUDA graph in its capture
    keeps these, but not the memory of the CPU that a copy would read in each replay."""
    table = torch.zeros(len(words), dtype=torch.int64, device=device)
    if _add_to_each is not None:
        _add_to_each(list(table.unbind()), words)
    else:
        for place, word in zip(table.unbind(), words, strict=True):
            place.fill_(word)
    return table
