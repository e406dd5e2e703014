"""The check "inputs unchanged": a functional operator that writes into an input corrupts the caller's data."""

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
    """Compare every argument of every case before and after the call, bit for bit."""
    return context.check_each_case(NAME, find_error)


def find_error(context: Context, run: Observation) -> str | None:
    """The first argument that the kernel wrote into."""
    for argument, now, before in zip(context.op.contract.signature.arguments, run.arguments, run.before, strict=True):
        for a, b in zip(tree.leaves([now]), tree.leaves([before]), strict=True):
            if isinstance(a, torch.Tensor):
                changed = (a != b) & ~(a.isnan() & b.isnan())
                if changed.any():
                    how = describe_difference(a.cpu(), b.cpu(), changed.cpu())
                    return f"argument {argument.name!r} was written: {how}"
    return None
