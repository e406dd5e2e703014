"""One CUDA graph that first copies its caller's tensors into its own memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.runtime.cuda_graphs.capture import capturing

__all__ = ["Graph", "is_capturing", "on_side_stream"]


class Graph:
    """A captured function.

    The copies are nodes of the graph. If a call has other tensors than the last one, the nodes' addresses are updated,
    so that a replay is one launch.

    Args:
        own: the tensors that the caller's tensors are copied to, byte by byte; each is dense in memory.
        work: the function that is captured after the copies.
        stream: the stream for the capture.
        beside: a graph on the same stream whose memory pool it shares.

    Attributes:
        own: the tensors that are copied to.
        results: the results of ``work``: tensors that each replay overwrites, or None.
        launch: launches the graph on the current stream, with the copies of the latest replay.
        executable: the address of the ``cudaGraphExec_t``.
        copies: for each of ``own`` that is not empty: the node that copies to it, its address and its size in bytes.

    Raises:
        RuntimeError: torch or the CUDA runtime failed.
    """

    def __init__(
        self,
        own: Sequence[Tensor],
        work: Callable[[], Sequence[Any]],
        stream: torch.cuda.Stream,
        beside: Graph | None = None,
    ) -> None:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        pool = beside._graph.pool() if beside is not None else None
        sources = [torch.empty_like(tensor) for tensor in own]  # not in the graph's memory pool
        capture = capturing(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.device(stream.device), capture:
            with torch.no_grad():
                for tensor in own:
                    tensor.copy_(sources.pop(0))
            self.results: Sequence[Any] = work()
        graph.instantiate()
        self._graph: Any = graph
        self.launch: Callable[[], None] = graph.replay
        self.executable: int = graph.raw_cuda_graph_exec()
        self.own = own
        copies = _copies_by_destination(graph.raw_cuda_graph())
        if any(t.numel() and t.data_ptr() not in copies for t in own):
            raise RuntimeError("a copy of an argument was not captured as one")
        self.copies = [(copies[t.data_ptr()], t.data_ptr(), t.nbytes) if t.numel() else None for t in own]
        self._sources: list[int | None] = [None] * len(own)

    def replay(self, tensors: Sequence[Tensor]) -> None:
        """Run the graph on the current stream, with these tensors copied to its own."""
        tensors = [_with_layout_of(own, t) for t, own in zip(tensors, self.own, strict=True)]
        sources = [tensor.data_ptr() for tensor in tensors]
        if sources != self._sources:
            self._copy_from(sources)
        self.launch()

    def hold(self, tensors: Sequence[Tensor]) -> None:
        """Keep tensors alive as long as the graph can be launched, also by one who has only ``launch``."""
        self._graph.tensors_held_by_opwright = list(tensors)

    def _copy_from(self, sources: list[int]) -> None:
        from cuda.bindings import runtime

        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        with torch.cuda.device(self.own[0].device):
            for i, (copy, source) in enumerate(zip(self.copies, sources, strict=True)):
                if copy is not None and source != self._sources[i]:
                    node, own, size = copy
                    _checked(runtime.cudaGraphExecMemcpyNodeSetParams1D(self.executable, node, own, source, size, kind))
                self._sources[i] = source


@contextlib.contextmanager
def on_side_stream(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """A block on a new stream, after the current stream's earlier work and before its later work. It does not change
    the state of random number generators."""
    with torch.cuda.device(device), torch.random.fork_rng([device]):
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield stream
        current.wait_stream(stream)


def is_capturing() -> bool:
    """Whether the current stream is being captured already."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _with_layout_of(own: Tensor, tensor: Tensor) -> Tensor:
    """The tensor, or a copy with the memory layout of ``own``, because a node copies bytes."""
    same_layout = tensor.is_contiguous() if own.is_contiguous() else tensor.stride() == own.stride()
    if same_layout and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    return torch.empty_like(own).copy_(tensor)


def _copies_by_destination(graph: int) -> dict[int, Any]:
    """The copy nodes of a graph, by destination address."""
    from cuda.bindings import runtime

    (_, count) = _checked(runtime.cudaGraphGetNodes(graph))
    (nodes, _) = _checked(runtime.cudaGraphGetNodes(graph, count))
    found = {}
    for node in nodes:
        (kind,) = _checked(runtime.cudaGraphNodeGetType(node))
        if kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeMemcpy:
            (parameters,) = _checked(runtime.cudaGraphMemcpyNodeGetParams(node))
            found[int(parameters.dstPtr.ptr)] = node
    return found


def _checked(answer: tuple[Any, ...]) -> list[Any]:
    """The values of a CUDA runtime call, whose status must be success."""
    error, *found = answer
    if error.value != 0:
        raise RuntimeError(f"a CUDA runtime call for a graph failed: {error.name}")
    return found
