"""What torch knows of an operator that ``ow.adopt`` was given: whether it has a fake, and a gradient."""

from __future__ import annotations

from collections.abc import Sequence

from opwright.checks.context import Context
from opwright.checks.derivatives.gradients import incoming_gradients
from opwright.checks.kernel_calls import CallsHere, lacks_fake, same_layout
from opwright.checks.observation import Observation
from opwright.internals.compiler import as_fakes
from opwright.results import NotChecked

__all__ = ["has_gradient", "why_not_an_operator", "why_not_traced"]


def why_not_an_operator(context: Context) -> str:
    """Why ``torch.library.opcheck`` does not take it; empty if it does."""
    is_other = context.op.adopted and not context.op.has_fake
    return f"{context.op.adopted} is not an operator of torch: it has no schema and no fake" if is_other else ""


def why_not_traced(context: Context, run: Observation) -> str:
    """Why torch.compile cannot trace an adopted operator, if it has no fake; empty if it has one."""
    if not context.op.adopted:
        return ""
    contract = context.op.contract
    with as_fakes(list(run.arguments), data_dependent=bool(contract.signature.data_dependent)) as fakes:
        try:
            contract.signature.call(context.op.with_saved, fakes)
        except Exception as error:  # a wrong fake may raise anything, which other checks report
            if lacks_fake(context.op, error):
                return f"{context.op.adopted} has no fake, so that torch.compile refuses it"
    return ""


def has_gradient(context: Context, run: Observation, tracked: Sequence[bool]) -> bool:
    """Whether an operator has a gradient; an adopted one may have none."""
    if not context.op.adopted or not any(tracked):
        return True
    incoming = incoming_gradients(context, run, "contiguous")
    if isinstance(incoming, NotChecked):
        return True
    calls = CallsHere(context.op, context.kernel, context.device)
    return not calls.gradients(same_layout(run.arguments), tracked, incoming).is_undefined
