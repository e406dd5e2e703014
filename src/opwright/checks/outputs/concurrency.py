"""The check "two threads": calls with different values at the same time, on a GPU each thread on a stream of its own.

Finds scratch memory and settings that calls share: a static buffer of a source file, a tensor in a global.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright.checks.context import Context
from opwright.checks.exceptions import Raised
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Prepared
from opwright.checks.outputs.repeated_calls import draws_of, is_right
from opwright.results import Finding, NotChecked, Status

__all__ = ["NAME", "check"]

NAME = "two threads"
_CALLS = 24
# Python changes threads this often, so that what is not atomic is interrupted.
_SWITCH_S = 1e-6


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Run two draws of the largest typical case in two threads, many times."""
    if context.kernel not in context.op.kernels or context.op.contract.random:
        return
    if context.runs_slowly:
        yield NotChecked(NAME, "interpreters and simulators run in one thread")
        return
    case = next(iter([*context.large_cases(1), *context.typical_cases(1)]), None)
    if case is None:
        yield NotChecked(NAME, "no case could be run")
        return
    draws = draws_of(context, case, 2)
    context.progress(NAME, str(case))
    if any(is_right(context, draw, _outputs(context, draw)) is not None for draw in draws):
        return  # the check "values" reports it
    with _switching_often():
        results = _together(context, draws)
    for draw, calls in zip(draws, results, strict=True):
        for outputs in calls:
            wrong = is_right(context, draw, outputs)
            if wrong is not None:
                advice = "calls must share no memory that they write"
                yield context.failed(NAME, str(case), f"called by two threads at the same time: {wrong}\n{advice}")
                return
    yield Finding(NAME, Status.PASS, message=f"{_CALLS} calls in each")


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
        arguments = [same_layout(list(draw.arguments)) for _ in range(_CALLS)]
        start.wait()
        with _own_stream(context):
            for copies in arguments:
                try:
                    found.append(context.results(copies))
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
