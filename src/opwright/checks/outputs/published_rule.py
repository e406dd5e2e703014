"""The check "published rule": what the format of a task itself says of a kernel, with its own tolerance.

Reports show it beside the other findings. A rule such as ``allclose`` with an absolute tolerance passes zeros where
results are small.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opwright.checks.check import Check
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation, SkippedCase
from opwright.contract.dtypes import short
from opwright.contract.own_inputs import Rule
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "WRONG_BY", "check", "wrong_by"]

NAME = "published rule"
# How messages begin that say that a format calls a kernel wrong.
WRONG_BY = "wrong by the rule of"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Apply the rule to each sample, which is the task's own input."""
    rule = context.op.contract.own_inputs.rule
    if rule is None:
        return
    for case in (c for c in context.cases if c.sample is not None):
        run = context.observe(case)
        if isinstance(run, SkippedCase):
            yield NotChecked(NAME, run.why)
            continue
        wrong = wrong_by(rule, run)
        message = f"{WRONG_BY} {rule.format}: {wrong}" if wrong else f"correct by the rule of {rule.format}"
        if context.op.contract.own_inputs.samples_are_smaller:
            message = f"{message} (for smaller inputs than the task's own)"
        yield Finding(NAME, Status.WARNING if wrong else Status.PASS, str(case), message)


def wrong_by(rule: Rule, run: Observation) -> str:
    """What the rule finds; "" if nothing."""
    if isinstance(run.outputs, Raised):
        return f"it raised {run.outputs.kind}"
    for i, (got, expected) in enumerate(zip(run.outputs, run.expected, strict=False)):
        if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
            return f"output {i} must have the shape {list(expected.shape)}"
        if got.dtype != expected.dtype:  # torch.allclose refuses it
            return f"output {i} must have the dtype {short(expected.dtype)}, got {short(got.dtype)}"
        is_half = rule.of_half and expected.dtype in (torch.float16, torch.bfloat16)
        atol, rtol = (rule.of_half, rule.of_half) if is_half else (rule.atol, rule.rtol)
        if not torch.allclose(got.cpu().double(), expected.double(), atol=atol, rtol=rtol):
            return f"output {i} is beyond atol={atol:g}, rtol={rtol:g}"
    return ""


CHECK = Check(
    NAME,
    "What does the published rule of the task's format say of its own inputs?",
    cases="samples",
    run=check,
    worst=Status.WARNING,
    group="values",
)
