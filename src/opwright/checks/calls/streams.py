"""The check "streams": whether the kernel runs on torch's current stream, and inside a CUDA graph.

A kernel on the legacy default stream gives correct results in every test with one stream, and wrong ones in a training
loop with several. Here the inputs are written late, on a busy side stream: a kernel that does not wait reads zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation
from opwright.checks.outputs import values
from opwright.internals.cuda import keep_gpu_busy
from opwright.results import Finding, NotChecked, Status
from opwright.runtime.cuda_graphs.capture import capturing

__all__ = ["CHECK", "NAME", "check"]

NAME = "streams"
# Long enough (about 20 ms) for a kernel on another stream to end before the inputs are written.
_CYCLES = 40_000_000


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Check a few typical cases on a side stream and replayed from a graph; on a GPU only."""
    if context.device != "cuda":
        yield NotChecked(NAME, "a CPU has no streams")
        return
    cases = typical_cases(context, 2)
    for case in cases:
        context.progress(NAME, str(case))
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        wrong = values.find_error(context, dataclasses.replace(run, outputs=_on_side_stream(context, run)))
        if wrong is not None:
            yield context.failed(NAME, str(case), f"on a side stream: {wrong}; it does not wait for the current stream")
            return
        replayed = _from_graph(context, run)
        if isinstance(replayed, Exception):
            why = (str(replayed).splitlines() or [type(replayed).__name__])[0]
            yield Finding(
                NAME, Status.WARNING, str(case), f"it cannot be captured in a CUDA graph: {why}",
                remedy="do not wait for the GPU or read its values on the CPU, and allocate with torch",
            )  # fmt: skip
            return
        wrong = values.find_error(context, dataclasses.replace(run, outputs=replayed))
        if wrong is not None:
            yield context.failed(NAME, str(case), f"replayed from a CUDA graph: {wrong}")
            return
    if cases:
        yield Finding(NAME, Status.PASS, message=f"{len(cases)} cases on a side stream")


def _on_side_stream(context: Context, run: Observation) -> tuple[Any, ...] | Raised:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = _zeros_like(run.before)
        keep_gpu_busy(_CYCLES)
        _copy_into(late, run.before)
        try:
            outputs = context.results(late)
        except Exception as error:  # an exception of the kernel is a finding
            return context.described(error)
    stream.synchronize()
    return outputs


def _from_graph(context: Context, run: Observation) -> tuple[Any, ...] | Exception:
    """The outputs of a replay with new contents of the captured inputs."""
    inputs = _copies(run.before)
    graph = torch.cuda.CUDAGraph()
    try:
        with capturing(graph):
            outputs = context.results(inputs)
    except Exception as error:  # a kernel that waits for the GPU is correct, but cannot be captured
        torch.cuda.synchronize()
        return error
    _fill(inputs)
    graph.replay()
    _copy_into(inputs, run.before)
    graph.replay()
    torch.cuda.synchronize()
    return tuple(o.clone() for o in outputs)


def _zeros_like(arguments: Any) -> Any:
    return tree.map_tensors(torch.zeros_like, arguments)


def _copies(arguments: Any) -> Any:
    return tree.map_tensors(torch.clone, arguments)


def _fill(arguments: Any) -> None:
    for tensor in tree.tensors(arguments):
        tensor.zero_()


def _copy_into(arguments: Any, values: Any) -> None:
    for target, source in zip(tree.tensors(arguments), tree.tensors(values), strict=True):
        target.copy_(source, non_blocking=True)


CHECK = Check(
    NAME,
    "On a GPU, is the kernel right on a busy side stream and replayed from a CUDA graph?",
    cases="two",
    run=check,
    process=Process.KERNEL,
    group="memory",
)
