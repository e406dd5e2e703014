"""The check "configurations": every configuration of a kernel that tunes itself, as another one is chosen elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from opwright.checks.chosen_cases import large_cases, typical_cases
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation
from opwright.checks.outputs import values
from opwright.contract.inputs.case import Case
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["NAME", "check"]

NAME = "configurations"
_MEASURED = (
    "each configuration is right, but an autotuner launches all of them on the same tensors to measure them, and the "
    "next launch finds what they have left: {wrong}\n"
    "name what the kernel adds to in reset_to_zero= of triton.autotune, and what it changes in place in restore_value="
)


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """A typical and a large case with each configuration alone; and the typical one while all are measured."""
    kernel = context.op.kernels.get(context.kernel)
    configurations = kernel.configurations() if kernel is not None else ()
    if kernel is None or not configurations:
        return
    typical = typical_cases(context, 1)
    cases = [*typical, *large_cases(context, 1)]
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    each = [(name, block, f"with the configuration {name}: " + "{wrong}") for name, block in configurations]
    failures = [f for name, block, words in each if (f := _failure(context, cases, name, block, words)) is not None]
    measuring = kernel.measuring()
    if measuring is not None and not failures:
        failure = _failure(context, typical, "all are measured", measuring, _MEASURED)
        failures = [] if failure is None else [failure]
    yield from failures
    if not failures:
        message = f"{len(configurations)} configurations"
        yield Finding(NAME, Status.PASS, message=message, coverage=Coverage(len(cases), len(cases)))


def _failure(
    context: Context, cases: Sequence[Case], name: str, block: contextlib.AbstractContextManager[None], words: str
) -> Finding | None:
    """The first case that is wrong in a block, with words about what is ``{wrong}``."""
    with block:
        for case in cases:
            context.progress(NAME, f"{case} ({name})")
            wrong = _wrong(context, case)
            if wrong is not None:
                return context.failed(NAME, str(case), words.replace("{wrong}", wrong))
    return None


def _wrong(context: Context, case: Case) -> str | None:
    run = context.observe(case)
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran
    return values.find_error(context, dataclasses.replace(run, outputs=_outputs(context, run)))


def _outputs(context: Context, run: Observation) -> tuple[Any, ...] | Raised:
    try:
        outputs = context.results(same_layout(run.arguments))
        context.synchronize()
    except Exception as error:  # such as too much shared memory for this GPU
        return context.described(error)
    return outputs
