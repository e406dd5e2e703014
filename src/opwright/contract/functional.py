"""The functional form of an operator that writes its arguments: it returns the new values instead."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Any

from opwright.contract.signature import Argument, Kind, Return, Signature

if TYPE_CHECKING:
    from opwright.contract.contract import Contract

__all__ = ["functional_form"]


def functional_form(contract: Contract) -> Contract | None:
    """``namespace::name_functional``: the outputs, then a new value for each mutated argument.

    Gradients, vmap rules and everything else are derived from it as from any operator. None if the operator writes a
    list of tensors or an optional one, since the number of outputs of an operator is fixed.
    """
    signature = contract.signature
    written = [signature.arguments[i] for i in signature.mutated]
    if any(a.kind is Kind.TENSOR_LIST or a.optional for a in written):
        return None
    tensors = [*(r.tensor for r in signature.returns), *(a.tensor for a in written if a.tensor is not None)]
    form = Signature(
        _arguments(signature),
        tuple(map(Return, tensors)),
        len(tensors) > 1,
    )
    made = contract.with_form(f"{contract.qualname}_functional", form, _reference_of(contract))
    return dataclasses.replace(made, functional_of=contract.qualname)


def _arguments(signature: Signature) -> tuple[Argument, ...]:
    """Those of the operator. If a keyword-only one is written (``out=``), all become positional, since torch
    differentiates by positional arguments only; a default before one without is then left out."""
    unmarked = [dataclasses.replace(a, mutated=False) for a in signature.arguments]
    if not any(a.keyword_only and a.mutated for a in signature.arguments):
        return tuple(unmarked)
    last = max((i for i, a in enumerate(unmarked) if not a.has_default), default=0)
    return tuple(
        dataclasses.replace(a, keyword_only=False, default=inspect.Parameter.empty if i < last else a.default)
        for i, a in enumerate(unmarked)
    )


def _reference_of(contract: Contract) -> Any:
    signature, function = contract.signature, contract.function

    @functools.wraps(function)
    def reference(*args: Any, **kwargs: Any) -> Any:
        named = (kwargs[a.name] for a in signature.keyword_only if a.name in kwargs)
        arguments = contract.with_copies([*args, *named])
        returned = signature.call(function, arguments)
        found = contract.results(returned, arguments)
        return found if len(found) > 1 else found[0]

    return reference
