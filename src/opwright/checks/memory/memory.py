"""The check "memory": writes outside of tensors, and results that depend on memory that was never written.

Each case runs in guarded memory (``checks/memory/guarded.py``) twice, with other bits in all that a kernel must not
read. What it writes there is found, and its results must be equal in every bit if they are so for equal bits. It is the
first check that runs the kernel: where memory is not guarded, such a write may end the process later, in another call.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.comparison.difference import different_bits
from opwright.checks.context import Context
from opwright.checks.each_case import check_each_case
from opwright.checks.exceptions import in_words
from opwright.checks.kernel_calls import same_layout
from opwright.checks.memory import unspecified
from opwright.checks.memory.guarded import BITS, GuardedMemory
from opwright.checks.observation import Prepared, SkippedCase
from opwright.checks.settings import state
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.layouts import FARS
from opwright.contract.inputs.sizes import elements
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check", "some_of_each"]

NAME = "memory"
# The number of elements of the largest case: every byte is compared several times.
_MOST, _MOST_WHERE_SLOW = 1 << 16, 1 << 11
# As often results that differ are computed again, before other memory is said to be why. Where it is one element that
# may be either of two at any time, they repeat once in four times by chance.
_REPEATS = 6
# How long to wait for results that arrive after the call has returned; and for a thread of Python that it has started.
_LATE_S, _THREAD_S = 0.05, 1.0


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run some cases of every layout and dtype in guarded memory."""
    if context.kernel not in context.op.kernels:
        return  # a reference in Python has no addresses
    if context.is_simulated:
        yield unspecified.finding(context, NAME, some_of_each(context))
        return
    cases = some_of_each(context)
    find_error = functools.partial(_find_error, waits_at=cases[0] if cases else None)
    before = state.settings(context.device)
    yield from check_each_case(context, NAME, find_error, cases=cases, runs=False)
    yield from _left_by_early_calls(context, before, cases)


def _left_by_early_calls(context: Context, before: Mapping[str, Any], cases: Sequence[Case]) -> Iterator[Finding]:
    """Set back what the kernel has changed, so that the check "global state" sees whether later calls change it. What
    they do not, as it is done once, is found here."""
    early = state.changes(before, context.device)
    state.restore(before, early, context.device)
    # Checks draw values, too.
    lasting = {name: how for name, how in early.items() if name not in state.RANDOM_STATES | state.SET_UP_ONCE}
    for case in cases:
        if lasting and isinstance(prepared := context.prepare(case), Prepared):
            again = _changed_by_a_call(context, prepared)
            lasting = {name: how for name, how in lasting.items() if name not in again}
    for name, how in lasting.items():
        yield Finding(
            NAME, Status.WARNING, str(cases[0]), f"the first calls change {name}{f': {how}' if how else ''}",
            remedy="leave it alone, or set it back, also after an exception",
        )  # fmt: skip


def _changed_by_a_call(context: Context, prepared: Prepared) -> dict[str, str]:
    before = state.settings(context.device)
    with contextlib.suppress(Exception):  # the kernel's, which other checks report
        context.run_kernel(same_layout(prepared.arguments))
    changed = state.changes(before, context.device)
    state.restore(before, changed, context.device)
    return changed


def some_of_each(context: Context) -> list[Case]:
    """For each layout a small and a larger case of the first dtype; two for each other dtype; one for each branch.
    Where kernels run slowly, only the small ones of the first dtype."""
    most = _MOST_WHERE_SLOW if context.runs_slowly else _MOST
    groups: dict[Any, list[Case]] = {}
    for case in context.cases:
        if case.is_plain and case.layout not in FARS and 0 < elements(context.op.contract, case) <= most:
            layout = case.layout if case.dtypes == context.cases[0].dtypes else ""
            groups.setdefault((case.dtypes, layout, case.branch), []).append(case)
    chosen: list[Case] = []
    for group in groups.values():
        by_size = sorted(group, key=lambda c: elements(context.op.contract, c))
        small, large = by_size[len(by_size) // 4], by_size[-1]
        chosen += [small] if context.runs_slowly else [large] if any(group[0].branch) else dict.fromkeys((small, large))
    return [c for c in chosen if c.dtypes == chosen[0].dtypes] if context.runs_slowly else chosen


def _find_error(context: Context, case: Prepared, waits_at: Case | None) -> str | SkippedCase | None:
    """What is wrong in one case; late results are awaited in one, as that takes long."""
    if elements(context.op.contract, case.case) == 0:
        return None  # no address lies inside of it
    wait_s = _LATE_S if case.case == waits_at else 0.0
    runs = [_run_guarded(context, case, BITS[0], wait_s), _run_guarded(context, case, BITS[1])]
    results = [run for run in runs if isinstance(run, tuple)]
    if len(results) < len(runs):
        return next(run for run in runs if isinstance(run, str | SkippedCase))
    different = different_bits(*results)
    if different is None or context.op.contract.random:
        return None
    for _ in range(_REPEATS):
        again = [_run_guarded(context, case, bits) for bits in BITS]
        if not all(_are_equal(a, b) for a, b in zip(results, again, strict=True)):
            return None  # they differ for the same bits as well: sums in any order, or any of some equal values
    return f"the results depend on memory that was never written, or does not belong to an argument: {different}"


def _wait_for_late_results(wait_s: float, others: Sequence[threading.Thread]) -> None:
    """Wait so long, and until the threads have ended that are none of these."""
    time.sleep(wait_s)
    end = time.monotonic() + _THREAD_S
    while time.monotonic() < end and any(thread not in others for thread in threading.enumerate()):
        time.sleep(0.01)


def _run_guarded(context: Context, case: Prepared, bits: int, wait_s: float = 0) -> tuple[Any, ...] | str | SkippedCase:
    """The results in guarded memory; or what is wrong with them. A kernel may not take such memory, as ``resize_`` does
    not."""
    memory = GuardedMemory(context.device, bits)
    names = [a.name for a in context.op.contract.signature.arguments]
    arguments = memory.arguments(names, case.arguments)
    others = threading.enumerate()
    try:
        with memory.new_memory() if _calls_torch(context) else contextlib.nullcontext():
            outputs = context.run_kernel(arguments)
        context.synchronize()
    except Exception as error:
        return SkippedCase(f"in guarded memory, the kernel raises {in_words(error)}")
    at_return = tree.map_tensors(torch.clone, list(arguments)) if wait_s else arguments
    soon = [t.clone() for t in outputs if isinstance(t, torch.Tensor)]
    if len(soon) != len(outputs):
        return SkippedCase("the kernel returns something else than tensors")
    if (outside := memory.written(outputs)) is not None:
        return outside
    if wait_s:
        _wait_for_late_results(wait_s, others)
    for name, then, now in zip(names, at_return, arguments, strict=True):
        if different_bits(tree.tensors([then]), tree.tensors([now])) is not None:
            return f"argument {name!r} was written after the call had returned"
    late = different_bits(soon, outputs)
    return f"results arrive after the call has returned: {late}" if late is not None else tuple(outputs)


def _calls_torch(context: Context) -> bool:
    """Whether its allocations can be seen: functions that torch compiles cannot be called while they are watched."""
    return context.op.kernels[context.kernel].backend not in ("numpy", "max")


def _are_equal(a: Any, b: Any) -> bool:
    return isinstance(a, tuple) and isinstance(b, tuple) and different_bits(a, b) is None


CHECK = Check(
    NAME,
    "Does the kernel write outside its tensors, depend on unwritten memory, or write after the call?",
    cases="a small and a larger one of each layout, some in each dtype",
    run=check,
    process=Process.KERNEL,
    group="memory",
)
