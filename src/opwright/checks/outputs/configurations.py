"""The check "configurations": every configuration of a kernel that tunes itself, as another one is chosen elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation
from opwright.checks.outputs import values
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["NAME", "check"]

NAME = "configurations"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """A typical and a large case with each configuration alone."""
    kernel = context.op.kernels.get(context.kernel)
    configurations = kernel.configurations() if kernel is not None else ()
    if not configurations:
        return
    cases = [*context.typical_cases(1), *context.large_cases(1)]
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    failed = False
    for name, alone in configurations:
        with alone:
            for case in cases:
                context.progress(NAME, f"{case} ({name})")
                run = context.observe(case)
                assert isinstance(run, Observation)  # typical_cases returns only cases that ran
                wrong = values.find_error(context, dataclasses.replace(run, outputs=_outputs(context, run)))
                if wrong is not None:
                    failed = True
                    yield context.failed(NAME, str(case), f"with the configuration {name}: {wrong}")
                    break
    if not failed:
        message = f"{len(configurations)} configurations"
        yield Finding(NAME, Status.PASS, message=message, coverage=Coverage(len(cases), len(cases)))


def _outputs(context: Context, run: Observation) -> tuple[Any, ...] | Raised:
    try:
        outputs = context.results(same_layout(run.arguments))
        context.synchronize()
    except Exception as error:  # such as too much shared memory for this GPU
        return context.described(error)
    return outputs
