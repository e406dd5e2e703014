"""A step of a recurrent cell as CUDA graphs: one launch for its forward, one for its backward.

A graph works on memory of its own, so each step that is still needed has a pair of graphs to itself: a sequence of
twenty steps is captured as twenty pairs, once. A pair is used again when nothing of what it lent out, states or
gradients, is alive any more. So results never change under their holder, and gradients may be accumulated.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opwright.runtime.plan import recogniser

__all__ = ["Graphs"]

use_count = torch._C._storage_Use_Count
transforms_are_active = torch._C._are_functorch_transforms_active
# (x, weight, bias, h, c) → (h, c)
Step = Callable[..., tuple[Tensor, Tensor]]


class Graphs:
    """Calls a step by replaying it. Graphs are captured when a call of their kind (shapes, strides, dtypes, parameters'
    addresses, wanted gradients, autocast) comes first; parameters are read where they are, so that an optimiser's
    steps in place are seen."""

    def __init__(self) -> None:
        self._kinds: list[Kind] = []

    def __call__(self, step: Step, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        """The next (h, c).

        Raises:
            ValueError: a tensor is not on a GPU.
            RuntimeError: a ``torch.func`` transform is on.
        """
        if transforms_are_active():
            raise RuntimeError("torch.func cannot look into a step of CUDA graphs; leave cuda_graph=True out")
        h, c = replay(self._free_pair(step, arguments), *arguments)
        return h, c

    def _free_pair(self, step: Step, arguments: Sequence[Tensor]) -> Pair:
        pairs = self._pairs_for(arguments)
        for _ in range(len(pairs)):  # the one that was lent first is free first
            pairs.rotate(-1)
            if pairs[-1].is_free():
                return pairs[-1]
        recording = torch.is_grad_enabled()
        pairs.append(Pair(step, arguments, [recording and a.requires_grad for a in arguments]))
        return pairs[-1]

    def _pairs_for(self, arguments: Sequence[Tensor]) -> deque[Pair]:
        _, weight, bias, _, _ = arguments
        autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        state = (torch.is_grad_enabled(), autocast, weight.data_ptr(), bias.data_ptr())
        for kind in self._kinds:
            if kind.state == state and kind.is_of(*arguments):
                return kind.pairs
        refuse_cpu(arguments)
        is_of = recogniser(arguments)
        assert is_of is not None  # as there are tensors
        self._kinds.append(Kind(state, is_of, deque()))
        return self._kinds[-1].pairs

    def __reduce__(self) -> tuple[Any, ...]:
        return Graphs, ()  # a copy of a module captures its own


class Kind(NamedTuple):
    """Calls that the same graphs can serve."""

    state: tuple[Any, ...]  # whether gradients are recorded, autocast's dtype, the addresses of the parameters
    is_of: Callable[..., bool]  # whether tensors are like those that the graphs were captured with
    pairs: deque[Pair]


def refuse_cpu(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if not tensor.is_cuda:
            raise ValueError(
                f"CUDA graphs need every tensor on a GPU, and one is on {tensor.device}: move the module and its "
                "inputs there, or leave cuda_graph=True out"
            )


class Pair:
    """The memory of one step, and the graphs of its forward and backward that work on it."""

    def __init__(self, step: Step, arguments: Sequence[Tensor], needs: Sequence[bool]) -> None:
        x, weight, bias, h, c = (a.detach() for a in arguments)
        self.inputs = [x.clone(), h.clone(), c.clone()]
        x, h, c = self.inputs
        given = [a.requires_grad_(need) for a, need in zip((x, weight, bias, h, c), needs, strict=True)]
        self._capture(lambda: step(*given), [a for a in given if a.requires_grad])
        self.needs = tuple(needs)
        # What is lent out, and how many hold each while nobody else does.
        self.lent = [tensor.untyped_storage()._cdata for tensor in (*self.outputs, *self.found)]
        self.idle = self._holders()
        # Counts the steps that were taken here; the latest one's lease lives as long as its backward may be asked for.
        self.steps = 0
        self.lease: Callable[[], Lease | None] = nobody

    def _capture(self, forward: Callable[[], tuple[Tensor, Tensor]], wanted: Sequence[Tensor]) -> None:
        with torch.cuda.device(self.inputs[0].device), torch.enable_grad():
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # what happens only the first time, such as compiling, is not captured
                outputs = forward()
                self.grads = [torch.zeros_like(o) for o in outputs]
                if wanted:
                    torch.autograd.grad(outputs, wanted, self.grads)
            torch.cuda.current_stream().wait_stream(aside)
            self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.forward, capture_error_mode="thread_local"):
                self.outputs = forward()
            self.found: Sequence[Tensor] = ()
            if wanted:
                with torch.cuda.graph(self.backward, pool=self.forward.pool(), capture_error_mode="thread_local"):
                    # Kept, so that the memory of what was saved is not used for anything else.
                    self.found = torch.autograd.grad(self.outputs, wanted, self.grads, retain_graph=True)

    def _holders(self) -> list[int]:
        return [use_count(storage) for storage in self.lent]

    def is_free(self) -> bool:
        """Whether nobody will ask for its backward, or holds a state or a gradient of its."""
        return self.lease() is None and self._holders() == self.idle

    def take_step(self, *inputs: Tensor) -> Lease:
        torch._foreach_copy_(self.inputs, inputs)
        self.forward.replay()
        self.steps += 1
        lease = Lease(self.steps, [o._version for o in self.outputs])
        self.lease = weakref.ref(lease)
        return lease

    def take_step_back(self, lease: Lease, grads: Sequence[Tensor | None]) -> None:
        if lease.step != self.steps:
            raise RuntimeError("this step went back before, and the memory of its graphs was used again since")
        if lease.versions != [o._version for o in self.outputs]:
            raise RuntimeError("a state that the backward needs was modified in place")
        given = [grad for grad in grads if grad is not None]
        if len(given) == len(grads):
            torch._foreach_copy_(self.grads, given)
        else:
            for own, grad in zip(self.grads, grads, strict=True):
                own.zero_() if grad is None else own.copy_(grad)
        self.backward.replay()


def nobody() -> None:
    """In the place of a reference to a lease."""


class Lease:
    """A step's right to the memory of a pair, until its backward: autograd holds it."""

    def __init__(self, step: int, versions: Sequence[int]) -> None:
        self.step = step
        self.versions = versions


class Replay(torch.autograd.Function):
    """A step, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, pair: Pair, x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.pair, ctx.lease = pair, pair.take_step(x, h, c)
        return tuple([o.detach() for o in pair.outputs])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # at once: torch would take what follows for a constant
            raise RuntimeError(
                "create_graph=True: a step of CUDA graphs has no second derivatives; leave cuda_graph=True out"
            )
        pair, lease = ctx.pair, ctx.lease
        pair.take_step_back(lease, grads)
        pair.lease = nobody  # who holds the loss of this iteration does not keep the next from this memory
        found = iter(pair.found)
        return None, *[next(found).detach() if need else None for need in pair.needs]


# Past Function.apply's own look for torch.func, which was refused above.
replay = super(torch.autograd.Function, Replay).apply
