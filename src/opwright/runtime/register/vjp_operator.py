"""The VJP operator: the derived gradient as a separate operator.

``demo::saxpy`` gets a second operator, ``demo::saxpy_vjp``, which recomputes the reference and differentiates it. What
torch.compile caches for a training step then contains only the backward's name, so that no cache has an old
gradient, and profilers show it. Its own gradient is plain torch operations, which have derivatives of any order.

Where torch.compile traces a backward, it traces the reference's operations instead, so that a compiler fuses them. A
reference that reads values, or has too many operations (``gradients.py``), stays one operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.contract.reference import fresh_outputs
from opwright.internals.compiler import real_constants
from opwright.internals.dispatch import run_with_default_keys
from opwright.runtime.register.saved_values import save_values, saved_values

__all__ = ["VjpOperator", "gradient_in_form_of", "vjp_name", "vjp_of_plain", "vjp_schema"]


def vjp_name(contract: Contract) -> str:
    """The name of the derived backward, in the operator's namespace."""
    return f"{contract.name}_vjp"


def vjp_schema(contract: Contract) -> str:
    """``(Tensor[] grad_outputs, <the operator's arguments>, bool[] needs) -> Tensor[]``.

    ``needs`` has one entry for each tensor argument (lists flattened); only those gradients are computed.
    """

    taken = {a.name for a in contract.signature.arguments}

    def own_name(name: str) -> str:
        return own_name(f"{name}_") if name in taken else name

    def parameter(name: str, annotation: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)

    def prototype() -> None: ...

    parameters = [
        parameter(own_name("grad_outputs"), list[torch.Tensor]),
        *[parameter(a.name, a.schema_type) for a in contract.signature.arguments],
        parameter(own_name("needs"), Sequence[bool]),
    ]
    prototype.__signature__ = inspect.Signature(parameters, return_annotation=list[torch.Tensor])  # type: ignore[attr-defined]
    return torch.library.infer_schema(prototype, mutates_args=())


def vjp_of_plain(contract: Contract, grad_outputs: Any, *rest: Any) -> list[torch.Tensor]:
    """What the VJP operator computes, for plain arguments, on which the dispatcher has no effect. As in torch's own
    backward of ``x + y``, a gradient may be the incoming tensor itself."""
    *listed, needs = rest
    return derive.vjp_of_real(contract, contract.with_members(listed), grad_outputs, needs)


class VjpOperator:
    """The VJP operator's result, its fake, and its own gradient."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract

    def run(self, grad_outputs: Any, *rest: Any) -> list[torch.Tensor]:
        *listed, needs = rest
        arguments = self.contract.with_members(listed)
        found = run_with_default_keys(derive.vjp, self.contract, arguments, grad_outputs, needs)
        # The gradient of x + y is the incoming tensor itself; an operator's outputs must be new tensors, because
        # Inductor reuses the memory of tensors without further uses.
        return list(fresh_outputs(found, (grad_outputs, arguments)))

    def fake(self, grad_outputs: Any, *rest: Any) -> list[torch.Tensor]:
        *arguments, needs = rest
        return [t.new_empty(t.shape) for t, need in zip(tree.tensors(arguments), needs, strict=True) if need]

    def setup_context(self, ctx: Any, inputs: Any, output: Any) -> None:
        save_values(ctx, inputs)

    @real_constants()
    def backward(self, ctx: Any, grads: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Differentiate the VJP by all of its arguments, keeping the graph for higher derivatives."""
        keep = torch.is_grad_enabled()

        def prepare(leaf: Any) -> Any:
            if not derive.differentiable(leaf):
                return leaf
            return leaf.view_as(leaf) if keep and leaf.requires_grad else leaf.detach().requires_grad_()

        with torch.enable_grad():
            inputs = tree.map_leaves(prepare, saved_values(ctx))
            grad_outputs, *arguments, needs = inputs
            members = self.contract.with_members(arguments)
            outputs = derive.vjp(self.contract, members, grad_outputs, needs, create_graph=True)
            wanted = [t for t in tree.leaves(inputs) if derive.differentiable(t)]
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad and g is not None]
            found: Sequence[Any] = [None] * len(wanted)
            if pairs:
                found = torch.autograd.grad(
                    [o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True, create_graph=keep
                )
        by_leaf = iter(found)

        def gradient_of(leaf: Any) -> Any:
            return next(by_leaf) if derive.differentiable(leaf) else None

        return tuple(gradient_in_form_of(i, gradient_of, has_list=True) for i in inputs)


def gradient_in_form_of(value: Any, gradient_of: Any, has_list: bool) -> Any:
    """A gradient, or for a list of tensors a list of them: the structure that autograd expects back.

    Args:
        gradient_of: returns the gradient of each leaf, in order.
        has_list: whether a list of tensors is among the operator's parameters.
    """
    if not isinstance(value, list):
        return gradient_of(value)
    each = [gradient_of(v) for v in value]
    # For an operator with a list of tensors in its schema, autograd flattens every such list, even an empty one of
    # numbers; any other list is one argument (supports_tensorlist in torch/_library/autograd.py).
    return each if has_list and all(isinstance(v, torch.Tensor) for v in value) else None
