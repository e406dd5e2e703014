"""The check "inputs unchanged": arguments that are not marked as mutated, and the memory around the elements of all."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opwright import tree
from opwright.checks.check import Check
from opwright.checks.comparison.difference import describe_difference
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.observation import Observation
from opwright.contract.signature import Argument
from opwright.results import Finding, NotChecked
from opwright.workers.copies import changed_bytes

__all__ = ["CHECK", "NAME", "check"]

NAME = "inputs unchanged"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Compare the memory of every argument of every case before and after the call, bit for bit."""
    return check_each_case(context, NAME, find_error)


def find_error(context: Context, run: Observation) -> str | None:
    """The first argument that the kernel wrote, or around which it wrote; of mutated ones, around their elements."""
    assert run.call is not None  # only runs of a case are examined
    each = zip(context.op.contract.signature.arguments, run.call.passed, run.arguments, strict=True)
    for argument, now, before in each:
        for a, b in zip(tree.tensors([now]), tree.tensors([before]), strict=True):
            changed = changed_bytes(a, b, elements=not argument.mutated)
            if changed:
                return _describe(argument, a.detach().cpu(), b.detach().cpu(), changed)
    return None


def _describe(argument: Argument, now: torch.Tensor, before: torch.Tensor, changed: int) -> str:
    differ = (now != before) & ~(now.isnan() & before.isnan())
    if not argument.mutated and differ.any():
        return f"argument {argument.name!r} was written: {describe_difference(now, before, differ)}"
    if not argument.mutated and changed_bytes(now, before, elements=False) == 0:
        return f"argument {argument.name!r} was written: {changed} bytes differ, in NaNs or signs of zeros"
    return f"memory around the elements of argument {argument.name!r} was written: {changed} bytes differ"


CHECK = Check(
    NAME,
    "Are the inputs, and the memory around their elements, the same bit for bit?",
    cases="all",
    run=check,
    group="values",
    examines=find_error,
)
