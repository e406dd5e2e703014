"""The memory of one call, with the graphs of its forward and its backward, as they are captured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opwright import tree
from opwright.errors import ArgumentError, CudaGraphError
from opwright.internals.tensors import share_memory, version_of, was_written
from opwright.runtime.cuda_graphs.graph import Graph, on_side_stream

__all__ = ["PLAIN_CONSTANTS", "CapturedStep", "Work", "refuse_subclasses"]

# Constants that arguments and results may contain beside tensors; they are the same in every replay.
PLAIN_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Work:
    """The function of a call, with its tensors.

    Attributes:
        name: its name in messages.
        run: takes the tensors of a call, returns any nest of values.
        tensors: the tensors of the captured call.
        read_in_place: whether each is read in place, as parameters are; the others are copied.
        buffers: other tensors that ``run`` may write, such as running statistics.
    """

    name: str
    run: Callable[[Sequence[Tensor]], Any]
    tensors: Sequence[Tensor]
    read_in_place: Sequence[bool]
    buffers: Sequence[Tensor] = field(default=())


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
        assemble: makes the function's result from tensors that replace ``outputs``.

    Raises:
        ArgumentError: the function writes one of its tensors, or depends on one that is not among its arguments.
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
        in_place = [tensor for tensor, is_copied in zip(own, self.is_copied, strict=True) if not is_copied]
        self._capture(work, own, in_place)
        returned = [*self.outputs, *(t for t in self.gradients if t is not None)]
        self.lent = [t for t in returned if not any(share_memory(t, other) for other in in_place)]
        self.assemble = _assembler(self._result)

    def _capture(self, work: Work, own: list[Tensor], in_place: list[Tensor]) -> None:
        autocast = _autocast_without_cache()

        def forward() -> list[Tensor]:
            with autocast():
                self._result = work.run(own)
            self.outputs = _tensors_of(self._result, work.name)
            return self.outputs

        wanted = [t for t in own if t.requires_grad]
        with on_side_stream(own[0].device) as stream:  # one-time work, such as compiling, is not captured
            saved = _run_once(work, own, forward, wanted)
        try:
            copied = [tensor for tensor, is_copied in zip(own, self.is_copied, strict=True) if is_copied]
            self._make_graphs(copied, forward, wanted, stream)
        except RuntimeError as error:
            raise _cannot_be_captured(work, error) from error
        # Tensors that the backward reads and that others may modify.
        self.watched = [t for t in in_place if _storage(t) in saved.storages]
        self.watched += [t for t, is_saved in zip(self.outputs, saved.outputs, strict=True) if is_saved]

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


# -- before the capture ----------------------------------------------------------------------------------------------


@dataclass
class Saved:
    """Tensors that autograd saved for the backward: the addresses of their storages, and whether each output is one."""

    storages: set[int] = field(default_factory=set)
    outputs: list[bool] = field(default_factory=list)


def _run_once(
    work: Work, own: Sequence[Tensor], forward: Callable[[], list[Tensor]], wanted: Sequence[Tensor]
) -> Saved:
    """Run forward and backward, and find what they read and write. Buffers are restored."""
    saved = Saved()

    def note(tensor: Tensor) -> Tensor:
        saved.storages.add(_storage(tensor))
        return tensor.detach()

    before = [buffer.clone() for buffer in work.buffers]
    versions = [version_of(tensor) for tensor in own]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        outputs = forward()
    saved.outputs = [_storage(o) in saved.storages for o in outputs]
    _refuse_unknown_leaves(work, outputs, wanted)
    differentiable = [o for o in outputs if o.requires_grad]
    if differentiable:
        zeros = [torch.zeros_like(o) for o in differentiable]
        torch.autograd.grad(differentiable, wanted, zeros, allow_unused=True)
    for buffer, value in zip(work.buffers, before, strict=True):
        # Restore all: torch's batch_norm does not count its writes, and a backward may have saved a buffer.
        buffer.data.copy_(value)
    if any(was_written(tensor, version) for tensor, version in zip(own, versions, strict=True)):
        raise ArgumentError(
            f"{work.name} writes into an argument, but replays work on copies", fix="call it without graphs"
        )
    return saved


def _refuse_unknown_leaves(work: Work, outputs: Sequence[Tensor], known: Sequence[Tensor]) -> None:
    """Refuse a function with gradients for a tensor of its closure, which a replay could not pass on."""
    nodes = [o.grad_fn for o in outputs if o.grad_fn is not None]
    seen = set(nodes)
    for node in nodes:  # the list grows during the loop
        leaf = getattr(node, "variable", None)
        if leaf is not None and not any(leaf is tensor for tensor in known):
            raise ArgumentError(
                f"{work.name} depends on a tensor of shape {tuple(leaf.shape)} that requires a gradient and is neither "
                "an argument nor a parameter of the module",
                fix="pass it as an argument, or call ow.cuda_graphed on the module itself",
            )
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def _assembler(result: Any) -> Callable[[Sequence[Tensor]], Any]:
    if isinstance(result, Tensor):
        return lambda outputs: outputs[0]
    if type(result) is tuple and all(isinstance(item, Tensor) for item in result):
        return tuple

    def assemble(outputs: Sequence[Tensor]) -> Any:
        remaining = iter(outputs)
        return tree.map_tensors(lambda _: next(remaining), result)

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


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
