"""Runs of a function before its capture: they do one-time work, and show what the function reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opwright.errors import ArgumentError
from opwright.internals.tensors import version_of, was_written
from opwright.runtime.cuda_graphs.places import Places
from opwright.runtime.cuda_graphs.reads import Reads, observing, restoring

__all__ = ["Saved", "WarmUp", "Work", "memory_address"]


@dataclass(frozen=True)
class Work:
    """The function of a call, with its tensors.

    Attributes:
        name: its name in messages.
        run: takes the tensors of a call, returns any nest of values.
        tensors: the tensors of the captured call.
        read_in_place: whether each is read in place, as parameters are; the others are copied.
        buffers: other tensors that ``run`` may write, such as running statistics.
        function: the function itself; what it reads besides its arguments is found from there (default: ``run``).
        places: the places of earlier captures of the same kind of calls; if there are any, one-time work is done.
    """

    name: str
    run: Callable[[Sequence[Tensor]], Any]
    tensors: Sequence[Tensor]
    read_in_place: Sequence[bool]
    buffers: Sequence[Tensor] = field(default=())
    function: Any = None
    places: Sequence[Places] = field(default=())


@dataclass
class Saved:
    """Tensors that autograd saved for the backward: the addresses of their storages, and whether each output is one."""

    storages: set[int] = field(default_factory=set)
    outputs: list[bool] = field(default_factory=list)


class WarmUp:
    """Runs forward and backward.

    The first run shows which tensors the function writes besides its arguments; their values are restored after each
    run. The second one does one-time work, such as compiling. The third one shows what later calls read.

    Attributes:
        reads: what the last run read.
        saved: what autograd saved in it.

    Raises:
        ArgumentError: the function writes one of its tensors, depends on one that is not among its arguments, or has
            dropout within a recurrent network.
    """

    def __init__(
        self, work: Work, own: Sequence[Tensor], forward: Callable[[], list[Tensor]], wanted: Sequence[Tensor]
    ) -> None:
        self._work, self._own, self._forward, self._wanted = work, own, forward, wanted
        if not work.places:
            with restoring(work.buffers), observing(own) as reads:
                self._run()
            with restoring([*work.buffers, *reads.written]):
                self._run()
        with restoring(work.buffers), observing(own) as self.reads:
            self.saved = self._run(self.reads)
        if self.reads.has_recurrent_dropout:
            raise ArgumentError(
                f"{work.name} has dropout between the layers of a recurrent network. torch keeps its random state in "
                "memory that it frees after torch.manual_seed(), while a graph would go on reading it",
                fix="put torch.nn.Dropout between networks of one layer, set dropout=0, or call it without graphs",
            )

    def _run(self, reads: Reads | None = None) -> Saved:
        saved = Saved()

        def note(tensor: Tensor) -> Tensor:
            saved.storages.add(memory_address(tensor))
            return tensor.detach()

        versions = [version_of(tensor) for tensor in self._own]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
            outputs = self._forward()
        if reads is not None:
            for output in outputs:
                reads.note_read(output)
        saved.outputs = [memory_address(o) in saved.storages for o in outputs]
        _refuse_unknown_leaves(self._work, outputs, self._wanted)
        differentiable = [o for o in outputs if o.requires_grad]
        if differentiable:
            zeros = [torch.zeros_like(o) for o in differentiable]
            torch.autograd.grad(differentiable, self._wanted, zeros, allow_unused=True)
        if any(was_written(tensor, version) for tensor, version in zip(self._own, versions, strict=True)):
            raise ArgumentError(
                f"{self._work.name} writes into an argument, but replays work on copies", fix="call it without graphs"
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


def memory_address(tensor: Tensor) -> int:
    """The address of a tensor's storage; 0 if it has none, as a sparse tensor."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
