"""Errors where torch traces an operator: those of the reference itself, and of a backward that it cannot trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.context import Context
from opwright.checks.derivatives.derivative import gradients_of_sum
from opwright.checks.exceptions import in_words, text_of
from opwright.checks.observation import Observation, copy_of, to_cpu
from opwright.results import Finding, Origin

__all__ = ["reference_fault", "with_remedy"]

# A shorter text may be that of any error.
_LEAST = 12


def reference_fault(
    context: Context, run: Observation, needs: Sequence[bool], error: BaseException, *, dynamic: bool
) -> str:
    """What the reference alone raises if torch traces it and its gradient, where that is what ``error`` says. Empty if
    the reference raises nothing, or something else.

    Args:
        needs: for each tensor among the arguments, whether its gradient is needed.
        dynamic: whether sizes are symbols.
    """
    contract, arguments = context.op.contract, to_cpu(copy_of(list(run.arguments)))

    def forward(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return list(contract.reference(_with(arguments, tensors)))

    def backward(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return gradients_of_sum(contract, _with(arguments, tensors), forward(*tensors), needs)

    for function in (forward, backward) if any(needs) else (forward,):
        raised = _raised(function, tree.tensors(arguments), dynamic=dynamic)
        if raised is None:
            continue
        first = (text_of(raised).strip().splitlines() or [""])[0]
        if len(first) >= _LEAST and first in text_of(error):
            return f"the reference itself raises {in_words(raised).strip().splitlines()[0][:200]}"
    return ""


def with_remedy(context: Context, failure: Finding) -> Finding:
    """A failure in a trace with what to do about it, where a registered backward launches kernels on traced tensors."""
    is_custom = context.op.parts["autograd"].origin is Origin.CUSTOM
    if is_custom and any(words in failure.message for words in _ON_TRACED_TENSORS):
        return dataclasses.replace(failure, remedy=_MAKE_AN_OPERATOR)
    return failure


# What torch, and kernels in Triton's simulator, say of tensors without memory, and of sizes that are symbols.
_ON_TRACED_TENSORS = ("Cannot access data pointer of Tensor", "is a SymInt, which the Triton simulator does not take",
                      "unhashable type: non-nested SymInt")  # fmt: skip
_MAKE_AN_OPERATOR = (
    "torch.compile cannot trace the kernels that the registered backward launches: make the backward an operator of "
    "its own, and register that one with op.register_autograd"
)


def _with(arguments: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    remaining = iter(tensors)
    return tree.map_tensors(lambda _: next(remaining), list(arguments))  # type: ignore[no-any-return]


def _raised(function: Callable[..., Any], tensors: Sequence[torch.Tensor], *, dynamic: bool) -> BaseException | None:
    """The innermost exception of a trace."""
    from torch.fx.experimental.proxy_tensor import make_fx  # here, as it is needed after an error only

    try:
        make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(*tensors)
    except Exception as error:  # the reference may raise anything
        found: BaseException = error
        while (inner := getattr(found, "inner_exception", None) or found.__cause__) is not None:
            found = inner
        return found
    return None
