"""The check "opcheck": torch's own check of a registration (``torch.library.opcheck``): schema, fake, autograd, AOT.

It has no reference, and misses most numerical errors; the other checks find those.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.context import Context, Observation, same_layout
from opwright.contract import derive
from opwright.contract.inputs.case import Case
from opwright.results import Finding, NotChecked, Origin, Status

__all__ = ["NAME", "check"]

NAME = "opcheck"
_TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Check one contiguous case (with gradients, if any) and one strided."""
    chosen = context.typical_cases(1) + context.typical_cases(1, layouts=("sliced", "transposed"))
    for case in chosen:
        context.progress(NAME, str(case))
        wrong = _run(context, case)
        if wrong is not None:
            yield context.failed(NAME, str(case), wrong)
            return
    yield (
        Finding(NAME, Status.PASS, message=f"{len(chosen)} cases")
        if chosen
        else NotChecked(NAME, "no case could be run")
    )


def _tests_for(context: Context, arguments: Sequence[Any]) -> tuple[str, ...]:
    """Those of torch's tests that can be run. One compares the results of two runs, which differ if they are random;
    one compares arguments by arithmetic, which torch lacks on floats of a byte."""
    left_out = set()
    if context.op.contract.random is True:
        left_out.add("test_aot_dispatch_dynamic")
    if any(t.dtype.is_floating_point and t.dtype.itemsize == 1 for t in tree.tensors(list(arguments))):
        left_out.add("test_schema")
    return tuple(test for test in _TESTS if test not in left_out)


def _run(context: Context, case: Case) -> str | None:
    run = context.observe(case)
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran

    signature = context.op.contract.signature
    # A leaf that requires a gradient cannot be written.
    has_gradient = not signature.mutated and context.op.parts["autograd"].origin is not Origin.MISSING

    def track(t: torch.Tensor) -> torch.Tensor:
        leaf = t.detach()
        if not has_gradient:
            return leaf
        return leaf.requires_grad_() if derive.differentiable(t) and t.dtype in (torch.float32, torch.float64) else leaf

    arguments: list[Any] = tree.map_tensors(track, list(same_layout(run.arguments)))
    split = len(signature.positional)
    keywords = {a.name: v for a, v in zip(signature.keyword_only, arguments[split:], strict=True)}
    try:
        with warnings.catch_warnings(), context.op.only(context.kernel):
            warnings.simplefilter("ignore")
            tests = _tests_for(context, arguments)
            torch.library.opcheck(context.op.overload, tuple(arguments[:split]), keywords, test_utils=tests)
    except Exception as error:  # opcheck raises OpCheckError, and whatever the operator raises
        return f"{type(error).__name__}: {str(error).strip()[:1500]}"
    return None
