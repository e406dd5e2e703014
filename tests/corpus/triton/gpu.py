"""Every launch of a case twice: in the simulator, and on a GPU from the same bits."""

from __future__ import annotations

import contextlib
import contextvars
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from kernelsim.triton_sim.memory import is_descriptor
from kernelsim.triton_sim.simulate import Simulation
from opwright import tree

__all__ = ["Launches", "on_a_gpu_as_well"]


@dataclass
class Launches:
    """What the launches of a case left in their tensors.

    Attributes:
        count: the launches that both made.
        same: the number of those after which every tensor has the same bits.
        largest: of the others, the largest difference relative to a tensor's largest element, by kernel.
        failed: what the GPU raised, by kernel.
    """

    count: int = 0
    same: int = 0
    largest: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, kernel: str, here: Sequence[Tensor], there: Sequence[Tensor]) -> None:
        self.count += 1
        if all(torch.equal(_bytes(a), _bytes(b)) for a, b in zip(here, there, strict=True)):
            self.same += 1
            return
        found = max(_difference(a, b) for a, b in zip(here, there, strict=True))
        self.largest[kernel] = max(found, self.largest.get(kernel, 0.0))


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """Relative to the largest element. Memory that was never written may hold NaN, in both."""
    if not ours.numel():
        return 0.0
    a, b = ours.detach().double(), theirs.detach().double()
    alike = (a == b) | (a.isnan() & b.isnan())
    scale = a.abs().nan_to_num(0, 0, 0).max().clamp(min=1e-9)
    gap = (a.masked_fill(alike, 0) - b.masked_fill(alike, 0)).abs()
    return float((gap / scale).nan_to_num(torch.inf).max())


def _bytes(t: Tensor) -> Tensor:
    if not t.numel():
        return torch.empty(0, dtype=torch.uint8)
    return t.detach().contiguous().flatten().view(torch.uint8)


class _Mirror:
    """Arguments on the GPU for those of a launch: tensors with the strides and the shared memory of these, and
    descriptors of such tensors."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._storages: dict[int, Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if is_descriptor(value):
            there = copy.copy(value)
            there.base = self._tensor(value.base)
            return there
        return self._tensor(value) if isinstance(value, Tensor) else value

    def _tensor(self, t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        whole = self._storages.get(storage.data_ptr())
        if whole is None:
            every_byte = torch.empty(0, dtype=torch.uint8).set_(storage)
            whole = self._storages[storage.data_ptr()] = every_byte.to(self._device, copy=True)
        typed = whole.new_empty(0, dtype=t.dtype).set_(whole.untyped_storage())
        return torch.as_strided(typed, t.shape, t.stride(), t.storage_offset())


def _tensors(arguments: Any) -> list[Tensor]:
    """Those of a launch, in order, also what its descriptors describe."""
    values = (value.base if is_descriptor(value) else value for value in tree.leaves(arguments))
    return [value for value in values if isinstance(value, Tensor)]


class _Gpu:
    """Makes launches as Triton does, apart from the simulation around it, until one breaks the process's context."""

    def __init__(self, device: str) -> None:
        import triton

        self.device = device
        self.is_broken = False
        self._outside = contextvars.Context()  # in which launches go to Triton
        # What the library has set, it set in another context, and it may allocate on the CPU: its device is patched.
        self._outside.run(triton.set_allocator, self._allocate)

    def _allocate(self, size: int, alignment: int, stream: int | None) -> Tensor:
        """Memory of Triton's own, such as for the descriptors that a kernel makes. Torch aligns by 512 bytes."""
        return torch.empty(size, dtype=torch.int8).to(self.device)

    def launch(self, function: Any, grid: Any, args: Sequence[Any], keywords: dict[str, Any]) -> str:
        """What it raises, in one line; empty if all is well."""
        try:
            self._outside.run(_launch_with_triton, function, grid, args, keywords)
            self._wait()
        except Exception as error:  # of Triton's compiler, of its launcher or of the kernel
            self.is_broken = not self._still_answers()
            return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        return ""

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _still_answers(self) -> bool:
        try:
            self._wait()
        except RuntimeError:
            return False
        return True


def _launch_with_triton(function: Any, grid: Any, args: Sequence[Any], keywords: dict[str, Any]) -> None:
    function[grid](*args, **keywords)


@contextlib.contextmanager
def on_a_gpu_as_well(device: str = "cuda") -> Iterator[Launches]:
    """A block in which a GPU makes each launch of ``kernelsim.triton_launches()``, too, from copies. The simulator is
    first: what it refuses, or finds at fault, is not for a GPU. An autotuner has chosen by then: both get its choice as
    arguments, and the descriptors as its hooks have left them."""
    launches, gpu = Launches(), _Gpu(device)
    simulated: Callable[..., bool] = Simulation.launch

    def launch(self: Any, function: Any, grid: Any, args: Sequence[Any], keywords: dict[str, Any]) -> bool:
        there = None if gpu.is_broken else tree.map_leaves(_Mirror(device), [list(args), keywords])
        done = simulated(self, function, grid, args, keywords)
        if not done or there is None:  # not the simulator's: on a GPU already
            return done
        if error := gpu.launch(function, grid, *there):
            launches.failed[function.__name__] = error
        else:
            launches.add(function.__name__, _tensors([list(args), keywords]), [t.cpu() for t in _tensors(there)])
        return done

    with mock.patch.object(Simulation, "launch", launch):
        yield launches
