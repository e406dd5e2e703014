"""Are the inputs left alone? A functional operator that writes into one corrupts the caller."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opwright import tree
from opwright.checks.context import Context, Observation
from opwright.checks.tolerance import describe_difference
from opwright.results import Finding, NotChecked

__all__ = ["NAME", "check"]

NAME = "inputs unchanged"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Every argument of every case, bit for bit."""
    return context.check_each_case(NAME, fault_in)


def fault_in(context: Context, run: Observation) -> str | None:
    """Which argument the kernel wrote into."""
    for argument, now, before in zip(context.op.contract.signature.arguments, run.arguments, run.before, strict=True):
        for a, b in zip(tree.leaves([now]), tree.leaves([before]), strict=True):
            if isinstance(a, torch.Tensor):
                changed = (a != b) & ~(a.isnan() & b.isnan())
                if changed.any():
                    how = describe_difference(a.cpu(), b.cpu(), changed.cpu())
                    return f"argument {argument.name!r} was written: {how}"
    return None
