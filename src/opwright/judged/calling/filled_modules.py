"""A candidate's modules, with the reference's parameters and buffers.

Formats give these to a module once, before its first call, so that it may pack or pad them then. Other values are given
to a new module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch

from opwright.checks.conduct.steps import uncounted
from opwright.judged.calling.parameters import Tensors, corresponding, state_of

__all__ = ["FilledModule"]


@dataclasses.dataclass
class FilledModule:
    """The modules of one combination of constants.

    Args:
        construct: makes a new one.
        reference: makes one of the reference.
        loads_state: whether the format calls ``load_state_dict``, which a module may override.
    """

    construct: Callable[[], torch.nn.Module]
    reference: Callable[[], torch.nn.Module]
    loads_state: bool = False

    def __post_init__(self) -> None:
        self.refused_state = ""  # the error of load_state_dict
        self._module: torch.nn.Module | None = None
        self._given: Tensors = {}
        self._pairs: Mapping[str, str] | None = None

    def given(self, values: Tensors) -> torch.nn.Module:
        """A module that has these values. A kernel that takes no longer without a new one keeps nothing of its own."""
        with uncounted():
            return self._having(values)

    def _having(self, values: Tensors) -> torch.nn.Module:
        if self._module is None or not self._has(values):
            self._module = self.construct()
            self._given = {name: t.clone() for name, t in values.items()}
            if not (self.loads_state and self._is_loaded(self._module, values)):
                self._copied(self._module, values)
        elif self._pairs is not None:  # what calls before have updated
            self._copied(self._module, values)
        return self._module

    def _has(self, values: Tensors) -> bool:
        """Whether the module was given these values, and may still be changed: what a call under inference mode has
        made may be changed under it only."""
        state = state_of(self._module).values() if self._module is not None else ()
        if not torch.is_inference_mode_enabled() and any(t.is_inference() for t in state):
            return False
        return all(_are_same(values[name], t) for name, t in self._given.items())

    def _is_loaded(self, module: torch.nn.Module, values: Tensors) -> bool:
        """Whether the module takes the reference's state. What it has and no state has is given by name."""
        state = {name: values[name] for name in self.reference().state_dict() if name in values}
        try:
            module.load_state_dict(state, strict=True)
        except RuntimeError as error:
            self.refused_state = " ".join(str(error).split())
            return False
        for name, tensor in state_of(module).items():
            if name in values and name not in state and tensor.shape == values[name].shape:
                tensor.copy_(values[name])
        return True

    def _copied(self, module: torch.nn.Module, values: Tensors) -> None:
        own = state_of(module)
        if self._pairs is None:  # then they have their constructor's values
            self._pairs = corresponding(own, state_of(self.reference())) if own else {}
        for name, other in self._pairs.items():
            if own[name].numel() != values[other].numel():  # a copy would broadcast
                shapes = tuple(own[name].shape), tuple(values[other].shape)
                raise ValueError(f"the candidate's {name} takes values of the shape {shapes[0]}, got {shapes[1]}")
            value = values[other].reshape(own[name].shape)  # a seed gives other shapes the same numbers
            if not _are_same(own[name], value):  # a copy counts as a change, which modules may look for
                own[name].copy_(value)


def _are_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape have the same bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    whole = torch.uint8 if a.dtype.itemsize == 1 else None
    one, other = (t.detach().contiguous().view(whole or t.dtype) for t in (a, b))
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
