"""The table of the checks: one file each, one line each. They run in this order.

Those of other packages run before the ones after which a process may be of no more use.
"""

from __future__ import annotations

from typing import Any

from opwright.checks import contract
from opwright.checks.calls import (
    configurations,
    determinism,
    execution_context,
    grid_limits,
    repeated_calls,
    streams,
    threads,
)
from opwright.checks.check import Check
from opwright.checks.conduct import cheats
from opwright.checks.derivatives import gradients, own_backward, second_derivatives
from opwright.checks.memory import far_rows, large_offsets, memory, peak_memory, protected_memory
from opwright.checks.outputs import (
    afterwards,
    global_state,
    inputs_unchanged,
    metadata,
    own_work,
    properties,
    published_rule,
    special_values,
    values,
)
from opwright.checks.ranks import dtensor, gradients_of_ranks, ranks
from opwright.checks.registration import flops, opcheck, sharding, torch_compile, vmap
from opwright.checks.sanitizer import sanitizer
from opwright.entry_points import Extensible

__all__ = ["CHECKS", "GROUPS"]

_OWN = {
    module.CHECK.name: module.CHECK
    for module in (
        contract,
        memory,  # the first that runs the kernel: a write outside of guarded memory may end the process later
        values,
        published_rule,
        special_values,
        properties,
        metadata,
        inputs_unchanged,
        global_state,
        repeated_calls,
        peak_memory,
        execution_context,
        determinism,
        threads,
        streams,
        configurations,
        grid_limits,
        gradients,
        own_backward,
        second_derivatives,
        ranks,
        gradients_of_ranks,
        vmap,
        sharding,
        dtensor,
        flops,
        opcheck,
        torch_compile,
        afterwards,
        large_offsets,
        sanitizer,
        cheats,
        far_rows,  # may end the use of the GPU
        own_work,  # after it, this process cannot compile functions that it has not compiled before
        protected_memory,  # may end this process
    )
}


def _read(name: str, check: Any) -> tuple[str, Check]:
    if not isinstance(check, Check):
        raise TypeError(f"it must be an opwright.checks.check.Check, got {check!r}")
    return check.name, check


CHECKS = Extensible(_OWN, "opwright.checks", _read, before=afterwards.CHECK.name)


# Checks of one kernel that a cluster may run at the same time, each group in processes of its own. What a check knows
# from an earlier one, or must not come after, is in its group: what is compiled for all cases, in "values"; that writes
# outside of the arguments were found, in "memory". A check without a group ends each work item.
GROUPS: dict[str, frozenset[str]] = {
    label: frozenset(check.name for check in CHECKS.values() if check.group == label)
    for label in ("values", "memory", "derivatives")
}
