"""An operator's ``autograd.Function``, for autograd and ``torch.func``; its forward is the operator itself.

``torch.library.register_autograd`` makes such a function too, but without a ``setup_context`` of its own, which
``torch.func.grad``, ``hessian`` and others refuse (torch 2.11 to 2.15). Forward-mode derivatives run the reference,
whose operations propagate the tangents, in any composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from opwright.contract.contract import Contract
from opwright.internals.autograd import any_requires_grad, is_functionalize, redispatch_below_autograd
from opwright.internals.dispatch import forward_mode_is_on
from opwright.runtime.register.replicated import are_distributed, has_no_placements, on_whole_tensors
from opwright.runtime.register.rules import Rules

__all__ = [
    "gradient_for_each", "gradient_name", "kernel_for_autograd", "kernel_for_transforms", "make_function",
    "make_tracker",
]  # fmt: skip

InOrder = Callable[[Sequence[Any], dict[str, Any]], tuple[Any, ...]]


class _Passed(NamedTuple):
    """Passed with the arguments: the dispatcher's keys (None: a new dispatch), and keyword-only arguments."""

    keyset: Any
    keywords: dict[str, Any]


def make_function(rules: Rules, overload: Any, in_order: InOrder) -> type[torch.autograd.Function]:
    """Make the ``autograd.Function`` of an operator without lists of tensors. Its last argument is a ``_Passed``."""

    def forward(*args_and_passed: Any) -> Any:
        *args, passed = args_and_passed
        if passed.keyset is None:
            return overload(*args, **passed.keywords)
        return _below_autograd(rules.contract, overload, passed.keyset, args, passed.keywords)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *args, passed = inputs
        ctx.needs_input_grad = ctx.needs_input_grad[:-1]  # without the _Passed
        ctx.gradient = rules.gradient
        rules.setup_context(ctx, in_order(args, passed.keywords), output)

    def vmap(info: Any, in_dims: Any, *args_and_passed: Any) -> tuple[Any, Any]:
        *args, passed = args_and_passed
        dims = (*in_dims[:-1], *(None,) * (len(rules.contract.signature.arguments) - len(args)))
        return rules.vmap(info, dims, in_order(args, passed.keywords))

    steps = {"forward": forward, "setup_context": setup_context, "backward": _backward_of(rules), "vmap": vmap}
    return _function_named(rules.contract, steps)


def _function_named(contract: Contract, steps: dict[str, Callable[..., Any]]) -> type[torch.autograd.Function]:
    """A Function with a name for profilers."""
    return type(
        gradient_name(contract).removesuffix("Backward"),  # which torch appends
        (torch.autograd.Function,),
        {n: staticmethod(step) for n, step in steps.items()},
    )


def _backward_of(rules: Rules) -> Callable[..., tuple[Any, ...]]:
    """``backward(ctx, *grads)`` of a Function whose last argument is not the operator's. The gradient is that of the
    forward's time, which has chosen what was saved."""

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = tuple(ctx.gradient.backward(ctx, grads))
        count = len(ctx.needs_input_grad)  # the dispatcher drops arguments that equal their defaults
        return (*gradient_for_each(rules.contract, found, count), None)

    return backward


