"""Strategies for Hypothesis: the arguments of calls that a contract admits."""

from __future__ import annotations

from typing import Any

from opwright.contract.inputs.arguments import arguments_of
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.sizes import elements
from opwright.errors import CheckError
from opwright.runtime.op import Op

__all__ = ["strategy"]

# In a dim: longer ones make each example slow.
_LONGEST = 1024
_DRAWS = 1 << 16


def strategy(op: Op[..., Any], *, device: str = "cpu", level: str = "quick") -> Any:
    """A strategy for the positional and keyword-only arguments of an operator, in order, as a tuple.

    Args:
        op: the operator.
        device: where tensors are.
        level: as for ``ow.check``; which sizes, layouts and values are drawn.

    Returns:
        A ``SearchStrategy``. It shrinks to the smallest sizes, contiguous, with ordinary values.

    Raises:
        CheckError: Hypothesis is not installed, or the operator communicates.
    """
    try:
        from hypothesis import strategies
    except ImportError:
        raise CheckError("ow.testing.strategy needs Hypothesis", fix="pip install hypothesis") from None
    contract = op.contract
    if contract.signature.groups:
        raise CheckError(
            f"{contract.qualname} needs a process group for its arguments", fix="use opwright check --ranks"
        )
    found = cases(contract, level, longest=_LONGEST, far=False)
    found.sort(key=lambda case: (not case.is_plain, case.layout != "contiguous", elements(contract, case)))
    drawn = strategies.tuples(strategies.sampled_from(found), strategies.integers(0, _DRAWS))
    return drawn.map(lambda chosen: arguments_of(contract, chosen[0], device, draw=chosen[1]))
