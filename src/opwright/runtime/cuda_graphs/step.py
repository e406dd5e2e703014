"""The memory of one call, with the graphs of its forward and its backward, as they are captured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opwright import tree
from opwright.errors import ArgumentError, CudaGraphError
from opwright.internals.tensors import memory_of, share_memory
from opwright.runtime.cuda_graphs.graph import Graph, on_side_stream
from opwright.runtime.cuda_graphs.places import Places
from opwright.runtime.cuda_graphs.places_search import covers, find_places
from opwright.runtime.cuda_graphs.warm_up import Saved, WarmUp, Work, memory_address

__all__ = ["PLAIN_CONSTANTS", "CapturedStep", "refuse_subclasses"]

# Constants that arguments and results may contain beside tensors; they are the same in every replay.
PLAIN_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size)


# Takes tensors that replace the outputs, and the tensors of the call; returns the function's result.
Assemble = Callable[[Sequence[Tensor], Sequence[Tensor]], Any]


class _Leaf(NamedTuple):
    """A tensor that the function returned."""

    tensor: Tensor
    argument: int | None = None  # the position of the call's tensor that it is
    is_held: bool = False  # whether it is a tensor that the function read besides its arguments

    @property
    def is_output(self) -> bool:
        """Whether a replay makes it."""
        return self.argument is None and not self.is_held

    def given(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tensor that a call with these tensors returns in its place."""
        return self.tensor if self.argument is None else tensors[self.argument]


class CapturedStep:
    """Tensors and graphs that serve one call at a time (``replay.py``).

    Attributes:
        name: the function's.
        forward: takes the tensors of a call that are copied.
        backward: takes the gradients of the differentiable outputs; None if there are none.
        is_copied: for each tensor of a call, whether it is copied; the others are read in place.
        outputs: the tensors that a forward writes.
        is_differentiable: for each output, whether it depends on a tensor that requires a gradient.
        output_gradients: what the gradients of the differentiable outputs are copied to.
        gradients: for each tensor of a call what the backward writes; None if no gradient is needed, or if no output
            depends on it.
        watched: tensors that the backward reads and that others may modify.
        lent: the outputs and gradients in memory of the graphs' own.
        is_lent: whether each output is one of them.
        places: where the function's other tensors and its constants come from.
        assemble: makes the function's result from tensors that replace ``outputs``, and from the call's tensors.

    Raises:
        ArgumentError: the function writes one of its tensors, returns a view of one, depends on one that is not among
            its arguments, or changes what it reads.
        CudaGraphError: the function cannot be captured.
    """

    def __init__(self, work: Work) -> None:
        grad_mode = torch.is_grad_enabled()
        self._wanted = [grad_mode and t.requires_grad for t in work.tensors]
        own = [
            t.detach() if in_place else t.detach().clone(memory_format=torch.preserve_format)
            for t, in_place in zip(work.tensors, work.read_in_place, strict=True)
        ]
        for tensor, wanted in zip(own, self._wanted, strict=True):
            tensor.requires_grad_(wanted)
        self.name = work.name
        self.is_copied = [not is_read_in_place for is_read_in_place in work.read_in_place]
        self._held: list[Tensor] = []
        self._capture(work, own)
        self.assemble = _assembler(self._result, self._leaves)

    def _capture(self, work: Work, own: list[Tensor]) -> None:
        autocast = _autocast_without_cache()

        def forward() -> list[Tensor]:
            with autocast():
                self._result = work.run(own)
            self._leaves = self._leaves_of(own)
            self.outputs = [leaf.tensor for leaf in self._leaves if leaf.is_output]
            return self.outputs

        wanted = [t for t in own if t.requires_grad]
        with on_side_stream(own[0].device) as stream:  # one-time work, such as compiling, is not captured
            run = WarmUp(work, own, forward, wanted)
        is_saved = dict(zip(self._positions, run.saved.outputs, strict=True))
        known = [*work.tensors, *work.buffers]
        self.places = next((p for p in work.places if covers(p, run.reads, known)), None) or find_places(
            work.name, work.function or work.run, run.reads, known, own[0].device
        )
        self._held = [*work.buffers, *self.places.tensors]
        try:
            copied = [tensor for tensor, is_copied in zip(own, self.is_copied, strict=True) if is_copied]
            self._make_graphs(copied, forward, wanted, stream)
        except RuntimeError as error:
            raise _cannot_be_captured(work, error) from error
        _refuse_changes(work, self.places)
        outside = [tensor for tensor, is_copied in zip(own, self.is_copied, strict=True) if not is_copied]
        outside += [t.detach() for t in (*work.buffers, *run.reads.external.values())]
        self._keep(outside, [is_saved.get(p, False) for p in self._positions], run.saved)

    def _leaves_of(self, own: Sequence[Tensor]) -> list[_Leaf]:
        leaves = []
        for tensor in _tensors_of(self._result, self.name):
            argument = next((i for i, each in enumerate(own) if each is tensor), None)
            is_held = argument is None and any(tensor is each for each in self._held)
            leaves.append(_Leaf(tensor, argument, is_held))
            if argument is None and any(
                share_memory(tensor, each) for each, copied in zip(own, self.is_copied, strict=True) if copied
            ):
                raise ArgumentError(
                    f"{self.name} returns a view of an argument, but a replay works on a copy of the argument",
                    fix="return a clone of the view (.clone()), or the argument itself",
                )
        return leaves

    @property
    def _positions(self) -> list[int]:
        """The positions of the outputs among all tensors of the result."""
        return [i for i, leaf in enumerate(self._leaves) if leaf.is_output]

    def _keep(self, outside: list[Tensor], is_saved: Sequence[bool], saved: Saved) -> None:
        """Keep what the graphs read and have not made, as long as they can be launched."""
        for graph in (self.forward, self.backward):
            if graph is not None:
                graph.hold([*outside, *self.places.aliases])
        # Tensors that the backward reads and that others may modify.
        self.watched = [t for t in outside if not t.is_inference() and memory_address(t) in saved.storages]
        self.watched += [t for t, is_one in zip(self.outputs, is_saved, strict=True) if is_one]
        memories = {memory_of(t) for t in (*outside, *self.places.aliases)}
        self.is_lent = [memory_of(t) not in memories for t in self.outputs]
        gradients = [t for t in self.gradients if t is not None and memory_of(t) not in memories]
        self.lent = [*(t for t, lent in zip(self.outputs, self.is_lent, strict=True) if lent), *gradients]

    def _make_graphs(
        self, inputs: list[Tensor], forward: Callable[[], list[Tensor]], wanted: list[Tensor], stream: torch.cuda.Stream
    ) -> None:
        self.forward = Graph(inputs, forward, stream)
        self.is_differentiable = [o.requires_grad for o in self.outputs]
        differentiable = [o for o in self.outputs if o.requires_grad]
        self.output_gradients = [torch.zeros_like(o) for o in differentiable]

        def backward() -> Sequence[Tensor | None]:
            # The graph is retained, so that the memory of saved tensors is not reused.
            return torch.autograd.grad(
                differentiable, wanted, self.output_gradients, retain_graph=True, allow_unused=True
            )

        self.backward = Graph(self.output_gradients, backward, stream, self.forward) if differentiable else None
        found = iter(self.backward.results if self.backward is not None else [None] * len(wanted))
        self.gradients = [next(found) if is_wanted else None for is_wanted in self._wanted]


