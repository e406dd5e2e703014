"""The parameters and buffers of a module, without a walk through it at each call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as registration

__all__ = ["ModuleTensors"]


class ModuleTensors:
    """The tensors that a module reads besides its arguments. A walk through a large module takes longer than a replay,
    so torch's hooks report when a parameter, a buffer or a module in it is registered."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changed = True
        reference = weakref.ref(self)

        def note(owner: nn.Module, name: str, value: Any) -> None:
            found = reference()
            if found is not None and id(owner) in found._ids:
                found._changed = True

        hooks = [
            registration.register_module_parameter_registration_hook(note),
            registration.register_module_buffer_registration_hook(note),
            registration.register_module_module_registration_hook(note),
        ]
        self._ids: set[int] = set()
        for hook in hooks:
            weakref.finalize(self, hook.remove)

    def tensors(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Its parameters and its buffers, each once."""
        if self._changed:
            self._changed = False
            self._modules = list(self._module.modules())
            self._ids = {id(module) for module in self._modules}
            self._parameters = dict(self._module.named_parameters())
            self._buffers = list(self._module.buffers())
        return list(self._parameters.values()), self._buffers

    def look_again(self) -> None:
        """Walk through the module at the next call: not every change of a module is reported."""
        self._changed = True

    def modes(self) -> list[bool]:
        """Whether each module in it is in training mode."""
        return [module.training for module in self._modules]

    def call(self, parameters: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        """Call the module with its parameters replaced by other tensors."""
        return functional_call(self._module, dict(zip(self._parameters, parameters, strict=True)), args, kwargs)
