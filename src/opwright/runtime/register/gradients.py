"""An operator's gradient: derived from its reference, or custom. Both save on ``ctx`` what their backward needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling

from opwright import tree
from opwright.backends.triton.tracing import traceable_launcher
from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.contract.signature import Kind
from opwright.errors import ContractError
from opwright.internals.compiler import DispatchMode, a_graph_is_traced
from opwright.internals.dispatch import is_batched, is_plain_call, transforms_are_on
from opwright.runtime.register.backward_operator import BackwardOperator
from opwright.runtime.register.replicated import are_distributed, has_no_placements, on_whole_tensors
from opwright.runtime.register.saved_values import CustomContext, save_values, saved_values
from opwright.runtime.register.vjp_operator import gradient_in_form_of, vjp_name, vjp_of_plain

__all__ = ["CustomGradient", "DerivedGradient", "Gradient", "Select", "Selection", "custom_gradient"]

Backward = Callable[..., Any]
SetupContext = Callable[..., None]


class Gradient(Protocol):
    """The two halves of a gradient."""

    # What is saved, where no call is needed to know it: the positions of arguments, and -1 - those of outputs. Then
    # ``gradients`` does what ``backward`` does, without the ctx of an ``autograd.Function``.
    @property
    def sources(self) -> tuple[int, ...] | None: ...

    # Whether zeros stand for the gradient of an output that nothing depends on, as ``ctx.set_materialize_grads`` says.
    materialize_grads: bool

    def fits(self, arguments: Sequence[Any]) -> bool:
        """Whether the values of ``sources`` can be saved without a ctx, of calls with arguments like these."""

    def save(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        """Save on ``ctx`` what the backward needs. ``arguments`` are in signature order; ``output`` has all outputs."""

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        """A gradient, or None, for each argument that autograd tracks."""

    def gradients(self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        """The same from the values of ``sources``."""

    @property
    def selection(self) -> Selection | None:
        """What a custom ``setup_context`` saves, if ``sources`` are from it."""

    # -- recording it (recorded_gradient.py)

    @property
    def computed_by(self) -> Any:
        """What computes it: the reference, or the registered backward."""

    @property
    def backward_operator(self) -> Any:
        """The operator that is the whole gradient; None if there is none."""

    recordings: int  # how often that was tried

    def traceable_gradients(
        self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]
    ) -> Sequence[Any]:
        """As ``gradients``, in torch's own operations, and operators that are named, on whatever tensors the values
        are."""


class DerivedGradient:
    """The VJP of the reference, recomputed from the arguments (``vjp_operator``).

    An output that nothing depends on is left out, as torch leaves it out of the reference: zeros times an infinite
    derivative would be NaN.
    """

    materialize_grads = False

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.sources = tuple(range(len(contract.signature.arguments)))
        self.recordings = 0

    selection = backward_operator = None

    @property
    def computed_by(self) -> Any:
        return self.contract.function

    def fits(self, arguments: Sequence[Any]) -> bool:
        return True

    def save(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        ctx.set_materialize_grads(self.materialize_grads)
        save_values(ctx, arguments)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        return self.gradients(saved_values(ctx), ctx.needs_input_grad, grads)

    def gradients(self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        contract = self.contract
        if contract.random:
            raise ContractError(
                f"{contract.qualname} is random: no gradient is derived, because the reference would draw other "
                "numbers than the forward",
                fix="return what was drawn (ow.saved_for_backward), and define the gradient with op.register_autograd",
            )
        if contract.signature.returns_list:
            (grads,) = grads  # torch gives the gradients of a list as a list
        return self._by(self._vjp_for, values, needs_input_grad, grads)

    def traceable_gradients(
        self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]
    ) -> Sequence[Any]:
        of_plain = functools.partial(vjp_of_plain, self.contract)
        return self._by(lambda *_: of_plain, values, needs_input_grad, grads)

    def _by(
        self,
        vjp_for: Callable[[Sequence[Any], Sequence[Any]], Callable[..., Sequence[torch.Tensor]]],
        arguments: Sequence[Any],
        needs_input_grad: Sequence[Any],
        grads: Sequence[Any],
    ) -> Sequence[Any]:
        contract = self.contract
        needs = _needs(contract, arguments, needs_input_grad)
        incoming = _without_none(grads, contract, arguments)
        found, remaining = iter(vjp_for(arguments, incoming)(incoming, *arguments, needs)), iter(needs)

        def gradient_of(leaf: Any) -> Any:
            return next(found) if isinstance(leaf, torch.Tensor) and next(remaining) else None

        has_list = any(a.kind is Kind.TENSOR_LIST for a in contract.signature.arguments)
        return [gradient_in_form_of(a, gradient_of, has_list) for a in arguments]

    def _vjp_for(self, arguments: Sequence[Any], incoming: Sequence[Any]) -> Callable[..., Sequence[torch.Tensor]]:
        contract = self.contract
        is_traced = is_dynamo_compiling()  # by compiled autograd
        if not is_traced and not torch.is_grad_enabled() and is_plain_call((incoming, *arguments)):
            return functools.partial(vjp_of_plain, contract)  # nobody would see the operator
        if transforms_are_on():
            # torch.func does not differentiate through lists, which the VJP operator takes, so it is called directly.
            return functools.partial(derive.functional_vjp, contract)
        is_sparse = any(grad.layout is not torch.strided for grad in incoming)  # such as an embedding's
        if is_sparse or are_distributed(arguments) or (not is_traced and any(map(is_batched, incoming))):
            # DTensor has placements for the reference's own operations, and torch.autograd batches of them; an operator
            # with lists would need a rule.
            return functools.partial(_vjp_of_the_reference, contract)
        operator: Callable[..., Sequence[torch.Tensor]]
        operator = getattr(getattr(torch.ops, contract.namespace), vjp_name(contract)).default
        if a_graph_is_traced():
            return functools.partial(_vjp_in_a_graph, contract, operator)
        return operator


def _needs(contract: Contract, arguments: Sequence[Any], flags: Sequence[Any]) -> list[bool]:
    """For each tensor among the arguments, lists flattened, whether its gradient is needed."""
    padded = [*flags, *[False] * (len(arguments) - len(flags))]  # autograd has no flags for keyword-only arguments
    padded = [need if i not in contract.signature.without_gradient else False for i, need in enumerate(padded)]
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
    """The gradients of all outputs as tensors; an empty tensor stands for None.

    For the second derivative, autograd tracks a list only if all of its items are tensors.
    """
    visible, every = contract.signature.visible, len(contract.signature.returns)
    incoming = [*grads[:visible], *[None] * (every - visible)]  # saved-for-backward outputs have no gradients
    if all(g is not None for g in incoming):
        return incoming
    nothing = tree.tensors(list(arguments))[0].new_empty(0)
    return [nothing if g is None else g for g in incoming]


def _vjp_of_the_reference(contract: Contract, grad_outputs: Sequence[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
    *arguments, needs = rest
    try:
        return derive.vjp(contract, arguments, grad_outputs, needs, create_graph=torch.is_grad_enabled())
    except NotImplementedError as error:
        if torch.is_grad_enabled() or not (are_distributed(arguments) and has_no_placements(error)):
            raise

    def of_whole(grads: Sequence[torch.Tensor], *whole: Any) -> list[torch.Tensor]:
        return derive.vjp(contract, whole, grads, needs)

    return on_whole_tensors(contract.qualname, of_whole, [list(grad_outputs), *arguments])  # type: ignore[no-any-return]


# A gradient of more operations is one node of a traced graph, which would take long to trace and to compile.
_MOST_OPERATIONS = 256


class _Counted(DispatchMode):  # type: ignore[misc]
    """Ends what runs within after so many operations."""

    def __init__(self) -> None:
        super().__init__()
        self._remaining = _MOST_OPERATIONS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._remaining -= 1
        if self._remaining < 0:
            raise _TooMany
        return func(*args, **(kwargs or {}))


class _TooMany(Exception):
    pass


def _vjp_in_a_graph(
    contract: Contract, operator: Callable[..., Any], grad_outputs: Sequence[torch.Tensor], *rest: Any
) -> Sequence[torch.Tensor]:
    """The operations of the reference's gradient, which a compiler fuses; or the operator, where they are many or
    cannot be traced. What was traced before that is of no use, and no part of the graph."""
    *arguments, needs = rest
    device = tree.tensors(arguments)[0].device.type
    try:
        with torch.autocast(device, enabled=False), _Counted():  # as around the operator itself
            return derive.vjp(contract, contract.with_members(arguments), grad_outputs, needs)
    except Exception:  # a reference raises anything where it reads values
        return operator(grad_outputs, *rest)  # type: ignore[no-any-return]


class Selection(Protocol):
    """What a custom ``setup_context`` saves, where no call is needed to know it (``setup_selection.py``)."""

    @property
    def places(self) -> tuple[int, ...]:
        """As ``Gradient.sources``."""

    @property
    def materialize_grads(self) -> bool:
        """As ``Gradient.materialize_grads``."""

    @property
    def watched(self) -> tuple[Any, ...]:
        """What must be as it was for the selection to hold."""

    @property
    def attributes(self) -> Mapping[str, int]:
        """The names on ``ctx`` that have values of the call."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """The names on ``ctx`` that have the same value in each call."""

    def fits(self, arguments: Sequence[Any]) -> bool:
        """As ``Gradient.fits``."""

    def context(self, values: Sequence[Any], needs_input_grad: Sequence[bool]) -> Any:
        """The ``ctx`` of the backward, from the values at ``places``."""


Select = Callable[[Contract, Backward, SetupContext | None], Selection | None]


class CustomGradient:
    """A registered backward and setup_context, as in ``torch.library.register_autograd``."""

    def __init__(
        self, contract: Contract, backward: Backward, setup_context: SetupContext | None, select: Select | None = None
    ) -> None:
        self.contract = contract
        self._backward = backward
        self._setup_context = setup_context
        self.selection: Selection | None = None
        self.sources: tuple[int, ...] | None = None
        self.recordings = 0
        if isinstance(backward, BackwardOperator):
            self.sources = backward.sources
        elif select is not None and (selection := select(contract, backward, setup_context)) is not None:
            self.selection, self.sources = selection, selection.places
        self.materialize_grads = self.selection is None or self.selection.materialize_grads

    def fits(self, arguments: Sequence[Any]) -> bool:
        return self.selection is None or self.selection.fits(arguments)

    def save(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        if self._setup_context is None:
            return
        if self.contract.signature.keyword_only:
            inputs, named = self.contract.signature.split(arguments)
            self._setup_context(ctx=ctx, inputs=inputs, output=output, keyword_only_inputs=named)
        else:
            self._setup_context(ctx=ctx, inputs=tuple(arguments), output=output)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        backward = self._in_a_graph if a_graph_is_traced() else self._backward
        found = backward(ctx, *grads)
        none = self.contract.signature.without_gradient
        return tuple(None if i in none else g for i, g in enumerate(found if isinstance(found, tuple) else (found,)))

    @functools.cached_property
    def _in_a_graph(self) -> Backward:
        """The backward for fake tensors, on which Triton's kernels cannot run: their launches become nodes."""
        return traceable_launcher(self._backward) or self._backward

    def gradients(self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        if self.selection is not None:
            return self.backward(self.selection.context(values, needs_input_grad), grads)
        assert isinstance(self._backward, BackwardOperator)  # no other has sources
        return self._backward.gradients(values, needs_input_grad, grads)

    traceable_gradients = gradients

    @property
    def computed_by(self) -> Any:
        return self._backward

    @property
    def backward_operator(self) -> Any:
        return self._backward.operator if isinstance(self._backward, BackwardOperator) else None


class _CustomGradientOfSaved:
    """A custom gradient of an operator with saved-for-backward outputs.

    No gradient flows through saved outputs, so that a derivative of the custom backward would miss terms. So the
    arguments are saved as well, and second derivatives come from the reference.
    """

    def __init__(
        self, contract: Contract, backward: Backward, setup_context: SetupContext | None, select: Select | None = None
    ) -> None:
        self._visible = contract.signature.visible
        self._custom = CustomGradient(contract, backward, setup_context, select)
        self._derived = DerivedGradient(contract)
        self.materialize_grads = self._custom.materialize_grads
        own = self._custom.sources
        self.sources = None if own is None else (*own, *self._derived.sources)
        self.recordings = 0

    def fits(self, arguments: Sequence[Any]) -> bool:
        return self._custom.fits(arguments)

    def save(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None:
        custom_ctx = CustomContext(ctx)
        self._custom.save(custom_ctx, arguments, output)
        custom_ctx.save_with(arguments)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]:
        if torch.is_grad_enabled():
            return self._derived.backward(ctx, grads)
        return self._custom.backward(CustomContext.in_backward(ctx), grads[: self._visible])

    def gradients(self, values: Sequence[Any], needs_input_grad: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        count = len(self._custom.sources or ())
        if torch.is_grad_enabled():
            return self._derived.gradients(values[count:], needs_input_grad, grads)
        return self._custom.gradients(values[:count], needs_input_grad, grads[: self._visible])

    traceable_gradients = gradients

    @property
    def selection(self) -> Selection | None:
        return self._custom.selection

    @property
    def computed_by(self) -> Any:
        return self._custom.computed_by

    @property
    def backward_operator(self) -> Any:
        return self._custom.backward_operator


def custom_gradient(
    contract: Contract, backward: Backward, setup_context: SetupContext | None, select: Select | None = None
) -> Gradient:
    """The gradient of an operator from a registered backward and setup_context."""
    saves = contract.signature.visible < len(contract.signature.returns)
    return (_CustomGradientOfSaved if saves else CustomGradient)(contract, backward, setup_context, select)
