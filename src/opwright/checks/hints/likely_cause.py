"""What to do about a failure: state in the contract what a kernel is not meant for, or compute more exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.hints.ordinary import Outcome
from opwright.checks.hints.precision import likely_precision
from opwright.checks.hints.undefined import common_cause, is_undefined
from opwright.checks.hints.unmeant_inputs import unmeant_inputs
from opwright.checks.observation import Observation
from opwright.contract.inputs.case import Case

__all__ = ["likely_cause"]


def likely_cause(
    context: Context,
    case: Case,
    ordinary: Case | None,
    wrong: str,
    outcome: Outcome,
    observe: Callable[[Case], Any],
) -> str:
    """The remedy of a failure; "" if its cause is not known.

    Args:
        case: the smallest one.
        ordinary: a more ordinary one, if one fails in the same way.
        wrong: what is wrong with the smallest one.
        observe: runs a case.
    """
    run, contract = observe(case), context.op.contract
    if "expected nan" in wrong and _is_of_one_process(run) and is_undefined(run.reference):
        cause = common_cause(contract, [run.reference])
        return "" if cause is None else f"the reference is NaN where {cause.why}: {cause.remedy}"
    if "elements differ" in wrong and "gradient" not in wrong:
        seen = run if ordinary is None else observe(ordinary)  # a single product may be exact by chance
        if _is_of_one_process(seen) and (remedy := likely_precision(contract, seen)):
            return remedy
    raised = isinstance(run, Observation) and isinstance(run.outputs, Raised)
    return unmeant_inputs(context, case, outcome, raised=raised)


def _is_of_one_process(run: Any) -> bool:
    """Whether it is a run whose reference can be computed again here: not one of several ranks."""
    return isinstance(run, Observation) and type(run.reference) is Computation
