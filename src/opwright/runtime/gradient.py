"""How an operator meets autograd and ``torch.func``: one ``autograd.Function``, whose forward is the operator itself.

``torch.library.register_autograd`` makes such a function too, but one without a ``setup_context`` of its own, which
``torch.func.grad``, ``hessian`` and the like refuse (torch 2.11 to 2.15). Forward-mode derivatives run the meaning: its
own operations carry the tangents, in any composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd import forward_ad

from opwright.contract.contract import Contract

__all__ = ["Differentiable", "make_function", "make_recorder", "meets_autograd", "meets_transforms"]

_C = torch._C


class Differentiable(Protocol):
    """What an operator tells of its gradient."""

    contract: Contract

    def setup_context(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None: ...
    def keep(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None: ...
    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]: ...
    def batch(self, info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]: ...


class _Passed(NamedTuple):
    """What goes with the arguments: the dispatcher's keys (None: start from the top), and those by keyword only."""

    keyset: Any
    keywords: dict[str, Any]


InOrder = Callable[[Sequence[Any], dict[str, Any]], tuple[Any, ...]]


def make_function(operator: Differentiable, overload: Any, in_order: InOrder) -> type[torch.autograd.Function]:
    """The ``autograd.Function`` of an operator without lists of tensors. Its last argument is a ``_Passed``."""

    def forward(*given: Any) -> Any:
        *args, passed = given
        if passed.keyset is None:
            return overload(*args, **passed.keywords)
        with _C._AutoDispatchBelowAutograd():
            return overload.redispatch(passed.keyset & _C._after_autograd_keyset, *args, **passed.keywords)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *args, passed = inputs
        ctx.needs_input_grad = ctx.needs_input_grad[:-1]  # the last argument is ours
        operator.setup_context(ctx, in_order(args, passed.keywords), output)

    backward = _backward_of(operator)

    def vmap(info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        *args, passed = given
        dims = (*in_dims[:-1], *(None,) * (len(operator.contract.signature.arguments) - len(args)))
        return operator.batch(info, dims, in_order(args, passed.keywords))

    rules = {"forward": forward, "setup_context": setup_context, "backward": backward, "vmap": vmap}
    name = f"{operator.contract.name}_gradient"
    return type(name, (torch.autograd.Function,), {n: staticmethod(rule) for n, rule in rules.items()})


def _backward_of(operator: Differentiable) -> Callable[..., tuple[Any, ...]]:
    """``backward(ctx, *grads)`` of a Function whose last argument is none of the operator's."""

    positional = len(operator.contract.signature.positional)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = tuple(operator.backward(ctx, grads))
        count = len(ctx.needs_input_grad)  # the dispatcher drops arguments that equal their defaults
        if len(found) == positional == count:
            return (*found, None)
        expected = min(count, positional)
        if len(found) < expected or any(g is not None for g in found[expected:]):
            raise RuntimeError(
                f"{operator.contract.qualname}: its backward returned {len(found)} gradients; expected one, or None, "
                f"for each of its {positional} positional arguments"
            )
        return (*found[:expected], *[None] * (count - expected), None)

    return backward


def make_recorder(operator: Differentiable) -> Callable[..., Any]:
    """The ``autograd.Function`` of calls that nothing but autograd takes notice of, past the dispatcher, as a function
    of the arguments and of what runs a kernel on them. It gives what the operator's caller gets: what is saved for the
    backward is kept, and is no output.

    Its forward takes ``ctx``: of one that does not, torch binds the arguments anew for each call.
    """

    visible = operator.contract.visible

    def forward(ctx: Any, *given: Any) -> Any:
        *arguments, run = given
        output = run(*arguments)
        ctx.needs_input_grad = ctx.needs_input_grad[:-1]  # run is not an argument
        operator.keep(ctx, arguments, output)
        return visible(output)

    rules = {"forward": forward, "backward": _backward_of(operator)}
    name = f"{operator.contract.name}_gradient"
    function: Any = type(name, (torch.autograd.Function,), {n: staticmethod(rule) for n, rule in rules.items()})
    # Past Function.apply's own look for functorch: a plain call has none of its tensors.
    return super(torch.autograd.Function, function).apply  # type: ignore[no-any-return]


def meets_autograd(
    operator: Differentiable, overload: Any, in_order: InOrder, function: type[torch.autograd.Function]
) -> Callable[..., Any]:
    """The kernel for the dispatch key ``Autograd``; it gets the key set besides."""

    def autograd(keyset: Any, *args: Any, **keywords: Any) -> Any:
        if forward_ad._current_level >= 0:
            return _through_the_meaning(operator.contract, in_order(args, keywords))
        if _C.is_grad_enabled() and _C._any_requires_grad(*args):
            return function.apply(*args, _Passed(keyset, keywords))
        with _C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & _C._after_autograd_keyset, *args, **keywords)

    return autograd


def meets_transforms(
    operator: Differentiable, in_order: InOrder, function: type[torch.autograd.Function]
) -> Callable[..., Any]:
    """The kernel for calls inside ``torch.func`` transforms, before the innermost of them takes the call."""

    def transformed(*args: Any, **keywords: Any) -> Any:
        if forward_ad._current_level >= 0 or _is_functionalize():
            return _through_the_meaning(operator.contract, in_order(args, keywords))
        return function.apply(*args, _Passed(None, keywords))

    return transformed


def _is_functionalize() -> bool:
    """Whether the innermost transform is ``torch.func.functionalize``, which knows no autograd.Function."""
    return bool(_C._functorch.peek_interpreter_stack().key() == _C._functorch.TransformType.Functionalize)


def _through_the_meaning(contract: Contract, arguments: Sequence[Any]) -> Any:
    return contract.pack(contract.traceable(arguments))
