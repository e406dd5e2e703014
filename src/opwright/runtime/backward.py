"""The derived gradient: the VJP of the meaning, as an operator of its own.

``demo::saxpy`` gets a second operator, ``demo::saxpy_vjp``. What torch.compile caches for a training
step then holds only the backward's name, so that no cache can serve an old gradient, and profilers show
it. Its own gradient is plain torch arithmetic, so that derivatives of any order follow.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.contract.reference import fresh_outputs
from opwright.contract.signature import Kind
from opwright.runtime.door import as_from_outside

__all__ = ["AuthorsContext", "VjpRules", "derived_backward", "save_values", "saved_values", "vjp_name", "vjp_schema"]


def vjp_name(contract: Contract) -> str:
    """The name of the derived backward, in the operator's namespace."""
    return f"{contract.name}_vjp"


def vjp_schema(contract: Contract) -> str:
    """``(Tensor[] grad_outputs, <the operator's arguments>, bool[] needs) -> Tensor[]``.

    ``needs`` has one entry for each tensor argument (lists flattened); only those gradients are computed.
    """
    inside = contract.schema[1 : contract.schema.rindex(") ->")]
    parameters = [part for part in _without_defaults(inside) if part != "*"]
    return f"({', '.join(['Tensor[] grad_outputs', *parameters, 'bool[] needs'])}) -> Tensor[]"


def _without_defaults(parameters: str) -> list[str]:
    """The parameters of a schema, bare: ``Tensor x, int[] s=[1, 2]`` → ``Tensor x`` and ``int[] s``."""
    parts, depth = [""], 0
    for letter in parameters:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.split("=")[0].strip() for part in parts if part.strip()]


def save_values(ctx: Any, values: Sequence[Any], before: Sequence[Any] = ()) -> None:
    """Keep values of any kind on an autograd context: tensors where autograd tracks them, the rest beside.

    Args:
        before: tensors (or None) that somebody else keeps, to be found first among ``ctx.saved_tensors``.
    """
    kinds = set(map(type, values))
    if kinds <= _TENSORS:
        ctx.save_for_backward(*before, *values)
        ctx.kept = _Kept(len(before), None, None)
        return
    structure = None
    if not kinds.isdisjoint(_LISTS):
        values, structure = _pytree.tree_flatten(list(values))
    tensors = [value if isinstance(value, torch.Tensor) else None for value in values]
    ctx.save_for_backward(*before, *tensors)
    others = [value if tensor is None else None for value, tensor in zip(values, tensors, strict=True)]
    ctx.kept = _Kept(len(before), others, structure)


class _Kept(NamedTuple):
    """What ``saved_values`` needs besides the tensors: how many come before, the other values (None: there are none),
    how all fit together."""

    before: int
    others: list[Any] | None
    structure: Any


_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_LISTS = frozenset({list, tuple, dict})


def saved_values(ctx: Any) -> list[Any]:
    """What ``save_values`` kept."""
    before, others, structure = ctx.kept
    values = list(ctx.saved_tensors[before:])
    if others is not None:
        values = [other if tensor is None else tensor for tensor, other in zip(values, others, strict=True)]
    return values if structure is None else _pytree.tree_unflatten(values, structure)


class AuthorsContext:
    """What a hand-written backward sees of ``ctx`` where the arguments are kept beside its own tensors.

    What the author sets is found in the backward by the same name, and apart from what we keep.
    """

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    @classmethod
    def in_backward(cls, ctx: Any) -> AuthorsContext:
        author = cls(ctx)
        vars(author).update(getattr(ctx, "authors_own", ()))  # none, where the gradient was registered since
        return author

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        needs: tuple[bool, ...] = self._ctx.needs_input_grad
        return needs

    def save_for_backward(self, *tensors: Any) -> None:
        self._to_save = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        ctx = self._ctx
        saved: tuple[Any, ...] = ctx.saved_tensors[: ctx.kept.before]
        return saved

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_ctx"], name)

    def keep(self, arguments: Sequence[Any]) -> None:
        """Keep what the author wants to have in the backward, and the arguments."""
        own = vars(self)
        ctx = own.pop("_ctx")
        save_values(ctx, arguments, own.pop("_to_save", ()))
        ctx.authors_own = own


