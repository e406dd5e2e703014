"""The check "special values": NaN, infinities, zeros with a sign, denormal numbers and large integers give what the
reference gives.

What differs is a warning: a kernel may be meant for other inputs. An infinity for which the reference gives a number
is an ordinary input, and the check "values" compares it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from opwright.checks.check import Check
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.observation import Observation
from opwright.checks.outputs import values
from opwright.contract.inputs.case import WIDE
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "special values"
_SPECIAL = ("inf", "nan", "tiny", WIDE)


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """The cases with such values, if the author states none."""
    cases = [case for case in context.cases if case.values in _SPECIAL]
    if not cases or context.op.contract.random:
        return
    for found in check_each_case(context, NAME, _difference, cases=cases):
        if isinstance(found, NotChecked) or found.status is Status.PASS:
            yield found
        elif "values=" in found.case:  # else it is wrong for ordinary values too
            yield dataclasses.replace(
                found, status=Status.WARNING, remedy="treat them as the reference does, or state the values that it is "
                "meant for with ow.values(...)"
            )  # fmt: skip


def _difference(context: Context, run: Observation) -> str | None:
    if values.find_error(context, run) is not None:
        return None  # the check "values" reports it
    found = values.find_error(context, run, at_limits=True)
    return None if found is None else f"with {_WORDS[run.case.values]} among the inputs: {found}"


_WORDS = {
    "": "ordinary values", "inf": "infinities", "nan": "NaN", "tiny": "-0.0 and denormal numbers",
    WIDE: "integers near the largest",
}  # fmt: skip


CHECK = Check(
    NAME,
    "Do NaN, infinities, -0.0, denormal numbers and large integers give what the reference gives?",
    cases="those with such values",
    run=check,
    worst=Status.WARNING,
    group="values",
)
