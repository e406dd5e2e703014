"""Calls of ``torch.ops.namespace.name``: those like an earlier one take the guarded path, as calls of the operator do.

torch keeps one object for each operator under ``torch.ops``, an ``OpOverloadPacket``, which torch.compile, export and
FX know by its class. A subclass of it is asked first. What is not like an earlier call goes to the dispatcher, and
leaves a guard if the dispatcher did nothing but call the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling

from opwright.contract.contract import Contract
from opwright.internals.dispatch import is_intercepted
from opwright.internals.registration import PACKET
from opwright.runtime.call.fast_path import GuardedCall, is_plain_call

__all__ = ["Guarded", "shorten"]

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


def shorten(operator: Guarded) -> None:
    """Guard the calls of an operator through ``torch.ops``; not of one with outputs that are saved for the backward,
    as ``torch.ops`` returns these, too."""
    signature = operator.contract.signature
    if _Packet is None or signature.visible < len(signature.returns):
        return
    packet = operator.overload.overloadpacket
    try:
        packet.__class__ = _Packet
    except TypeError:  # a class of torch with another layout
        return
    packet._operator, packet._unguarded = operator, 0


def _class_of_packets() -> Any:
    if PACKET is None:
        return None

    class Packet(PACKET):  # type: ignore[misc]
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

    Packet.__name__ = Packet.__qualname__ = PACKET.__name__
    return Packet


def _learn(operator: Guarded, arguments: Sequence[Any]) -> None:
    """Make a guard, if the dispatcher has done nothing but call the kernel, or track the gradient."""
    signature = operator.contract.signature
    if not all(isinstance(argument, _GUARDED) for argument in arguments):
        return  # lists, or proxies of a tracer
    if is_plain_call(arguments):
        operator._guard_like(arguments, tracked=False)
    elif not signature.mutated and not signature.returns_list and is_plain_call(arguments, autograd_tracked=True):
        operator._guard_like(arguments, tracked=True)


_Packet: Callable[..., Any] | None = _class_of_packets()
