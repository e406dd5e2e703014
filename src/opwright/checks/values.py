"""Are the values right? Against the meaning in float64, within a tolerance that rounding explains."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils import _pytree

from opwright.checks.context import Context, Observation, reduction_length, to_cpu, to_double
from opwright.checks.tolerance import allowed_error, describe_difference, discrete_choices, first_difference
from opwright.results import Finding, NotChecked

__all__ = ["NAME", "check"]

NAME = "values"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Every output element of every case."""
    return context.judge_all(NAME, judge)


def judge(context: Context, run: Observation) -> str | None:
    """What is wrong with the values of one run."""
    if isinstance(run.outputs, Exception):
        return f"the kernel raised {type(run.outputs).__name__}: {run.outputs}"
    if len(run.outputs) != len(run.expected):
        return f"the kernel returned {len(run.outputs)} outputs, expected {len(run.expected)}"
    for i, (got, expected, exact) in enumerate(zip(run.outputs, run.expected, run.exact, strict=True)):
        name = f"output {i}: " if len(run.outputs) > 1 else ""
        if not isinstance(got, torch.Tensor):
            return f"{name}the kernel returned {type(got).__name__}, expected a tensor"
        if got.shape != expected.shape:
            return f"{name}shape {list(got.shape)}, expected {list(expected.shape)}"
        wrong = _wrong_elements(context, run, i, got.detach().cpu(), expected, exact)
        if wrong.any():
            return name + describe_difference(got.detach().cpu(), expected, wrong)
    return None


def _wrong_elements(
    context: Context, run: Observation, i: int, got: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor
) -> torch.Tensor:
    if expected.is_floating_point() or expected.is_complex():
        dtype = run.case.dtype if run.case.dtype and run.case.dtype.is_floating_point else expected.dtype
        tolerance = allowed_error(exact, expected, dtype, reduction_length(context, run))
        return first_difference(got, exact, expected, tolerance)
    wrong = got != expected
    if not wrong.any():
        return wrong

    def rerun(relative: float) -> list[torch.Tensor]:
        return [_perturbed(context, run, i, relative, seed) for seed in range(12)]

    for choice in discrete_choices(exact, rerun, run.case.dtype):
        wrong &= got != choice
    return wrong


def _perturbed(context: Context, run: Observation, i: int, relative: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)

    def perturb(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        return t * (1 + relative * (2 * torch.rand(t.shape, dtype=t.dtype, generator=generator) - 1))

    inputs = _pytree.tree_map_only(torch.Tensor, perturb, to_double(to_cpu(run.before)))
    return context.op.contract.truth(inputs)[i]
