"""How an operator that writes its arguments meets autograd and ``torch.func``: by its functional form, whose new values
are copied into the arguments. Everywhere else its kernels write them directly.

The functional form is a second operator, ``demo::f_functional``, which returns the new values (``contract.py``); its
kernels are those of ``demo::f`` on copies (``call/on_copies.py``). torch.compile functionalises the schema of
``demo::f``, and makes no copy where the old value is not needed. Writes count in the tensors' versions, so a backward
that saved a written tensor raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.contract.contract import Contract
from opwright.contract.overlap import overlap_check
from opwright.errors import KernelRefusedError
from opwright.internals.autograd import is_under_no_grad, redispatch_below_autograd
from opwright.internals.dispatch import forward_mode_is_on
from opwright.runtime.register.autograd_function import InOrder

__all__ = ["autograd_in_place", "refuse_gradients", "transforms_in_place"]

# The overload of the functional form, or None.
Functional = Callable[[], Any]


def autograd_in_place(
    contract: Contract, overload: Any, in_order: InOrder, functional: Functional
) -> Callable[..., Any]:
    """The kernel for the dispatch key ``Autograd``, which also takes the key set. A reference under ``torch.no_grad()``
    writes its arguments as autograd does not see, and so does the operator."""
    tracks = not is_under_no_grad(contract.function)

    def autograd(keyset: Any, *args: Any, **keywords: Any) -> Any:
        if (tracks and _wants_gradients(args)) or forward_mode_is_on():
            return _by_functional_form(contract, functional, in_order(args, keywords))
        return redispatch_below_autograd(overload, keyset, args, keywords)

    return autograd


def refuse_gradients(contract: Contract, args: Sequence[Any]) -> None:
    """For a torch that lacks what ``autograd_in_place`` needs: the gradient of what is written would be lost."""
    if _wants_gradients(args):
        raise KernelRefusedError(
            f"{contract.qualname} writes its arguments, and torch {torch.__version__} lacks private APIs that its "
            "gradient needs (`opwright doctor` lists them)",
            fix=f"call {contract.name}.functional, which returns the new values",
        )


def _wants_gradients(args: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tree.tensors(list(args)))


def transforms_in_place(contract: Contract, in_order: InOrder, functional: Functional) -> Callable[..., Any]:
    """The kernel for calls inside ``torch.func`` transforms."""

    def transformed(*args: Any, **keywords: Any) -> Any:
        return _by_functional_form(contract, functional, in_order(args, keywords))

    return transformed


def _by_functional_form(contract: Contract, functional: Functional, arguments: Sequence[Any]) -> Any:
    overload = functional()
    if overload is None:
        raise KernelRefusedError(
            f"{contract.qualname} writes a list of tensors or an optional one, so it has no functional form, which "
            "gradients and torch.func need",
            fix="call it under torch.no_grad(), on detached tensors, and outside of torch.func",
        )
    overlap_check(contract, arguments)(*arguments)
    # Of copies, which autograd may save: the arguments themselves are about to be modified.
    positional, keywords = contract.signature.split(contract.with_copies(arguments))
    found = overload(*positional, **keywords)
    results = found if isinstance(found, tuple | list) else (found,)
    count = len(contract.signature.returns)
    for tensor, value in zip(contract.signature.written(arguments), results[count:], strict=True):
        tensor.copy_(value)
    return contract.pack(results[:count])
