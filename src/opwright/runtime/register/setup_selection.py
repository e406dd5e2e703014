"""What a custom ``setup_context`` saves, if it does nothing but choose among the arguments and outputs of a call.

Then a native node of autograd's graph saves the same, and no ``autograd.Function`` is needed. It is found out by
calling the function once, with objects in place of arguments and outputs that answer nothing: what it saves of them is
then the same in every call. A function that branches, reads a global or looks at an argument is not of this kind.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from opwright import tree
from opwright.backends.names_in_code import attribute_names, changeable_default, is_constant, own_functions
from opwright.contract.contract import Contract

__all__ = ["BackwardContext", "Selection", "selection_by", "selection_of", "uses_only_what_was_saved"]

# Instructions after which a function may do something else in another call, or that answer without asking an object.
_DEPENDS = (
    "JUMP", "FOR_ITER", "SEND", "YIELD", "GLOBAL", "LOAD_NAME", "DEREF", "CLOSURE", "IMPORT", "IS_OP", "CONTAINS_OP",
    "MAKE_FUNCTION", "SETUP", "MATCH", "LOAD_BUILD_CLASS",
)  # fmt: skip
_OF_AUTOGRAD = frozenset((*dir(torch.autograd.Function), *dir(FunctionCtx)))
_SAVED = frozenset({"saved_tensors", "needs_input_grad"})


@dataclass(frozen=True)
class Selection:
    """What is saved of a call. A place is the position of an argument, or -1 - that of an output.

    Attributes:
        saved: the places of ``ctx.saved_tensors``.
        attributes: the places of what is kept in attributes of ``ctx``.
        constants: attributes of ``ctx`` that are the same in every call.
    """

    saved: tuple[int, ...]
    attributes: dict[str, int]
    constants: dict[str, Any]

    @property
    def places(self) -> tuple[int, ...]:
        return (*self.saved, *self.attributes.values())

    def fits(self, arguments: Sequence[Any]) -> bool:
        """Whether a native node can save what is chosen of these arguments: tensors in ``saved_tensors``, where torch
        takes nothing else, and none in attributes, where it does not look after them."""
        saved = (arguments[place] for place in self.saved if place >= 0)
        if any(place < 0 or tree.tensors([arguments[place]]) for place in self.attributes.values()):
            return False
        return all(value is None or isinstance(value, torch.Tensor) for value in saved)

    def context(self, values: Sequence[Any], needs_input_grad: Sequence[bool]) -> BackwardContext:
        """The ``ctx`` of a backward, from the values at ``places``."""
        count = len(self.saved)
        context = BackwardContext(tuple(values[:count]), tuple(needs_input_grad))
        vars(context).update(self.constants)
        vars(context).update(zip(self.attributes, values[count:], strict=True))
        return context


class BackwardContext:
    """The ``ctx`` of a backward without an ``autograd.Function``; the attributes are the user's."""

    def __init__(self, saved_tensors: tuple[Any, ...], needs_input_grad: tuple[bool, ...]) -> None:
        self.saved_tensors = saved_tensors
        self.needs_input_grad = needs_input_grad


def selection_of(
    contract: Contract, backward: Callable[..., Any], setup_context: Callable[..., Any] | None
) -> Selection | None:
    """What the ``setup_context`` of an operator saves, and all that its backward takes of ``ctx``; None if one of them
    does more."""
    signature = contract.signature
    if signature.keyword_only or signature.returns_list or not uses_only_what_was_saved(backward):
        return None
    outputs = len(signature.returns) if signature.returns_tuple else 0
    return selection_by(setup_context, len(signature.arguments), outputs)


def selection_by(setup_context: Callable[..., Any] | None, arguments: int, outputs: int) -> Selection | None:
    """What a ``setup_context(ctx, inputs, output)`` saves of a call, None if that depends on the call.

    Args:
        arguments: their number.
        outputs: their number in a tuple; 0 for one alone.
    """
    if setup_context is None:
        return Selection((), {}, {})
    if not isinstance(setup_context, types.FunctionType) or not _is_straight(setup_context):
        return None
    inputs = tuple(_Opaque() for _ in range(arguments))
    results = tuple(_Opaque() for _ in range(outputs or 1))
    places = {id(value): place for place, value in enumerate(inputs)}
    places |= {id(value): -1 - place for place, value in enumerate(results)}
    noted = _Noted()
    try:
        setup_context(ctx=noted, inputs=inputs, output=results if outputs else results[0])
        return _chosen(vars(noted).pop("_saved"), vars(noted), places)
    except Exception:  # it looks at something, or keeps something else
        return None


def _chosen(saved: Sequence[Any], kept: dict[str, Any], places: dict[int, int]) -> Selection | None:
    attributes = {name: places[id(value)] for name, value in kept.items() if id(value) in places}
    constants = {name: value for name, value in kept.items() if name not in attributes}
    if not all(map(is_constant, constants.values())) or not _OF_AUTOGRAD.isdisjoint(kept):
        return None
    return Selection(tuple(places[id(value)] for value in saved), attributes, constants)


def uses_only_what_was_saved(backward: Callable[..., Any]) -> bool:
    """Whether a backward takes nothing else from ``ctx`` than was saved there, and keeps nothing there."""
    if not isinstance(backward, types.FunctionType):
        return False
    functions = list(own_functions(backward))
    names = {name for function in functions for name in attribute_names(function)}
    return names.isdisjoint(_OF_AUTOGRAD - _SAVED) and not any(_writes_attributes(f.__code__) for f in functions)


def _is_straight(function: types.FunctionType) -> bool:
    names = [instruction.opname for instruction in dis.get_instructions(function.__code__)]
    return not changeable_default(function) and not any(part in name for name in names for part in _DEPENDS)


def _writes_attributes(code: types.CodeType) -> bool:
    return any(instruction.opname in ("STORE_ATTR", "DELETE_ATTR") for instruction in dis.get_instructions(code))


class _Noted:
    """A ``ctx`` that notes what is saved on it."""

    def __init__(self) -> None:
        self._saved: tuple[Any, ...] = ()

    def save_for_backward(self, *values: Any) -> None:
        self._saved = values


class _LookedAtError(Exception):
    """A function looks at what stands for an argument."""


def _refuse(self: Any, *_: Any) -> Any:
    raise _LookedAtError


class _Opaque:
    """What can be passed on, and nothing else."""

    __slots__ = ()
    __getattribute__ = __bool__ = __eq__ = __hash__ = __repr__ = __str__ = __format__ = _refuse
