"""The check "threads": calls with different values at the same time, on a GPU each thread on a stream of its own.

Finds scratch memory and settings that calls share: a static buffer of a source file, a tensor in a global.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright.checks.calls.repeated_calls import draws_of, is_right, write_into
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import large_cases, typical_cases
from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Prepared
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import elements
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "threads"
# Calls in each thread: many, as small ones seldom meet, in so many seconds and with so many bytes of results; and at
# least a few.
_MOST_CALLS, _LEAST_CALLS, _SECONDS, _MOST_BYTES = 2000, 24, 0.03, 32 << 20
# Python changes threads this often, so that what is not atomic is interrupted.
_SWITCH_S = 1e-6


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run two draws of a large and of a small case in two threads, many times."""
    if context.kernel not in context.op.kernels or context.op.contract.random:
        return
    if context.runs_slowly:
        yield NotChecked(NAME, "interpreters and simulators run in one thread")
        return
    cases = list(dict.fromkeys([*large_cases(context, 1), *typical_cases(context, 1), *_short(context)]))
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    calls = []
    for case in cases:
        found = _find_error(context, case)
        if isinstance(found, str):
            yield context.failed(NAME, str(case), found)
            return
        calls.append(found)
    if any(calls):
        yield Finding(NAME, Status.PASS, message=f"{sum(calls)} calls in each")


def _short(context: Context) -> list[Case]:
    """A case of few elements, for which kernels may have ways of their own."""
    few = [c for c in typical_cases(context, 20) if elements(context.op.contract, c) <= _FEW]
    return few[:1]


_FEW = 256


def _find_error(context: Context, case: Case) -> str | int:
    """What is wrong with calls in two threads; else how many were made in each."""
    draws = draws_of(context, case, 2)
    context.progress(NAME, str(case))
    alone = [_outputs(context, draw) for draw in draws]
    if any(is_right(context, draw, outputs) is not None for draw, outputs in zip(draws, alone, strict=True)):
        return 0  # the check "values" reports it
    with _switching_often():
        results = _together(context, draws)
    for draw, own, calls in zip(draws, alone, results, strict=True):
        for outputs in calls:
            wrong = None if _are_equal(outputs, own) else is_right(context, draw, outputs)
            if wrong is not None:
                return f"called by two threads at the same time: {wrong}\ncalls must share no memory that they write"
    return min(map(len, results), default=0)


def _are_equal(outputs: tuple[Any, ...] | Raised, others: tuple[Any, ...] | Raised) -> bool:
    if isinstance(outputs, Raised) or isinstance(others, Raised):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(outputs, others, strict=True))


def _outputs(context: Context, draw: Prepared) -> tuple[Any, ...] | Raised:
    try:
        return context.results(same_layout(list(draw.arguments)))
    except Exception as error:  # an exception of the kernel is a finding
        return context.described(error)


def _together(context: Context, draws: Sequence[Prepared]) -> list[list[tuple[Any, ...] | Raised]]:
    """The results of each thread's calls."""
    results: list[list[tuple[Any, ...] | Raised]] = [[] for _ in draws]
    start = threading.Barrier(len(draws))

    def call_many_times(draw: Prepared, found: list[tuple[Any, ...] | Raised]) -> None:
        copies = [same_layout(list(draw.arguments)) for _ in range(_LEAST_CALLS)]
        most = min(_MOST_CALLS, max(_LEAST_CALLS, _MOST_BYTES // max(1, sum(t.nbytes for t in draw.expected))))
        start.wait()
        began = time.monotonic()
        with _own_stream(context):
            for call in range(most):
                if call >= _LEAST_CALLS and time.monotonic() - began > _SECONDS:
                    return
                try:
                    found.append(context.results(write_into(copies[call % _LEAST_CALLS], draw.arguments)))
                except Exception as error:  # an exception of the kernel is a finding
                    found.append(context.described(error))

    threads = [
        threading.Thread(target=call_many_times, args=pair, daemon=True) for pair in zip(draws, results, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@contextlib.contextmanager
def _own_stream(context: Context) -> Iterator[None]:
    if context.device != "cuda":
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@contextlib.contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


CHECK = Check(
    NAME,
    "Is the kernel right in two threads at the same time, on a GPU with a stream each?",
    cases="a large and a small one, 24 to 2000 times in each",
    run=check,
    process=Process.KERNEL,
    group="memory",
)
