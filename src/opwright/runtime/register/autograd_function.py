"""How an operator meets autograd and ``torch.func``: one ``autograd.Function``, whose forward is the operator itself.

``torch.library.register_autograd`` makes such a function too, but one without a ``setup_context`` of its own, which
``torch.func.grad``, ``hessian`` and the like refuse (torch 2.11 to 2.15). Forward-mode derivatives run the reference:
its own operations carry the tangents, in any composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from opwright.contract.contract import Contract
from opwright.internals.autograd import any_requires_grad, is_functionalize, redispatch_below_autograd
from opwright.internals.dispatch import forward_mode_is_on
from opwright.runtime.register.rules import Rules

__all__ = ["kernel_for_autograd", "kernel_for_transforms", "make_function", "make_tracker"]

InOrder = Callable[[Sequence[Any], dict[str, Any]], tuple[Any, ...]]


class _Passed(NamedTuple):
    """What goes with the arguments: the dispatcher's keys (None: start from the top), and those by keyword only."""

    keyset: Any
    keywords: dict[str, Any]


def make_function(rules: Rules, overload: Any, in_order: InOrder) -> type[torch.autograd.Function]:
    """The ``autograd.Function`` of an operator without lists of tensors. Its last argument is a ``_Passed``."""

    def forward(*given: Any) -> Any:
        *args, passed = given
        if passed.keyset is None:
            return overload(*args, **passed.keywords)
        return redispatch_below_autograd(overload, passed.keyset, args, passed.keywords)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *args, passed = inputs
        ctx.needs_input_grad = ctx.needs_input_grad[:-1]  # the last argument is ours
        rules.setup_context(ctx, in_order(args, passed.keywords), output)

    def vmap(info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        *args, passed = given
        dims = (*in_dims[:-1], *(None,) * (len(rules.contract.signature.arguments) - len(args)))
        return rules.vmap(info, dims, in_order(args, passed.keywords))

    steps = {"forward": forward, "setup_context": setup_context, "backward": _backward_of(rules), "vmap": vmap}
    return _function_named(rules.contract, steps)


def _function_named(contract: Contract, steps: dict[str, Callable[..., Any]]) -> type[torch.autograd.Function]:
    """A Function under a name that profilers show."""
    return type(
        f"{contract.name}_gradient", (torch.autograd.Function,), {n: staticmethod(step) for n, step in steps.items()}
    )


def _backward_of(rules: Rules) -> Callable[..., tuple[Any, ...]]:
    """``backward(ctx, *grads)`` of a Function whose last argument is none of the operator's."""
    positional = len(rules.contract.signature.positional)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = tuple(rules.gradient.backward(ctx, grads))
        count = len(ctx.needs_input_grad)  # the dispatcher drops arguments that equal their defaults
        if len(found) == positional == count:
            return (*found, None)
        expected = min(count, positional)
        if len(found) < expected or any(g is not None for g in found[expected:]):
            raise RuntimeError(
                f"{rules.contract.qualname}: its backward returned {len(found)} gradients; expected one, or None, "
                f"for each of its {positional} positional arguments"
            )
        return (*found[:expected], *[None] * (count - expected), None)

    return backward


def make_tracker(rules: Rules) -> Callable[..., Any]:
    """The ``autograd.Function`` of calls that nothing but autograd takes notice of, past the dispatcher, as a function
    of the arguments and of what runs a kernel on them. It gives what the operator's caller gets: what is saved for the
    backward is kept, and is no output.

    Its forward takes ``ctx``: of one that does not, torch binds the arguments anew for each call.
    """
    visible = rules.contract.visible

    def forward(ctx: Any, *given: Any) -> Any:
        *arguments, run = given
        output = run(*arguments)
        ctx.needs_input_grad = ctx.needs_input_grad[:-1]  # run is not an argument
        rules.gradient.save(ctx, arguments, output)
        return visible(output)

    function: Any = _function_named(rules.contract, {"forward": forward, "backward": _backward_of(rules)})
    # Past Function.apply's own look for functorch: a plain call has none of its tensors.
    return super(torch.autograd.Function, function).apply  # type: ignore[no-any-return]


def kernel_for_autograd(
    contract: Contract, overload: Any, in_order: InOrder, function: type[torch.autograd.Function]
) -> Callable[..., Any]:
    """The kernel for the dispatch key ``Autograd``; it gets the key set besides."""

    def autograd(keyset: Any, *args: Any, **keywords: Any) -> Any:
        if forward_mode_is_on():
            return _through_the_reference(contract, in_order(args, keywords))
        if torch.is_grad_enabled() and any_requires_grad(*args):
            return function.apply(*args, _Passed(keyset, keywords))
        return redispatch_below_autograd(overload, keyset, args, keywords)

    return autograd


def kernel_for_transforms(
    contract: Contract, in_order: InOrder, function: type[torch.autograd.Function]
) -> Callable[..., Any]:
    """The kernel for calls inside ``torch.func`` transforms, before the innermost of them takes the call."""

    def transformed(*args: Any, **keywords: Any) -> Any:
        if forward_mode_is_on() or is_functionalize():
            return _through_the_reference(contract, in_order(args, keywords))
        return function.apply(*args, _Passed(None, keywords))

    return transformed


def _through_the_reference(contract: Contract, arguments: Sequence[Any]) -> Any:
    return contract.pack(contract.traceable(arguments))
