"""The check "metadata": shape, dtype, strides and device against annotation and fake; outputs in new memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.context import Context
from opwright.checks.observation import Observation, same_layout
from opwright.contract.binding import describe_outputs
from opwright.contract.inputs.sizes import elements
from opwright.internals.compiler import fake_tensors
from opwright.results import Finding, NotChecked

__all__ = ["NAME", "check"]

NAME = "metadata"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Check every output of every case. torch.compile plans memory by the fake, so a difference corrupts memory."""
    return context.check_each_case(NAME, find_error)


def find_error(context: Context, run: Observation) -> str | None:
    """The first difference of an output from its fake, or memory that it must not share."""
    if isinstance(run.outputs, Exception):
        return None  # the check "values" reports it
    contract = context.op.contract
    returned = contract.signature.output_count(run.expected)
    mismatch = describe_outputs(contract, run.arguments, run.expected[:returned])
    if mismatch is not None:
        return f"the reference contradicts its own return annotation: {mismatch}"
    promised = _fakes(context, run)
    if isinstance(promised, str):
        return promised
    for i, (got, fake) in enumerate(zip(run.outputs[:returned], promised, strict=False)):
        if not isinstance(got, torch.Tensor):
            return None  # the check "values" reports it
        for what, actual, expected in (
            ("shape", tuple(got.shape), _known_sizes(fake, got)),
            ("dtype", got.dtype, fake.dtype),
            ("device", got.device.type, fake.device.type),
        ):
            if actual != expected and expected != "meta":  # meta if this torch has no fake tensors of other devices
                return f"output {i} has {what} {actual}, but the fake promises {expected}"
        if got.numel() > 0 and not _same_strides(got, fake):
            return (
                f"output {i} of shape {list(got.shape)} has strides {list(got.stride())}, but the fake promises "
                f"{list(fake.stride())}: allocate outputs with new_empty(shape)"
            )
    outputs = run.outputs[:returned]
    return _aliasing(outputs, run.passed) or _reused_memory(context, run, outputs)


def _fakes(context: Context, run: Observation) -> tuple[torch.Tensor, ...] | str:
    with fake_tensors(data_dependent=bool(context.op.contract.signature.data_dependent)) as as_fake:
        fakes = tree.map_tensors(as_fake, run.arguments)
        try:
            result = context.op.contract.signature.call(context.op.with_saved, fakes)
        except Exception as error:  # a custom fake may raise anything
            return f"the fake raises {type(error).__name__}: {error}"
    return context.op.contract.unpack(result)


def _known_sizes(fake: torch.Tensor, actual: torch.Tensor) -> tuple[int, ...]:
    """The fake's shape; a size that depends on data is the actual one."""
    same_rank = fake.dim() == actual.dim()
    return tuple(
        size if isinstance(size, int) or not same_rank else actual.shape[i] for i, size in enumerate(fake.shape)
    )


def _same_strides(actual: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether strides are equal, except in dims of size 1, where they have no effect, and those that depend on data."""
    return all(
        not isinstance(promised, int) or stride == promised or size == 1
        for size, stride, promised in zip(actual.shape, actual.stride(), fake.stride(), strict=True)
    )


def _aliasing(outputs: Sequence[torch.Tensor], arguments: Any) -> str | None:
    taken = {_address(t): f"input {i}" for i, t in enumerate(tree.tensors(arguments))}
    for i, output in enumerate(outputs):
        if output.numel() and _address(output) in taken:
            return f"output {i} shares memory with {taken[_address(output)]}: return a new tensor"
        taken[_address(output)] = f"output {i}"
    return None


def _address(tensor: torch.Tensor) -> int:
    """Where its memory begins: storages differ, if a view is made through NumPy or DLPack."""
    return tensor.untyped_storage().data_ptr()


def _reused_memory(context: Context, run: Observation, outputs: Sequence[torch.Tensor]) -> str | None:
    """Whether a second call returns the memory of the first, so that the caller's earlier result changes."""
    if elements(context.op.contract, run.case) > 64:
        return None  # small cases find a reused buffer as well
    earlier = {_address(t) for t in outputs if t.numel()}
    for i, again in enumerate(context.op.contract.unpack(context.call(same_layout(run.arguments)))):
        if again.numel() and _address(again) in earlier:
            return f"output {i} of a second call is in the memory of an earlier result: return a new tensor"
    return None