def gradient_for_each(contract: Contract, found: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """What a backward returned, as a gradient or None for each of ``count`` arguments.

    Raises:
        RuntimeError: it returned fewer, or more that are not None.
    """
    positional = len(contract.signature.positional)
    if len(found) == positional == count:
        return found
    expected = min(count, positional)
    extra = next((i for i, g in enumerate(found[expected:positional], expected) if g is not None), None)
    if extra is not None and len(found) == positional:  # as torch says of an argument that the dispatcher passes
        raise RuntimeError(
            f"function {gradient_name(contract)} returned a gradient different than None at position {extra + 1}, "
            "but the corresponding forward input was not a Variable"
        )
    if len(found) < expected or any(g is not None for g in found[expected:]):
        raise RuntimeError(
            f"{contract.qualname}: its backward returned {len(found)} gradients; expected one, or None, "
            f"for each of its {positional} positional arguments"
        )
    return (*found[:expected], *[None] * (count - expected))


def gradient_name(contract: Contract) -> str:
    """The name of a call in autograd's graph, as profilers and errors show it."""
    return f"{contract.name}_gradientBackward"


def make_tracker(rules: Rules) -> Callable[..., Any]:
    """Make the ``autograd.Function`` of autograd-tracked calls without the dispatcher, as a function of the arguments
    and of the function that runs a kernel on them. It returns visible outputs only; saved-for-backward outputs are
    saved.

    Its forward takes ``ctx``, because without it torch binds the arguments in Python at each call.
    """
    visible = rules.contract.visible

    def forward(ctx: Any, *args_and_passed: Any) -> Any:
        *arguments, run = args_and_passed
        output = run(*arguments)
        ctx.needs_input_grad = ctx.needs_input_grad[:-1]  # run is not an argument
        ctx.gradient = rules.gradient
        ctx.gradient.save(ctx, arguments, output)
        return visible(output)

    function: Any = _function_named(rules.contract, {"forward": forward, "backward": _backward_of(rules)})
    # Skips Function.apply's own test for functorch: a plain call has no functorch tensors.
    return super(torch.autograd.Function, function).apply  # type: ignore[no-any-return]


def kernel_for_autograd(rules: Rules, overload: Any, in_order: InOrder) -> Callable[..., Any]:
    """The kernel for the dispatch key ``Autograd``, which also takes the key set.

    No transform of ``torch.func`` is at work below this key. So its Function has a forward that takes ``ctx``: without
    it torch binds the arguments in Python at each call, and asks for transforms.
    """
    contract = rules.contract

    def forward(ctx: Any, *args_and_passed: Any) -> Any:
        *args, passed = args_and_passed
        output = _below_autograd(contract, overload, passed.keyset, args, passed.keywords)
        ctx.needs_input_grad = ctx.needs_input_grad[:-1]  # without the _Passed
        ctx.gradient = rules.gradient
        rules.setup_context(ctx, in_order(args, passed.keywords), output)
        return output

    steps = {"forward": forward, "backward": _backward_of(rules)}
    function: Any = _function_named(contract, steps)
    apply = super(torch.autograd.Function, function).apply

    is_grad_enabled = torch.is_grad_enabled

    def autograd(keyset: Any, *args: Any, **keywords: Any) -> Any:
        if forward_mode_is_on():
            return _run_reference(contract, in_order(args, keywords))
        if is_grad_enabled() and any_requires_grad(*args):
            return apply(*args, _Passed(keyset, keywords))
        return _below_autograd(contract, overload, keyset, args, keywords)

    return autograd


def _below_autograd(contract: Contract, overload: Any, keyset: Any, args: Any, keywords: dict[str, Any]) -> Any:
    """Continue a call below autograd; on whole tensors, if torch cannot place its DTensors."""
    try:
        return redispatch_below_autograd(overload, keyset, args, keywords)
    except NotImplementedError as error:
        if not (are_distributed(args) and has_no_placements(error)):
            raise
    return on_whole_tensors(contract.qualname, lambda *whole: overload(*whole, **keywords), args)


def kernel_for_transforms(
    contract: Contract, in_order: InOrder, function: type[torch.autograd.Function]
) -> Callable[..., Any]:
    """The kernel for calls inside ``torch.func`` transforms, before the innermost of them takes the call."""

    def transformed(*args: Any, **keywords: Any) -> Any:
        if forward_mode_is_on() or is_functionalize():
            return _run_reference(contract, in_order(args, keywords))
        return function.apply(*args, _Passed(None, keywords))

    return transformed


def _run_reference(contract: Contract, arguments: Sequence[Any]) -> Any:
    return contract.pack(contract.traceable(arguments))
