"""A step of a recurrent cell as CUDA graphs: one launch for its forward, one for its backward.

A graph works on memory of its own, so each step that is still needed has a pair of graphs to itself: a sequence of
twenty steps is captured as twenty pairs, once. A pair is used again when nothing of what it lent out, states or
gradients, is alive any more. So results never change under their holder, and gradients may be accumulated.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

__all__ = ["Graphs"]

use_count = torch._C._storage_Use_Count
transforms_are_active = torch._C._are_functorch_transforms_active
# (x, weight, bias, h, c) → (h, c)
Step = Callable[..., tuple[Tensor, Tensor]]


class Graphs:
    """Calls a step by replaying it. Graphs are captured when a call of their kind (shapes, dtypes, parameters'
    addresses, wanted gradients, autocast, stream) comes first; parameters are read where they are, so that an
    optimiser's steps in place are seen."""

    def __init__(self) -> None:
        self._kinds: list[Kind] = []
        self._lock = threading.Lock()  # until the outputs are lent, another thread might take the same pair

    def __call__(self, step: Step, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        """The next (h, c).

        Raises:
            ValueError: a tensor is not on a GPU, or of a subclass.
            RuntimeError: a ``torch.func`` transform is on.
        """
        if transforms_are_active():
            raise RuntimeError("torch.func cannot look into a step of CUDA graphs; leave cuda_graph=True out")
        with self._lock:
            h, c = replay(self._free_pair(step, arguments), *arguments)
        return h, c

    def _free_pair(self, step: Step, arguments: Sequence[Tensor]) -> Pair:
        pairs = self._pairs_for(arguments)
        for _ in range(len(pairs)):  # the one that was lent first is free first
            pairs.rotate(-1)
            pair = pairs[-1]
            if pair.is_free():
                return pair
        recording = torch.is_grad_enabled()
        pairs.append(Pair(step, arguments, [recording and a.requires_grad for a in arguments]))
        return pairs[-1]

    def _pairs_for(self, arguments: Sequence[Tensor]) -> deque[Pair]:
        x, weight, bias, _, _ = arguments
        state = (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
            torch._C._cuda_getCurrentRawStream(x.get_device()) if x.is_cuda else None,
            weight.data_ptr(),
            bias.data_ptr(),
        )
        for kind in self._kinds:
            if kind.state == state and kind.guard.check(*arguments):
                return kind.pairs
        return self._pairs_of_other_objects(state, apart(arguments))

    def _pairs_of_other_objects(self, state: tuple[Any, ...], arguments: Sequence[Tensor]) -> deque[Pair]:
        """Of a kind that is new, or of one that was not recognised, because a tensor was given twice."""
        for kind in self._kinds:
            if kind.state == state and kind.guard.check(*arguments):
                return kind.pairs
        refuse_subclasses(arguments)
        refuse_cpu(arguments)
        self._kinds.append(Kind(state, guard_of(arguments), deque()))
        return self._kinds[-1].pairs

    def __reduce__(self) -> tuple[Any, ...]:
        return Graphs, ()  # a copy of a module captures its own


class Kind(NamedTuple):
    """Calls that the same graphs can serve."""

    state: tuple[Any, ...]  # whether gradients are recorded, autocast's dtype, the stream, the parameters' addresses
    guard: Any  # torch.compile's, which asks five tensors for all that matters in one call
    pairs: deque[Pair]


def guard_of(tensors: Sequence[Tensor]) -> Any:
    """Strides matter of the parameters, which are read where they are, and not of what is copied."""
    _, weight, bias, _, _ = tensors
    sizes: Any = [list(t.shape) for t in tensors]
    strides: Any = [list(t.stride()) if t is weight or t is bias else [None] * t.dim() for t in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


def apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each as an object of its own: a guard knows no tensor that is given twice, as a first h and c may be."""
    return [t.view_as(t) if any(t is other for other in tensors[:i]) else t for i, t in enumerate(tensors)]


def refuse_subclasses(tensors: Sequence[Tensor | None]) -> None:
    for tensor in tensors:
        if tensor is not None and type(tensor) not in (Tensor, torch.nn.Parameter):
            raise ValueError(
                f"CUDA graphs copy plain tensors, and one is a {type(tensor).__name__}; leave cuda_graph=True out"
            )


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
        x, h, c = self.inputs = [a.clone(memory_format=torch.contiguous_format) for a in (x, h, c)]
        given = [a.requires_grad_(need) for a, need in zip((x, weight, bias, h, c), needs, strict=True)]
        self._capture(lambda: step(*given), [a for a in given if a.requires_grad])
        found = iter(self.found)
        # For each argument; None where no gradient is wanted.
        self.gradients = [next(found) if need else None for need in needs]
        # What is lent out, and how many hold each while nobody else does.
        self.lent = [tensor.untyped_storage()._cdata for tensor in (*self.outputs, *self.found)]
        self.idle = [use_count(storage) for storage in self.lent]
        # Of the latest step that was taken here; it lives as long as that step's backward may be asked for.
        self.lease: Callable[[], Lease | None] = nobody
        # What its backward reads besides memory that only the graphs know, and as it was then.
        self.watched: Sequence[Tensor] = ()
        self.versions: list[int] = []

    def _capture(self, forward: Callable[[], tuple[Tensor, Tensor]], wanted: Sequence[Tensor]) -> None:
        with torch.cuda.device(self.inputs[0].device), torch.enable_grad():
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # what happens only the first time, such as compiling, is not captured
                outputs = forward()
                self.grads = [o.new_zeros(o.shape) for o in outputs]
                if wanted:
                    torch.autograd.grad(outputs, wanted, self.grads)
            torch.cuda.current_stream().wait_stream(aside)
            self.forward = Graph(self.inputs, forward, aside)
            self.outputs = self.forward.results

            def backward() -> Sequence[Tensor]:
                # Kept, so that the memory of what was saved is not used for anything else.
                return torch.autograd.grad(self.outputs, wanted, self.grads, retain_graph=True)

            self.backward = Graph(self.grads, backward, aside, self.forward) if wanted else None
            self.found: Sequence[Tensor] = self.backward.results if self.backward is not None else ()

    def is_free(self) -> bool:
        """Whether nobody will ask for its backward, or holds a state or a gradient of its."""
        return self.lease() is None and self.idle == [use_count(storage) for storage in self.lent]

    def take_step(self, x: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> Lease | None:
        self.forward.replay([x, h, c])
        if self.backward is None:
            return None
        self.watched = (*self.outputs, weight)
        self.versions = [tensor._version for tensor in self.watched]
        lease = Lease()
        self.lease = weakref.ref(lease)
        return lease

    def refuse_what_is_gone(self, lease: Lease) -> None:
        if self.lease() is not lease:
            raise RuntimeError("this step went back before; to go back twice, the first needs retain_graph=True")
        if self.versions != [tensor._version for tensor in self.watched]:
            raise RuntimeError("a state or the weight, which the backward needs, was modified in place")

    def take_step_back(self, lease: Lease, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        self.refuse_what_is_gone(lease)
        refuse_subclasses(grads)
        assert self.backward is not None  # else there was no lease
        # A state that nothing depends on has no gradient, and torch has zeros without memory.
        self.backward.replay(
            [
                torch.zeros_like(own) if grad is None or grad._is_zerotensor() else grad
                for own, grad in zip(self.grads, grads, strict=True)
            ]
        )
        give = Tensor.detach
        if torch._C._autograd._get_current_graph_task_keep_graph():
            give = Tensor.clone  # the step may go back again, into the same memory
        else:
            self.lease = nobody  # who holds the loss of this iteration does not keep the next from this memory
        return [give(found) if found is not None else None for found in self.gradients]


class Graph:
    """A CUDA graph that begins by copying its caller's tensors to memory of its own.

    The copies are nodes of the graph. They are pointed at other tensors where a call brings others than the call
    before, so that a replay is one launch.

    Args:
        own: what the caller's tensors are copied to.
        work: what is captured after that.
        stream: where it is captured.
        beside: a graph whose memory it shares, of the same stream.

    Raises:
        RuntimeError: the CUDA runtime refused something.
    """

    def __init__(
        self,
        own: Sequence[Tensor],
        work: Callable[[], Sequence[Tensor]],
        stream: torch.cuda.Stream,
        beside: Graph | None = None,
    ) -> None:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        pool = beside._graph.pool() if beside is not None else None
        anywhere = [torch.empty_like(tensor) for tensor in own]  # outside of the graph's memory
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            with torch.no_grad():
                for tensor in own:
                    tensor.copy_(anywhere.pop(0))
            self.results: Sequence[Tensor] = work()
        graph.instantiate()
        self._graph: Any = graph
        self._executable = graph.raw_cuda_graph_exec()
        self._device = own[0].device
        copies = copies_of(graph.raw_cuda_graph())
        if any(t.numel() and t.data_ptr() not in copies for t in own):
            raise RuntimeError("a copy was not captured as one; leave cuda_graph=True out")
        # Of each tensor, unless it is empty: the node that copies to it, its address and its size in bytes.
        self._copies = [(copies[t.data_ptr()], t.data_ptr(), t.nbytes) if t.numel() else None for t in own]
        self._sources: list[int | None] = [None] * len(own)

    def replay(self, given: Sequence[Tensor]) -> None:
        # A node copies bytes as they lie there.
        given = [t if t.is_contiguous() and not t.is_neg() else t.resolve_neg().contiguous() for t in given]
        sources = [tensor.data_ptr() for tensor in given]
        if sources != self._sources:
            self._copy_from(sources)
        self._graph.replay()

    def _copy_from(self, sources: list[int]) -> None:
        from cuda.bindings import runtime

        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        with torch.cuda.device(self._device):
            for i, (copy, source) in enumerate(zip(self._copies, sources, strict=True)):
                if copy is not None and source != self._sources[i]:
                    node, own, size = copy
                    done(runtime.cudaGraphExecMemcpyNodeSetParams1D(self._executable, node, own, source, size, kind))
                self._sources[i] = source


def copies_of(graph: int) -> dict[int, Any]:
    """The nodes of a graph that copy, by the address that they copy to."""
    from cuda.bindings import runtime

    (_, count) = done(runtime.cudaGraphGetNodes(graph))
    (nodes, _) = done(runtime.cudaGraphGetNodes(graph, count))
    found = {}
    for node in nodes:
        (kind,) = done(runtime.cudaGraphNodeGetType(node))
        if kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeMemcpy:
            (parameters,) = done(runtime.cudaGraphMemcpyNodeGetParams(node))
            found[int(parameters.dstPtr.ptr)] = node
    return found


def done(answer: tuple[Any, ...]) -> list[Any]:
    """What a function of the CUDA runtime found, once it is certain that it did not fail."""
    error, *found = answer
    if error.value != 0:
        raise RuntimeError(f"a step of CUDA graphs failed: {error.name}")
    return found


def nobody() -> None:
    """In the place of a reference to a lease."""


class Lease:
    """A step's right to the memory of a pair, until its backward: autograd holds it."""

    __slots__ = ("__weakref__",)


class Replay(torch.autograd.Function):
    """A step, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, pair: Pair, x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.pair, ctx.lease = pair, pair.take_step(x, weight, h, c)
        return tuple([o.detach() for o in pair.outputs])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # at once: torch would take what follows for a constant
            raise RuntimeError(
                "create_graph=True: a step of CUDA graphs has no second derivatives; leave cuda_graph=True out"
            )
        return None, *ctx.pair.take_step_back(ctx.lease, grads)


# Past Function.apply's own look for torch.func, which was refused above.
replay = super(torch.autograd.Function, Replay).apply
