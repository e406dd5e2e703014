"""The backward of a module as a module of its own: what a task that asks for a backward consists of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

__all__ = ["GradientModule", "with_gradient"]


class GradientModule(torch.nn.Module):
    """Takes the inputs of a module and the incoming gradient, and returns the gradients of the floating inputs, then
    those of the parameters. Zeros stand for the gradient of what does not change the result.

    Attributes:
        function: what the module calls in the place of its own function, as ``fn``.
    """

    function: ClassVar[Callable[..., Any] | None] = None

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any) -> Any:
        options = {} if self.function is None else {"fn": self.function}
        with torch.inference_mode(False), torch.enable_grad():  # whatever the mode of the caller
            *inputs, gradient = map(_tracked, arguments)
            state = {name: _tracked(p) for name, p in self.model.named_parameters()}
            output = torch.func.functional_call(self.model, state, tuple(inputs), options)
            wanted = [t for t in (*inputs, *state.values()) if isinstance(t, torch.Tensor) and t.requires_grad]
            incoming = gradient.detach().reshape(output.shape)
            found = torch.autograd.grad(output, wanted, incoming, allow_unused=True)
        gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]
        return gradients[0] if len(gradients) == 1 else tuple(gradients)

    @staticmethod
    def signature_of(model: type[torch.nn.Module]) -> inspect.Signature:
        """The names of the arguments: those of the module, ``self`` among them, then the gradient."""
        own = inspect.signature(model.forward).parameters
        names = [*(name for name in own if name != "fn"), "incoming_gradient"]
        return inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])


def with_gradient(model: torch.nn.Module, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, and an incoming gradient for the module's result of them."""
    with torch.no_grad():
        output = model(*inputs)
    return [*inputs, torch.randn(output.shape or (1,), dtype=output.dtype, device=output.device)]


def _tracked(value: Any) -> Any:
    """A floating tensor that autograd tracks from here on; others as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.clone() if value.is_inference() else value.detach()
    return plain.requires_grad_() if plain.is_floating_point() else plain
