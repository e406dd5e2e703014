"""Calls of ``torch.ops.namespace.name``: those like an earlier one take the guarded path, as calls of the operator do.

torch keeps two objects for each operator under ``torch.ops``: an ``OpOverloadPacket``, and for ``.default`` an
``OpOverload``, which is what code that Inductor generates calls. torch.compile, export and FX know them by their
classes. Subclasses of these are asked first. What is not like an earlier call goes to the dispatcher, and leaves a
guard if the dispatcher did nothing but call the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling

from opwright.contract.binding import fill
from opwright.contract.contract import Contract
from opwright.internals.dispatch import is_intercepted
from opwright.internals.registration import OVERLOAD, PACKET
from opwright.runtime.call.fast_path import GuardedCall, is_plain_call

__all__ = ["CALLED", "Guarded", "shorten"]

# After so many calls that were like none before, such as with a number that always changes, no more guards are made.
_MOST_GUARDED = 64
_GUARDED = (torch.Tensor, bool, int, float, str, torch.dtype, torch.device, type(None))


class Guarded(Protocol):
    """The interface of an operator whose calls through ``torch.ops`` are guarded."""

    contract: Contract
    overload: Any
    _guarded_calls: tuple[GuardedCall, ...]
    _arity: int

    def _guard_like(self, arguments: Sequence[Any], *, tracked: bool) -> None: ...


def shorten(operator: Guarded) -> Callable[..., Any]:
    """Guard the calls of an operator through ``torch.ops``; not of one with outputs that are saved for the backward,
    as ``torch.ops`` returns these, too.

    Returns:
        What calls the dispatcher, guards or not.
    """
    signature, overload = operator.contract.signature, operator.overload
    if signature.visible == len(signature.returns):
        _give_class(overload.overloadpacket, _Packet, operator)
        if _give_class(overload, _Overload, operator):
            return overload.dispatch  # type: ignore[no-any-return]
    return overload  # type: ignore[no-any-return]


def _give_class(of_torch: Any, guarded: Any, operator: Guarded) -> bool:
    try:
        if guarded is not None:
            of_torch.__class__ = guarded
    except TypeError:  # a class of torch with another layout
        return False
    of_torch._operator, of_torch._unguarded = operator, 0
    return guarded is not None


def _guarded_class(base: Any) -> Any:
    """A class of torch, with calls that are guarded."""
    if base is None:
        return None

    class Called(base):  # type: ignore[misc]
        _operator: Guarded
        _unguarded: int

        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            operator = self._operator
            if kwargs or len(args) != operator._arity or is_dynamo_compiling() or is_intercepted():
                return super().__call__(*args, **kwargs)
            for holds, run in operator._guarded_calls:
                if holds(*args):
                    return run(*args)
            result = super().__call__(*args)
            if self._unguarded < _MOST_GUARDED:
                self._unguarded += 1
                _learn(operator, args)
            return result

        def dispatch(self, /, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    Called.__name__ = Called.__qualname__ = base.__name__
    return Called


def _learn(operator: Guarded, arguments: Sequence[Any]) -> None:
    """Make a guard, if the dispatcher has done nothing but call the kernel, or track the gradient."""
    signature = operator.contract.signature
    if not all(isinstance(argument, _GUARDED) for argument in arguments):
        return  # lists, or proxies of a tracer
    if any(a is not b for a, b in zip(arguments, fill(operator.contract, arguments, {}), strict=True)):
        return  # the dispatcher has converted a number or a text, and a guard would not
    if is_plain_call(arguments):
        operator._guard_like(arguments, tracked=False)
    elif not signature.mutated and not signature.returns_list and is_plain_call(arguments, autograd_tracked=True):
        operator._guard_like(arguments, tracked=True)


_Packet, _Overload = _guarded_class(PACKET), _guarded_class(OVERLOAD)
# The classes of torch's objects; their attribute ``_operator`` keeps the guarded calls.
CALLED: tuple[Any, ...] = tuple(cls for cls in (_Packet, _Overload) if cls is not None)
