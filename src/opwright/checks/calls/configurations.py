"""The check "configurations": every configuration of a kernel that tunes itself, as another one is chosen elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import large_cases, typical_cases
from opwright.checks.context import Context
from opwright.checks.each_case import kind_of
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation
from opwright.checks.outputs import values
from opwright.contract.inputs.case import Case
from opwright.results import Coverage, Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "configurations"
_MEASURED = (
    "each configuration is right, but an autotuner launches all of them on the same tensors to measure them, and the "
    "next launch finds what they have left: {wrong}\n"
    "name what the kernel adds to in reset_to_zero= of triton.autotune, and what it changes in place in restore_value="
)


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """A typical and a large case with each configuration alone; and the typical one while all are measured."""
    if context.kernel not in context.op.kernels or not (configurations := context.hooks.configurations()):
        return
    typical = typical_cases(context, 1)
    cases = [*typical, *large_cases(context, 1)]
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    found = [(name, _first_wrong(context, cases, name, block)) for name, block in configurations]
    failures = list(_told_once(context, found))
    measuring = context.hooks.measuring()
    if measuring is not None and not failures:
        failure = _first_wrong(context, typical, "all are measured", measuring)
        if failure is not None:
            failures = [context.failed(NAME, str(failure[0]), _MEASURED.replace("{wrong}", failure[1]))]
    yield from failures
    if not failures:
        message = f"{len(configurations)} configurations"
        yield Finding(NAME, Status.PASS, message=message, coverage=Coverage(len(cases), len(cases)))


def _told_once(context: Context, found: Sequence[tuple[str, tuple[Case, str] | None]]) -> Iterator[Finding]:
    """A finding for each kind of failure, with the configurations that fail in this way."""
    kinds: dict[str, list[tuple[str, Case, str]]] = {}
    for name, failure in found:
        if failure is not None:
            kinds.setdefault(kind_of(failure[1]), []).append((name, *failure))
    for alike in kinds.values():
        name, case, wrong = alike[0]
        which = f"the configuration {name}"
        if len(alike) > 1:
            others = (
                "each configuration" if len(alike) == len(found) else f"{len(alike)} of {len(found)} configurations"
            )
            which = f"{others}, such as {name}"
        yield context.failed(NAME, str(case), f"with {which}: {wrong}")


def _first_wrong(
    context: Context, cases: Sequence[Case], name: str, block: contextlib.AbstractContextManager[None]
) -> tuple[Case, str] | None:
    """The first case that is wrong in a block, and what is wrong."""
    with block:
        for case in cases:
            context.progress(NAME, f"{case} ({name})")
            wrong = _wrong(context, case)
            if wrong is not None:
                return case, wrong
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


CHECK = Check(
    NAME,
    "Is every configuration of an autotuned kernel right, and the call that measures them?",
    cases="two for each, one",
    run=check,
    process=Process.KERNEL,
    group="memory",
)
