"""One CUDA graph that begins by copying its caller's tensors into memory of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Graph", "aside", "is_capturing"]


class Graph:
    """A captured piece of work.

    The copies are nodes of the graph. They are pointed at other tensors where a call brings others than the call
    before, so that a replay is one launch.

    Args:
        own: what the caller's tensors are copied to, byte by byte; each is dense in memory.
        work: what is captured after that.
        stream: where it is captured.
        beside: a graph whose memory it shares, of the same stream.

    Attributes:
        results: what ``work`` returned: tensors that each replay writes anew, or None among them.

    Raises:
        RuntimeError: torch or the CUDA runtime refused something.
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
        sources = [torch.empty_like(tensor) for tensor in own]  # outside of the graph's memory
        capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.device(stream.device), capture:
            with torch.no_grad():
                for tensor in own:
                    tensor.copy_(sources.pop(0))
            self.results: Sequence[Any] = work()
        graph.instantiate()
        self._graph: Any = graph
        self._executable = graph.raw_cuda_graph_exec()
        self._own = own
        copies = _copies_by_destination(graph.raw_cuda_graph())
        if any(t.numel() and t.data_ptr() not in copies for t in own):
            raise RuntimeError("a copy of an argument was not captured as one")
        # Of each tensor, unless it is empty: the node that copies to it, its address and its size in bytes.
        self._copies = [(copies[t.data_ptr()], t.data_ptr(), t.nbytes) if t.numel() else None for t in own]
        self._sources: list[int | None] = [None] * len(own)

    def replay(self, given: Sequence[Tensor]) -> None:
        """Run it on the current stream, with these tensors copied to its own."""
        given = [_as_it_lies(t, own) for t, own in zip(given, self._own, strict=True)]
        sources = [tensor.data_ptr() for tensor in given]
        if sources != self._sources:
            self._copy_from(sources)
        self._graph.replay()

    def _copy_from(self, sources: list[int]) -> None:
        from cuda.bindings import runtime

        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        with torch.cuda.device(self._own[0].device):
            for i, (copy, source) in enumerate(zip(self._copies, sources, strict=True)):
                if copy is not None and source != self._sources[i]:
                    node, own, size = copy
                    _checked(
                        runtime.cudaGraphExecMemcpyNodeSetParams1D(self._executable, node, own, source, size, kind)
                    )
                self._sources[i] = source


@contextlib.contextmanager
def aside(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """A block on a stream of its own, after the current stream's work so far and before what follows. Random numbers
    are drawn as if it had not been."""
    with torch.cuda.device(device), torch.random.fork_rng([device]):
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield stream
        current.wait_stream(stream)


def is_capturing() -> bool:
    """Whether the current stream is being captured already."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _as_it_lies(tensor: Tensor, own: Tensor) -> Tensor:
    """The tensor, or a copy of it that lies in memory as ``own`` does: a node copies bytes."""
    lies_alike = tensor.is_contiguous() if own.is_contiguous() else tensor.stride() == own.stride()
    if lies_alike and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    return torch.empty_like(own).copy_(tensor)


def _copies_by_destination(graph: int) -> dict[int, Any]:
    """The nodes of a graph that copy, by the address that they copy to."""
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
    """What a function of the CUDA runtime returned, once it is certain that it did not fail."""
    error, *found = answer
    if error.value != 0:
        raise RuntimeError(f"the CUDA runtime refused a graph: {error.name}")
    return found
