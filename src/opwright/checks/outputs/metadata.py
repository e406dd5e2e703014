"""The check "metadata": shape, dtype, strides and device against annotation and fake; outputs in new memory."""

from __future__ import annotations

from collections.abc import Iterator

from opwright.checks.check import Check
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import Layout
from opwright.checks.observation import Observation
from opwright.contract.binding import describe_outputs
from opwright.results import Finding, NotChecked

__all__ = ["CHECK", "NAME", "check", "difference"]

NAME = "metadata"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Check every output of every case. torch.compile plans memory by the fake, so a difference corrupts memory."""
    return check_each_case(context, NAME, find_error)


def find_error(context: Context, run: Observation) -> str | None:
    """The first difference of an output from its fake, or memory that it must not share."""
    if isinstance(run.outputs, Raised):
        return None  # the check "values" reports it
    contract = context.op.contract
    returned = contract.signature.output_count(run.expected)
    mismatch = describe_outputs(contract, run.arguments, run.expected[:returned])
    if mismatch is not None:
        return f"the reference contradicts its own return annotation: {mismatch}"
    call = run.call
    assert call is not None  # only runs of a case are examined
    if isinstance(call.promised, str):
        return call.promised
    for i, (got, promised) in enumerate(zip(call.layouts, call.promised, strict=False)):
        if got is None:
            return None  # the check "values" reports it
        if (different := difference(i, got, promised)) is not None:
            return different
    return call.shared or None


def difference(number: int, got: Layout, promised: Layout) -> str | None:
    """How an output differs from what a fake promises."""
    for what, actual, expected in (
        ("shape", got.shape, _known_sizes(promised, got)),
        ("dtype", got.dtype, promised.dtype),
        ("device", got.device, promised.device),
    ):
        if actual != expected and expected != "meta":  # meta if this torch has no fake tensors of other devices
            return f"output {number} has {what} {actual}, but the fake promises {expected}"
    if 0 not in got.shape and not _same_strides(got, promised):
        return (
            f"output {number} of shape {list(got.shape)} has strides {list(got.strides)}, but the fake promises "
            f"{list(promised.strides)}: allocate outputs with new_empty(shape)"
        )
    return None


def _known_sizes(promised: Layout, actual: Layout) -> tuple[int | None, ...]:
    """The fake's shape; a size that depends on data is the actual one."""
    same_rank = len(promised.shape) == len(actual.shape)
    return tuple(actual.shape[i] if size is None and same_rank else size for i, size in enumerate(promised.shape))


def _same_strides(actual: Layout, promised: Layout) -> bool:
    """Whether strides are equal, except in dims of size 1, where they have no effect, and those that depend on data."""
    each = zip(actual.shape, actual.strides, promised.strides, strict=True)
    return all(expected is None or stride == expected or size == 1 for size, stride, expected in each)


CHECK = Check(
    NAME,
    "Do shape, dtype, strides and device match the fake, and does each output own its memory?",
    cases="all",
    run=check,
    group="values",
    examines=find_error,
)
