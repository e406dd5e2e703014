"""The check "properties": what ``op.register_property`` states of inputs and outputs of reference and kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright.checks.check import Check
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.exceptions import Raised, in_words
from opwright.checks.observation import Observation, copy_of, to_cpu
from opwright.contract.binding import fill
from opwright.results import Finding, NotChecked, Status
from opwright.runtime.properties import Property

__all__ = ["CHECK", "NAME", "check"]

NAME = "properties"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Every property on every case; the finding is the first that does not hold."""
    returns = context.op.contract.signature.returns
    excepted = [f"output {i}" for i, returned in enumerate(returns) if returned.by_property]
    if not context.op.properties:
        if excepted:
            yield NotChecked(
                NAME, f"{', '.join(excepted)}: compared by properties only, and op.register_property states none"
            )
        return
    plain = [case for case in context.cases if case.is_plain]  # no property is meant for infinities
    for found in check_each_case(context, NAME, find_error, cases=plain):
        if isinstance(found, Finding) and found.status is Status.PASS:
            yield Finding(NAME, Status.PASS, message=f"{', '.join(context.op.properties)}: {found.message}")
        else:
            yield found


def find_error(context: Context, run: Observation) -> str | None:
    """The first property that does not hold for a run."""
    if isinstance(run.outputs, Raised):
        return None  # the check "values" reports it
    contract = context.op.contract
    returned = contract.signature.output_count(run.expected)
    for stated in context.op.properties.values():
        # A property that the reference lacks is wrong itself, and would accuse every kernel.
        wrong = _why_not(context, stated, to_cpu(copy_of(run.before)), run.expected, returned, on_kernel=False)
        if wrong is not None:
            return f"{stated.name}: the reference itself does not have the property: {wrong}"
        wrong = _why_not(context, stated, run.before, run.outputs, returned, on_kernel=True)
        if wrong is not None:
            return f"{stated.name}: {wrong}"
    return None


def _why_not(
    context: Context, stated: Property, before: Sequence[Any], results: Sequence[Any], returned: int, *, on_kernel: bool
) -> str | None:
    contract = context.op.contract

    def call(*args: Any, **kwargs: Any) -> Any:
        """The operator with the kernel that is checked, or the reference."""
        arguments = fill(contract, args, kwargs)
        if on_kernel:
            results = context.results(arguments)
            written = contract.signature.written(arguments)
            count = len(results) - len(written)
            for argument, new in zip(written, results[count:], strict=True):
                argument.copy_(new)  # another process has written its copy
            return contract.visible(contract.pack(results[:count]))
        return contract.visible(contract.pack(contract.run_in_place(arguments)))

    try:
        holds = stated.of(before, results[:returned], results[returned:], call)
    except AssertionError as error:
        return str(error).strip() or "an assertion of it failed"
    except Raised as error:  # by the kernel, which the property calls
        return f"it raised {error}"
    except Exception as error:  # the author's function may raise anything
        return f"it raised {in_words(error)}"
    if isinstance(holds, torch.Tensor) and holds.dim():
        return _first_false(holds)
    return None if holds is None or bool(holds) else "it does not hold"


def _first_false(holds: torch.Tensor) -> str | None:
    false = (~holds.bool()).nonzero()
    if not len(false):
        return None
    return f"it does not hold at {false[0].tolist()} ({len(false)} of {holds.numel()} positions)"


CHECK = Check(
    NAME,
    "Do the properties that `op.register_property` states hold for the reference and the kernel?",
    cases="all with ordinary values, if a property is stated",
    run=check,
    group="memory",
)
