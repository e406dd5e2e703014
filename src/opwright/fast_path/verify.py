"""Makes a fast call the plain way, too, and compares the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract.contract import Contract
from opwright.contract.dtypes import element_bytes
from opwright.errors import FastCallError
from opwright.fast_path.extension import fast_calls_extension
from opwright.fast_path.learning import Learner

__all__ = ["call_both_ways", "difference", "same_bits"]

Call = Callable[[tuple[Any, ...]], Any]


def call_both_ways(contract: Contract, learner: Learner, arguments: tuple[Any, ...], plain: Call) -> Any:
    """Make a call that a guard would take both ways, and any other the plain way.

    Args:
        plain: makes the call the plain way; returns all outputs.

    Returns:
        The result of the plain way.

    Raises:
        FastCallError: the two differ.
    """
    extension = fast_calls_extension.loaded
    guarded = extension.find_guarded(learner, arguments) if extension is not None else None
    if extension is None or guarded is None:
        return plain(arguments)
    copies = tuple(contract.with_copies(arguments))
    fast = _Outcome.of(lambda: extension.run_guarded(learner, guarded, copies))
    expected = _Outcome.of(lambda: plain(arguments))
    _compare(contract, fast, expected, copies, arguments)
    return expected.result()


class _Outcome:
    """What a call returned or raised."""

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value, self.error = value, error

    @classmethod
    def of(cls, call: Callable[[], Any]) -> _Outcome:
        try:
            return cls(call(), None)
        except Exception as error:  # a kernel raises anything
            return cls(None, error)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def _compare(
    contract: Contract, fast: _Outcome, plain: _Outcome, copies: Sequence[Any], arguments: Sequence[Any]
) -> None:
    if type(fast.error) is not type(plain.error):
        raise FastCallError(
            f"{contract.qualname}: a fast call raised {fast.error!r}, the plain call {plain.error!r}", fix=_FIX
        )
    if fast.error is not None or contract.random:
        return
    ones = [*tree.leaves([fast.value]), *contract.signature.written(copies)]
    others = [*tree.leaves([contract.visible(plain.value)]), *contract.signature.written(arguments)]
    different = difference(ones, others)
    if different is not None:
        raise FastCallError(f"{contract.qualname}: a fast call differs from the plain call: {different}", fix=_FIX)


def difference(ones: Sequence[Any], others: Sequence[Any]) -> str | None:
    """The first difference of results, in words; None if they are the same to the bit."""
    if len(ones) != len(others):
        return f"{len(ones)} results, not {len(others)}"
    for i, (one, other) in enumerate(zip(ones, others, strict=True)):
        if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
            if one is not other:
                return f"result {i} is {one!r}, not {other!r}"
        elif not same_bits(one, other):
            return f"result {i} has other values, sizes, strides or another dtype"
        elif one.requires_grad != other.requires_grad:
            return f"result {i} has requires_grad={one.requires_grad}, not {other.requires_grad}"
    return None


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, device, sizes, strides and bits."""
    return (
        (one.dtype, one.device, one.shape, one.stride()) == (other.dtype, other.device, other.shape, other.stride())
        and not one.is_meta
        and element_bytes(one.detach()).equal(element_bytes(other.detach()))
    )


_FIX = "report it, and set OPWRIGHT_FAST_CALLS=0 until it is mended"
