"""CPU tensors that stand for CUDA tensors, in a launcher whose kernels a simulator runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opwright import tree

__all__ = ["AsOnGpu", "backwards_on_simulated", "on_simulated"]


class AsOnGpu(TorchFunctionMode):
    """A block in which ``x.is_cuda`` is True, as published launchers assert. ``x.cuda()`` and ``device="cuda"`` give
    tensors on the CPU. ``x.device`` stays ``cpu``, as new tensors are made there."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__self__", None) is torch.Tensor.is_cuda:  # the descriptor, whose __get__ is called
            return True
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in (kwargs or {}).items()})


def _on_cpu(value: Any) -> Any:
    """The CPU in the place of a GPU."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def on_simulated(launcher: Callable[..., Any]) -> Callable[..., Any]:
    """A launcher whose CPU tensors answer as CUDA tensors do."""

    @functools.wraps(launcher)
    def launch_on_simulated(*arguments: Any, **keywords: Any) -> Any:
        if any(t.is_cuda for t in tree.tensors([*arguments, *keywords.values()])):
            return launcher(*arguments, **keywords)
        with AsOnGpu():
            return launcher(*arguments, **keywords)

    return launch_on_simulated


@contextlib.contextmanager
def backwards_on_simulated(outputs: Sequence[torch.Tensor]) -> Iterator[None]:
    """A block in which CPU tensors answer so in each backward that is written in Python, of those behind some outputs.

    A block around ``torch.autograd.grad`` would not do, because torch leaves it before the first backward.
    """
    mode, probe = AsOnGpu(), torch.empty(0)
    was_on = probe.is_cuda

    def enter(grads: Any) -> None:
        mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(found: Any, grads: Any) -> None:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    nodes = [node for node in _nodes_behind(outputs) if hasattr(type(node), "_forward_cls")]
    handles = [h for node in nodes for h in (node.register_prehook(enter), node.register_hook(leave))]
    try:
        yield
    finally:
        if probe.is_cuda and not was_on:  # after an exception of a backward, where torch has not left the block itself
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()


def _nodes_behind(outputs: Sequence[torch.Tensor]) -> list[Any]:
    waiting = [t.grad_fn for t in outputs if t.grad_fn is not None]
    found: dict[Any, None] = {}
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            waiting += [following for following, _ in node.next_functions if following is not None]
    return list(found)