def derived_backward(contract: Contract, ctx: Any, grads: Sequence[Any]) -> list[Any]:
    """The gradient of every argument (None where there is none), through the VJP operator."""
    arguments = saved_values(ctx)
    given = list(ctx.needs_input_grad)
    given += [False] * (len(arguments) - len(given))  # autograd does not speak of keyword-only arguments
    needs = [n for value, need in zip(arguments, given, strict=True) for n in _needs_of(value, need)]
    operator = getattr(getattr(torch.ops, contract.namespace), vjp_name(contract)).default
    if torch._C._are_functorch_transforms_active():
        # The VJP operator takes lists, which torch.func does not look into: its inside does as well here.
        operator = functools.partial(derive.functional_vjp, contract)
    elif _are_distributed(arguments):
        # DTensor finds placements for the meaning's own operations; for an operator with lists it would need a rule.
        operator = functools.partial(_vjp_of_the_meaning, contract)
    visible, every = contract.signature.visible, len(contract.signature.returns)
    incoming = [*grads[:visible], *[None] * (every - visible)]  # what is saved for a backward has no gradient
    if any(gradient is None for gradient in incoming):
        # Autograd looks into a list of tensors only, for the second derivative. Without elements means none.
        nothing = next(t for t in _pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)).new_empty(0)
        incoming = [nothing if g is None else g for g in incoming]
    found, remaining = iter(operator(incoming, *arguments, needs)), iter(needs)

    def gradient_of(leaf: Any) -> Any:
        return next(found) if isinstance(leaf, torch.Tensor) and next(remaining) else None

    has_list = any(a.kind is Kind.TENSOR_LIST for a in contract.signature.arguments)
    return [_for_each_tensor(gradient_of, a, has_list) for a in arguments]


def _vjp_of_the_meaning(contract: Contract, grad_outputs: Sequence[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
    *arguments, needs = rest
    return derive.vjp(contract, arguments, grad_outputs, needs, create_graph=torch.is_grad_enabled())


def _are_distributed(values: Sequence[Any]) -> bool:
    tensor = sys.modules.get("torch.distributed.tensor")  # not imported: there is no such value
    return tensor is not None and any(isinstance(v, tensor.DTensor) for v in _pytree.tree_leaves(values))


def _for_each_tensor(gradient_of: Any, value: Any, has_list: bool) -> Any:
    """A gradient, or for a list of tensors a list of them: the structure that autograd expects back."""
    if not isinstance(value, list):
        return gradient_of(value)
    each = [gradient_of(v) for v in value]
    # An operator with a list of tensors in its schema has every such list taken apart, an empty one of numbers
    # too; any other list is one argument (torch/_library/autograd.py, supports_tensorlist).
    return each if has_list and all(isinstance(v, torch.Tensor) for v in value) else None


def _needs_of(value: Any, need: Any) -> list[bool]:
    if isinstance(value, list):
        each = need if isinstance(need, list | tuple) else [need] * len(value)
        pairs = zip(value, each, strict=True)
        return [bool(n) and derive.differentiable(v) for v, n in pairs if isinstance(v, torch.Tensor)]
    return [bool(need) and derive.differentiable(value)] if isinstance(value, torch.Tensor) else []


class VjpRules:
    """What the VJP operator does: its result, its fake, and its own gradient."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract

    def run(self, grad_outputs: Any, *rest: Any) -> list[torch.Tensor]:
        *arguments, needs = rest
        with as_from_outside():
            found = derive.vjp(self.contract, arguments, grad_outputs, needs)
        # The gradient of x + y is the very tensor that came in; an operator's outputs must be its own, as
        # Inductor reuses the memory of what it believes dead.
        return list(fresh_outputs(found, (grad_outputs, arguments)))

    def fake(self, grad_outputs: Any, *rest: Any) -> list[torch.Tensor]:
        *arguments, needs = rest
        tensors = [t for t in _pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)]
        return [t.new_empty(t.shape) for t, need in zip(tensors, needs, strict=True) if need]

    def setup_context(self, ctx: Any, inputs: Any, output: Any) -> None:
        save_values(ctx, inputs)

    def backward(self, ctx: Any, grads: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Differentiate the VJP by everything it took, keeping the graph if a higher order asks for it."""
        keep = torch.is_grad_enabled()

        def prepare(leaf: Any) -> Any:
            if not derive.differentiable(leaf):
                return leaf
            return leaf.view_as(leaf) if keep and leaf.requires_grad else leaf.detach().requires_grad_()

        with torch.enable_grad():
            inputs = _pytree.tree_map(prepare, saved_values(ctx))
            grad_outputs, *arguments, needs = inputs
            outputs = derive.vjp(self.contract, arguments, grad_outputs, needs, create_graph=True)
            wanted = [t for t in _pytree.tree_leaves(inputs) if derive.differentiable(t)]
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad and g is not None]
            found: Sequence[Any] = [None] * len(wanted)
            if pairs:
                found = torch.autograd.grad(
                    [o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True, create_graph=keep
                )
        by_leaf = iter(found)

        def gradient_of(leaf: Any) -> Any:
            return next(by_leaf) if derive.differentiable(leaf) else None

        return tuple(_for_each_tensor(gradient_of, i, has_list=True) for i in inputs)
