"""An operator's gradient: derived from its reference, or custom. Either keeps on ``ctx`` what its backward needs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from opwright import tree
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.contract.signature import Kind
from opwright.internals.dispatch import transforms_are_on
from opwright.runtime.register.saved_values import AuthorsContext, save_values, saved_values
from opwright.runtime.register.vjp_operator import gradient_in_form_of, vjp_name

__all__ = ["CustomGradient", "DerivedGradient", "Gradient", "custom_gradient"]

Backward = Callable[..., Any]
SetupContext = Callable[..., None]


class Gradient(Protocol):
    """The two halves of a gradient."""

    def save(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        """Keep on ``ctx`` what the backward needs. ``arguments`` in signature order; ``output`` has all outputs."""

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        """A gradient, or None, for each argument that autograd speaks of."""


class DerivedGradient:
    """The VJP of the reference, recomputed from the arguments (``vjp_operator``)."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract

    def save(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        save_values(ctx, arguments)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        contract, arguments = self.contract, saved_values(ctx)
        needs = _needs(arguments, ctx.needs_input_grad)
        incoming = _without_none(grads, contract, arguments)
        found, remaining = iter(self._vjp_for(arguments)(incoming, *arguments, needs)), iter(needs)

        def gradient_of(leaf: Any) -> Any:
            return next(found) if isinstance(leaf, torch.Tensor) and next(remaining) else None

        has_list = any(a.kind is Kind.TENSOR_LIST for a in contract.signature.arguments)
        return [gradient_in_form_of(a, gradient_of, has_list) for a in arguments]

    def _vjp_for(self, arguments: Sequence[Any]) -> Callable[..., Sequence[torch.Tensor]]:
        contract = self.contract
        if transforms_are_on():
            # The VJP operator takes lists, which torch.func does not look into: its inside does as well here.
            return functools.partial(derive.functional_vjp, contract)
        if _are_distributed(arguments):
            # DTensor finds placements for the reference's own operations; an operator with lists would need a rule.
            return functools.partial(_vjp_of_the_reference, contract)
        operator: Callable[..., Sequence[torch.Tensor]]
        operator = getattr(getattr(torch.ops, contract.namespace), vjp_name(contract)).default
        return operator


def _needs(arguments: Sequence[Any], given: Sequence[Any]) -> list[bool]:
    """For each tensor among the arguments, lists flattened, whether its gradient is wanted."""
    padded = [*given, *[False] * (len(arguments) - len(given))]  # autograd does not speak of keyword-only arguments
    needs: list[bool] = []
    for value, need in zip(arguments, padded, strict=True):
        if isinstance(value, list):
            each = need if isinstance(need, list | tuple) else [need] * len(value)
            pairs = zip(value, each, strict=True)
            needs += [bool(n) and derive.differentiable(v) for v, n in pairs if isinstance(v, torch.Tensor)]
        elif isinstance(value, torch.Tensor):
            needs.append(bool(need) and derive.differentiable(value))
    return needs


def _without_none(grads: Sequence[Any], contract: Contract, arguments: Sequence[Any]) -> list[Any]:
    """The gradients of all outputs as tensors; one without elements stands for none.

    Autograd looks into a list only if all of it are tensors, for the second derivative.
    """
    visible, every = contract.signature.visible, len(contract.signature.returns)
    incoming = [*grads[:visible], *[None] * (every - visible)]  # what is saved for a backward has no gradient
    if all(g is not None for g in incoming):
        return incoming
    nothing = tree.tensors(list(arguments))[0].new_empty(0)
    return [nothing if g is None else g for g in incoming]


def _vjp_of_the_reference(contract: Contract, grad_outputs: Sequence[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
    *arguments, needs = rest
    return derive.vjp(contract, arguments, grad_outputs, needs, create_graph=torch.is_grad_enabled())


def _are_distributed(values: Sequence[Any]) -> bool:
    tensor = sys.modules.get("torch.distributed.tensor")  # not imported: there is no such value
    return tensor is not None and any(isinstance(v, tensor.DTensor) for v in tree.leaves(list(values)))


class CustomGradient:
    """What an author registered, with the reference of ``torch.library.register_autograd``."""

    def __init__(self, contract: Contract, backward: Backward, setup_context: SetupContext | None) -> None:
        self.contract = contract
        self._backward = backward
        self._setup_context = setup_context

    def save(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        if self._setup_context is None:
            return
        if self.contract.signature.keyword_only:
            inputs, named = self.contract.signature.split(arguments)
            self._setup_context(ctx=ctx, inputs=inputs, output=output, keyword_only_inputs=named)
        else:
            self._setup_context(ctx=ctx, inputs=tuple(arguments), output=output)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        found = self._backward(ctx, *grads)
        return found if isinstance(found, tuple) else (found,)


class _CustomGradientOfSaved:
    """The same for an operator with saved-for-backward outputs.

    No gradient flows through what is saved, so that a derivative of the custom backward would miss terms. The arguments
    are kept besides, and where a second derivative is asked for, the reference gives it.
    """

    def __init__(self, contract: Contract, backward: Backward, setup_context: SetupContext | None) -> None:
        self._visible = contract.signature.visible
        self._custom = CustomGradient(contract, backward, setup_context)
        self._derived = DerivedGradient(contract)

    def save(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        author = AuthorsContext(ctx)
        self._custom.save(author, arguments, output)
        author.keep(arguments)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        if torch.is_grad_enabled():
            return self._derived.backward(ctx, grads)
        return self._custom.backward(AuthorsContext.in_backward(ctx), grads[: self._visible])


def custom_gradient(contract: Contract, backward: Backward, setup_context: SetupContext | None) -> Gradient:
    """The gradient of an operator from what its author registered."""
    saves = contract.signature.visible < len(contract.signature.returns)
    return (_CustomGradientOfSaved if saves else CustomGradient)(contract, backward, setup_context)