# -- results ---------------------------------------------------------------------------------------------------------


def _assembler(result: Any, leaves: Sequence[_Leaf]) -> Assemble:
    if all(leaf.is_output for leaf in leaves):
        if isinstance(result, Tensor):
            return lambda outputs, _: outputs[0]
        if type(result) is tuple and all(isinstance(item, Tensor) for item in result):
            return lambda outputs, _: tuple(outputs)

    def assemble(outputs: Sequence[Tensor], tensors: Sequence[Tensor]) -> Any:
        remaining = iter(outputs)
        found = iter([next(remaining) if leaf.is_output else leaf.given(tensors) for leaf in leaves])
        return tree.map_tensors(lambda _: next(found), result)

    return assemble


def _tensors_of(result: Any, name: str) -> list[Tensor]:
    found = []
    for leaf in tree.leaves(result):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif not isinstance(leaf, PLAIN_CONSTANTS):
            raise ArgumentError(
                f"{name} returns a {type(leaf).__name__}, but graphs return tensors in tuples, lists and dictionaries",
                fix="return the tensors in it",
            )
    refuse_subclasses(found)
    return found


def _autocast_without_cache() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Makes blocks with the current autocast settings but without its cache of cast parameters: cached casts
    would be captured as reads of memory that is freed."""
    if not torch.is_autocast_enabled("cuda"):
        return contextlib.nullcontext
    dtype = torch.get_autocast_dtype("cuda")
    return lambda: torch.autocast("cuda", dtype, cache_enabled=False)


def _refuse_changes(work: Work, places: Places) -> None:
    """Refuse a function that changes what it reads, which a replay would not do."""
    changed = places.change()
    if changed is not None:
        raise ArgumentError(
            f"{work.name} changes {changed} when it runs, but a replay does not run its Python code",
            fix="leave this change out, write in place into a buffer instead, or call it without graphs",
        )


def _cannot_be_captured(work: Work, error: RuntimeError) -> CudaGraphError:
    return CudaGraphError(
        f"{work.name} cannot be captured as a CUDA graph: {error}",
        fix="a captured function must not wait for the GPU (.item(), .cpu(), printing or branching on values), and its "
        "sizes must not depend on values; leave such parts out",
    )


def refuse_subclasses(tensors: Sequence[Tensor | None]) -> None:
    """Refuse tensor subclasses, whose own behaviour would be lost.

    Raises:
        ArgumentError: a tensor is a subclass.
    """
    for tensor in tensors:
        if tensor is not None and type(tensor) not in (Tensor, torch.nn.Parameter):
            raise ArgumentError(
                f"CUDA graphs copy plain tensors, but one is a {type(tensor).__name__}", fix="call without graphs"
            )
