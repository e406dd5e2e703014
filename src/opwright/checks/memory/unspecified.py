"""Results that depend on values which a language leaves open, such as what a mask leaves out of a load in Triton.

A simulator examines every access, so the check "memory" has nothing else to do there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opwright.checks.comparison.difference import different_bits
from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Prepared
from opwright.contract.inputs.case import Case
from opwright.results import Finding, NotChecked, Status

__all__ = ["finding"]

# As numbers: zero; NaN or minus one.
_BYTES = (0x00, 0xFF)
_EXAMINED = "the simulator examines every access in all other checks"
_REMEDY = "name what such elements are, tl.load(..., mask=..., other=...), or mask them out of what is made of them"


def finding(context: Context, check: str, cases: Sequence[Case]) -> Finding | NotChecked:
    """What a check finds in some cases, each of which runs with two values in all that is left open."""
    if context.hooks.unspecified(0) is None:
        return NotChecked(check, _EXAMINED)
    ran = 0
    for case in cases:
        context.progress(check, str(case))
        prepared = context.prepare(case)
        if not isinstance(prepared, Prepared) or (results := _with_each_byte(context, prepared)) is None:
            continue
        ran += 1
        different = different_bits(*results)
        if different is None or different_bits(results[0], _results(context, prepared, _BYTES[0])) is not None:
            continue  # equal, or not so for the same bytes either: sums in any order
        message = f"the results depend on elements that a mask leaves out of a load without other=: {different}"
        return Finding(check, Status.WARNING, str(case), message, remedy=_REMEDY)
    if not ran:
        return NotChecked(check, _EXAMINED)
    return Finding(check, Status.PASS, message=f"{ran} cases, with two values in what masks leave out; {_EXAMINED}")


def _with_each_byte(context: Context, prepared: Prepared) -> list[Sequence[torch.Tensor]] | None:
    try:
        return [_results(context, prepared, byte) for byte in _BYTES]
    except Exception:  # the kernel's, which the check "values" reports
        return None


def _results(context: Context, prepared: Prepared, byte: int) -> Sequence[torch.Tensor]:
    block = context.hooks.unspecified(byte)
    assert block is not None  # the caller has asked
    with block:
        return context.results(same_layout(list(prepared.arguments)))
