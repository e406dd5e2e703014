"""Whether the reference has a derivative: torch has none of some functions, by some arguments, or in some dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.checks.context import Context
from opwright.checks.observation import Observation, copy_of, to_cpu
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.results import Origin

__all__ = ["Derivative", "Doubt", "derivative_of", "gradients_of_sum", "names_of_tensors"]


@dataclass(frozen=True)
class Doubt:
    """Something about gradients that needs attention, though it may be meant; and what to do about it."""

    message: str
    remedy: str


@dataclass(frozen=True)
class Derivative:
    """By which tensors the arguments of a case can be differentiated.

    Attributes:
        exists: for each tensor among the arguments.
        why_not: the reason for those without; empty if all differentiable ones have one.
    """

    exists: tuple[bool, ...]
    why_not: str = ""

    def track(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments, with tensors that have a derivative as leaves that require a gradient."""
        remaining = iter(self.exists)
        return tree.map_tensors(lambda t: t.detach().requires_grad_(next(remaining)), list(arguments))  # type: ignore[no-any-return]


def derivative_of(context: Context, run: Observation) -> Derivative:
    """By which tensors the operator can be differentiated: by all with a floating dtype if its gradient is custom, else
    by those by which the reference can."""
    contract = context.op.contract.functional
    names = names_of_tensors(context, run)
    every = tuple(derive.differentiable_arguments(context.op.contract, run.arguments))
    if contract is None or context.op.parts["autograd"].origin is Origin.CUSTOM:
        return Derivative(every if contract is not None else tuple(False for _ in every))
    error = _error(contract, run, every)
    if not error:
        return Derivative(every)
    alone = [tuple(i == j for j in range(len(every))) for i in range(len(every))]
    exists = tuple(e and not _error(contract, run, one) for e, one in zip(every, alone, strict=True))
    lacking = dict.fromkeys(name for name, e, has in zip(names, every, exists, strict=True) if e and not has)
    by = f" by {', '.join(map(repr, lacking))}" if any(exists) else ""
    return Derivative(exists, f"the reference has no derivative{by}: {error}")


def gradients_of_sum(
    contract: Contract, arguments: Sequence[Any], results: Sequence[torch.Tensor], needs: Sequence[bool]
) -> list[torch.Tensor]:
    """The reference's gradients of the sum of all results."""
    visible = contract.signature.visible
    grads = [torch.ones_like(o) if i < visible and derive.differentiable(o) else None for i, o in enumerate(results)]
    return derive.vjp(contract, arguments, grads, needs)


def names_of_tensors(context: Context, run: Observation) -> list[str]:
    """The name of the argument of each tensor; of those of a list, with its place."""
    names = []
    for argument, value in zip(context.op.contract.signature.arguments, run.arguments, strict=True):
        tensors = tree.tensors([value])
        is_list = isinstance(value, list | tuple)
        names += [f"{argument.name}[{i}]" if is_list else argument.name for i in range(len(tensors))]
    return names


def _error(contract: Contract, run: Observation, needs: Sequence[bool]) -> str:
    """What the reference's VJP raises in the dtypes of a case; empty if it is computed."""
    try:
        gradients_of_sum(contract, to_cpu(copy_of(run.before)), run.expected, needs)
    except Exception as error:  # torch raises NotImplementedError, RuntimeError and others
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    return ""
