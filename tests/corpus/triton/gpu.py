"""Every launch of a case twice: in the simulator, and on a GPU from the same bits."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from opwright import tree
from opwright.backends.triton.simulator.simulate import _Simulation

__all__ = ["Launches", "on_a_gpu_as_well"]


@dataclass
class Launches:
    """What the launches of a case left in their tensors.

    Attributes:
        count: the launches that both made.
        same: the number of those after which every tensor has the same bits.
        largest: of the others, the largest difference relative to a tensor's largest element, by kernel.
    """

    count: int = 0
    same: int = 0
    largest: dict[str, float] = field(default_factory=dict)

    def add(self, kernel: str, here: Sequence[Tensor], there: Sequence[Tensor]) -> None:
        self.count += 1
        if all(torch.equal(_bytes(a), _bytes(b)) for a, b in zip(here, there, strict=True)):
            self.same += 1
            return
        found = max(_difference(a, b) for a, b in zip(here, there, strict=True))
        self.largest[kernel] = max(found, self.largest.get(kernel, 0.0))


def _difference(a: Tensor, b: Tensor) -> float:
    """Relative to the largest element. Memory that was never written may hold NaN, in both."""
    alike = (a == b) | (a.isnan() & b.isnan())
    zero = torch.zeros((), dtype=a.dtype)
    scale = a.double().abs().nan_to_num(0, 0, 0).max().clamp(min=1e-9) if a.numel() else 1.0
    gap = (torch.where(alike, zero, a).double() - torch.where(alike, zero, b).double()).abs()
    return float((gap / scale).nan_to_num(torch.inf).max()) if a.numel() else 0.0


def _bytes(t: Tensor) -> Tensor:
    return t.contiguous().flatten().view(torch.uint8) if t.numel() else torch.empty(0, dtype=torch.uint8)


class _Mirror:
    """Tensors on the GPU for those of a launch, with the strides and the shared memory of these."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._storages: dict[int, Tensor] = {}

    def __call__(self, t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        whole = self._storages.get(storage.data_ptr())
        if whole is None:
            every_byte = torch.empty(0, dtype=torch.uint8).set_(storage)
            whole = self._storages[storage.data_ptr()] = every_byte.to(self._device, copy=True)
        typed = whole.new_empty(0, dtype=t.dtype).set_(whole.untyped_storage())
        return torch.as_strided(typed, t.shape, t.stride(), t.storage_offset())


@contextlib.contextmanager
def on_a_gpu_as_well() -> Iterator[Launches]:
    """A block within ``ow.simulate()`` in which a GPU makes each launch, too, before the simulator does."""
    launches = Launches()
    simulated: Callable[..., bool] = _Simulation.launch
    outside = contextvars.Context()  # in which launches go to Triton

    def launch(self: Any, function: Any, grid: Any, args: Sequence[Any], keywords: dict[str, Any]) -> bool:
        mirror = _Mirror("cuda")
        there = tree.map_tensors(mirror, [list(args), keywords])
        outside.run(lambda: function[grid](*there[0], **there[1]))
        torch.cuda.synchronize()
        done = simulated(self, function, grid, args, keywords)
        pairs = zip(tree.tensors([list(args), keywords]), tree.tensors(there), strict=True)
        here, copies = zip(*((a, b.cpu()) for a, b in pairs), strict=True)
        launches.add(function.__name__, here, copies)
        return done

    with mock.patch.object(_Simulation, "launch", launch):
        yield launches
