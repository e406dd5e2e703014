"""Capturing a CUDA graph, so that the process goes on as before if that fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from opwright.internals.cuda import clear_cublas_workspaces

__all__ = ["capturing"]


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """``torch.cuda.graph(graph, **options)`` with memory for cuBLAS of its own; after a failure, random numbers can be
    drawn on the GPU again.

    torch keeps memory for cuBLAS for each stream. A graph that used what is there before the capture would use it in
    each replay, also once torch has freed it, as torch.compile's CUDA graphs have it do; so it is allocated anew within
    the capture, from the graph's own pool, and no later capture on this stream uses it.

    A capture that ends with an error leaves torch's generator in capture mode, and every ``torch.randn`` on that GPU
    raises "Offset increment outside graph capture encountered unexpectedly" (torch 2.11). The next successful capture
    sets the generator back, so a small one is made.
    """
    clear_cublas_workspaces()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the first error is the one to report
            _capture_something()
        raise
    finally:
        clear_cublas_workspaces()


def _capture_something() -> None:
    number = torch.zeros(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        number.add_(1)
