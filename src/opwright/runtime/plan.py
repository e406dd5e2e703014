"""A call that was seen before, recognised in one step.

Whether an eager call is plain (see ``door``), whether its arguments agree with the contract and which kernels fit them
follows from the tensors' types, dtypes, devices, sizes, strides and dispatch keys, from the thread's dispatch state
and from the other arguments. torch.compile's guards compare all that of the tensors and the thread in one C++ call of a
quarter of a microsecond, where asking for each in Python takes five. So a plain call leaves such a guard behind, with
what was found out for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import forward_ad

__all__ = ["Plan", "make_plan", "nothing_listens", "static_key"]

_C = torch._C
# A kernel: opwright's own, or one of a shipped package.
K = TypeVar("K")


def nothing_listens() -> bool:
    """Whether nobody but the dispatcher's keys, which a plan's guard compares, has a say in calls right now."""
    return (
        forward_ad._current_level < 0
        and not _C._is_torch_function_mode_enabled()
        and not _C._autograd._profiler_enabled()
        and _C._len_torch_dispatch_stack() == 0
    )


class Plan(Generic[K]):
    """What to do for arguments like these.

    Attributes:
        kernels: those that fit, in order; each one's own ``when`` is still to be asked.
        device: the GPU where they run; None for another device.
    """

    __slots__ = ("_check", "_constants", "_tensors", "_without_grad", "device", "kernels")

    def __init__(
        self,
        kernels: tuple[K, ...],
        device: int | None,
        check: Callable[..., bool],
        tensors: tuple[int, ...] | None,
        constants: tuple[tuple[int, type, Any], ...],
        without_grad: bool,
    ) -> None:
        self.kernels = kernels
        self.device = device
        self._check = check
        self._tensors = tensors
        self._constants = constants
        # The guard compares whether tensors require a gradient, not whether gradients are being recorded.
        self._without_grad = without_grad

    def holds(self, arguments: Sequence[Any]) -> bool:
        """Whether these arguments are like those that the plan was made for. Asks nothing of modes or the profiler."""
        if self._without_grad and _C.is_grad_enabled():
            return False
        if self._tensors is None:  # the common case: there is nothing but tensors
            return self._check(*arguments)
        for position, kind, value in self._constants:
            given = arguments[position]
            if type(given) is not kind or given != value:
                return False
        return self._check(*[arguments[i] for i in self._tensors])


def make_plan(arguments: Sequence[Any], kernels: tuple[K, ...]) -> Plan[K] | None:
    """The plan for a call that was found plain and valid just now; None where arguments hold lists."""
    positions = tuple(i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor))
    others = [(i, type(a), a) for i, a in enumerate(arguments) if i not in positions]
    if not positions or any(isinstance(a, list | tuple) or a != a for _, _, a in others):
        return None
    tensors = [arguments[i] for i in positions]
    guard = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    device = tensors[0].get_device() if tensors[0].is_cuda else None
    without_grad = any(t.requires_grad for t in tensors)
    return Plan(kernels, device, guard.check, positions if others else None, tuple(others), without_grad)


def static_key(arguments: Sequence[Any]) -> Any:
    """What the checks of a call depend on, in any state of the thread: shapes, dtypes, devices, layouts, and scalars
    by type and value."""
    return tuple(
        (a.shape, a.dtype, a.device, a.layout)
        if isinstance(a, torch.Tensor)
        else static_key(a)
        if isinstance(a, list | tuple)
        else (type(a), a)
        for a in arguments
    )
