"""Replays captured steps in native code, once that is loaded. Packages do not have this module."""

from __future__ import annotations

import ctypes
import functools
from typing import NoReturn

import torch
from torch import Tensor

from opwright.backends.native.graph_step import NativeGraph, NativeStep, Refusal, graph_steps
from opwright.backends.native.tensor_access import address_of
from opwright.runtime.cuda_graphs.graph import Graph
from opwright.runtime.cuda_graphs.graphed import CudaGraphed, cuda_graphed
from opwright.runtime.cuda_graphs.replay import REFUSALS, Replayed, take_free_steps
from opwright.runtime.cuda_graphs.step import CapturedStep, refuse_subclasses

__all__ = ["CudaGraphed", "cuda_graphed"]


def _replay_natively(replayed: Replayed) -> None:
    """Have a free step replayed in native code, if that has been built."""
    if not replayed.is_native and (native := graph_steps.after_some_calls()) is not None:
        replayed.replay_natively(native.functions_for(_described(replayed.step)))


def _described(step: CapturedStep) -> NativeStep:
    return NativeStep(
        name=f"cuda_graphed {step.name}",
        refuse=_refuse,
        forward=_native(step.forward),
        backward=None if step.backward is None else _native(step.backward),
        is_copied=tuple(step.is_copied),
        outputs=tuple(step.outputs),
        is_differentiable=tuple(step.is_differentiable),
        gradients=tuple(step.gradients),
        watched=tuple(step.watched),
        lent=tuple(step.lent),
    )


def _native(graph: Graph) -> NativeGraph:
    """The copies are torch's if the CUDA runtime is not found."""
    launch, own, set_copy = graph.launch, tuple(graph.own), _address_of_set_copy()
    if set_copy is None or not graph.executable:
        return NativeGraph(launch, own)
    copies = tuple(copy and (int(copy[0]), copy[1], copy[2]) for copy in graph.copies)
    return NativeGraph(launch, own, graph.executable, copies, set_copy)


@functools.cache
def _address_of_set_copy() -> int | None:
    """That of ``cudaGraphExecMemcpyNodeSetParams1D`` in the CUDA runtime that torch has loaded."""
    try:
        runtime = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '0').split('.')[0]}")
        return address_of(runtime.cudaGraphExecMemcpyNodeSetParams1D)
    except (OSError, AttributeError):
        return None


def _refuse(reason: int, tensor: Tensor | None) -> NoReturn:
    """Raise the error for a backward that does not run.

    Raises:
        ArgumentError: a gradient is a tensor subclass.
        CudaGraphError: it cannot run, or not any more.
    """
    refuse_subclasses([tensor])
    raise REFUSALS[Refusal(reason).name.lower().replace("_", " ")]()


take_free_steps(_replay_natively)
