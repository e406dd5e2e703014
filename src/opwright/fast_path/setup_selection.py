"""What a custom ``setup_context`` saves, if it does nothing but choose among the arguments and outputs of a call.

Then a native node of autograd's graph saves the same, and no ``autograd.Function`` is needed. It is found out by
calling the function once, with objects in place of arguments and outputs that answer nothing: what it saves of them is
then the same in every call. Only instructions that pass values on are known; a function that has another one is not of
this kind. Nor is a backward that does more with its ``ctx`` than to read what was saved. A call compares the code and
the defaults of both functions with what they were (``Selection.watched``).
"""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from opwright import tree
from opwright.contract.contract import Contract
from opwright.fast_path.extension import Watched
from opwright.fast_path.known_code import is_constant, watched_fields

__all__ = ["BackwardContext", "Selection", "selection_by", "selection_of", "takes_from_ctx"]

# Those of a setup_context: they pass values on, and keep them as attributes. None asks an object for anything.
_INSTRUCTIONS = frozenset(
    {
        "RESUME", "NOP", "PUSH_NULL", "PRECALL", "CALL", "CALL_KW", "KW_NAMES", "CALL_FUNCTION_EX", "LOAD_FAST",
        "LOAD_FAST_LOAD_FAST", "STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "LOAD_CONST",
        "LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "BINARY_SUBSCR", "BINARY_SLICE", "BUILD_SLICE", "BUILD_TUPLE",
        "BUILD_LIST", "LIST_APPEND", "LIST_EXTEND", "LIST_TO_TUPLE", "CALL_INTRINSIC_1", "UNPACK_SEQUENCE",
        "UNPACK_EX", "COPY", "SWAP", "POP_TOP", "RETURN_VALUE", "RETURN_CONST",
    }
)  # fmt: skip
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_METHODS = ("save_for_backward", "set_materialize_grads")
_OF_NOTED = {"_saved", "_materializes"}  # attributes of ``_Noted``, which nobody else may set
_OF_AUTOGRAD = frozenset((*dir(torch.autograd.Function), *dir(FunctionCtx)))
_SAVED = frozenset({"saved_tensors", "needs_input_grad"})


@dataclass(frozen=True)
class Selection:
    """What is saved of a call. A place is the position of an argument, or -1 - that of an output.

    Attributes:
        saved: the places of ``ctx.saved_tensors``.
        attributes: the places of what is kept in attributes of ``ctx``.
        constants: attributes of ``ctx`` that are the same in every call.
        materialize_grads: whether zeros stand for the gradient of an output that nothing depends on.
        watched: what must be as it was for the rest to hold: the code of the ``setup_context`` and the backward.
    """

    saved: tuple[int, ...]
    attributes: dict[str, int]
    constants: dict[str, Any]
    materialize_grads: bool = True
    watched: tuple[Watched, ...] = field(default=(), compare=False)

    @property
    def places(self) -> tuple[int, ...]:
        return (*self.saved, *self.attributes.values())

    def fits(self, arguments: Sequence[Any]) -> bool:
        """Whether a native node can save what is chosen of these arguments: tensors in ``saved_tensors``, where torch
        takes nothing else, and none in attributes, where it does not look after them."""
        if any(getattr(function, name) is not value for function, name, value in self.watched):
            return False
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
    if signature.keyword_only or signature.returns_list:
        return None
    outputs = len(signature.returns) if signature.returns_tuple else 0
    selection = selection_by(setup_context, len(signature.arguments), outputs)
    taken = takes_from_ctx(backward)
    if selection is None or taken is None or not taken <= {*_SAVED, *selection.attributes, *selection.constants}:
        return None
    functions = (backward,) if setup_context is None else (backward, setup_context)
    return replace(selection, watched=tuple(each for f in functions for each in watched_fields(f)))


def selection_by(setup_context: Callable[..., Any] | None, arguments: int, outputs: int) -> Selection | None:
    """What a ``setup_context(ctx, inputs, output)`` saves of a call, None if that depends on the call.

    Args:
        arguments: their number.
        outputs: their number in a tuple; 0 for one alone.
    """
    if setup_context is None:
        return Selection((), {}, {})
    if type(setup_context) is not types.FunctionType or not _only_passes_on(setup_context):
        return None
    inputs = tuple(_Opaque() for _ in range(arguments))
    results = tuple(_Opaque() for _ in range(outputs or 1))
    places = {id(value): place for place, value in enumerate(inputs)}
    places |= {id(value): -1 - place for place, value in enumerate(results)}
    noted = _Noted()
    try:
        setup_context(ctx=noted, inputs=inputs, output=results if outputs else results[0])
        return _chosen(vars(noted), places)
    except Exception:  # it looks at something, or keeps something else
        return None


def _chosen(kept: dict[str, Any], places: dict[int, int]) -> Selection | None:
    saved, materializes = kept.pop("_saved"), kept.pop("_materializes")
    attributes = {name: places[id(value)] for name, value in kept.items() if id(value) in places}
    constants = {name: value for name, value in kept.items() if name not in attributes}
    if not all(map(is_constant, constants.values())) or not _OF_AUTOGRAD.isdisjoint(kept):
        return None
    if type(materializes) is not bool:
        return None
    return Selection(tuple(places[id(value)] for value in saved), attributes, constants, materializes)


def takes_from_ctx(backward: Callable[..., Any]) -> set[str] | None:
    """The attributes that a backward reads of its ``ctx``; None if it may do anything else with it."""
    if type(backward) is not types.FunctionType or backward.__code__.co_argcount == 0:
        return None
    code = backward.__code__
    ctx = code.co_varnames[0]
    if ctx in code.co_cellvars:  # an inner function has it
        return None
    taken: set[str] = set()
    for instruction, follows in itertools.pairwise(_instructions(code)):
        variables = _variables(instruction)
        if ctx not in variables:
            continue
        # Of several variables, the next instruction reads an attribute of the last.
        is_last = instruction.opname.endswith("LOAD_FAST") and ctx not in variables[:-1]
        if not is_last or follows.opname not in _ATTRIBUTES:
            return None
        taken.add(follows.argval)
    return taken


def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]


def _variables(instruction: dis.Instruction) -> tuple[str, ...]:
    """The function's own variables that an instruction names."""
    if "FAST" not in instruction.opname:
        return ()
    return instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)


def _only_passes_on(function: types.FunctionType) -> bool:
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not _OF_NOTED.isdisjoint(function.__code__.co_names):
        return False
    return all(map(is_constant, defaults)) and all(
        each.opname in _INSTRUCTIONS and (each.opname not in _ATTRIBUTES or each.argval in _METHODS)
        for each in _instructions(function.__code__)
    )


class _Noted:
    """A ``ctx`` that notes what is saved on it."""

    def __init__(self) -> None:
        self._saved: tuple[Any, ...] = ()
        self._materializes: Any = True

    def save_for_backward(self, *values: Any) -> None:
        self._saved = values

    def set_materialize_grads(self, value: Any) -> None:
        self._materializes = value


class _LookedAtError(Exception):
    """A function looks at what stands for an argument."""


def _refuse(self: Any, *_: Any) -> Any:
    raise _LookedAtError


class _Opaque:
    """What can be passed on, and nothing else."""

    __slots__ = ()
    __getattribute__ = __bool__ = __eq__ = __hash__ = __repr__ = __str__ = __format__ = _refuse
