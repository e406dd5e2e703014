"""The check "determinism": of an operator that is declared so, the same arguments give the same bits in every call."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from opwright.checks.calls.blocks import beside_other_work, without_deterministic_algorithms
from opwright.checks.calls.repeated_calls import is_right, write_into
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import large_cases, long_cases, typical_cases
from opwright.checks.comparison.difference import different_bits
from opwright.checks.context import Context
from opwright.checks.derivatives import gradients
from opwright.checks.derivatives.passes import differentiable_cases
from opwright.checks.exceptions import in_words
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation
from opwright.contract.inputs.case import Case
from opwright.results import Coverage, Finding, NotChecked, Origin, Status
from opwright.runtime.kernel import under_check
from opwright.target import Engine

__all__ = ["CHECK", "NAME", "check"]

NAME = "determinism"
# Calls beside nothing and beside other work: at least and at most, and after how many seconds there are no more.
_LEAST_CALLS, _MOST_CALLS, _SECONDS = 8, 100, 0.2
# Of a kernel in a simulator, one call for each of several orders of its programs.
_ORDERS = (2, 3, 4, 5)
_REMEDY = (
    "floating-point sums depend on their order, which atomics and locks leave to chance: write partial results, and "
    "add these in a fixed order; or leave deterministic=True out"
)
_OF_CONFIGURATION = (
    "which configuration an autotuner chooses is left to chance: keep those that add in the same order; or leave "
    "deterministic=True out"
)
_OF_GRADIENT = "a derived gradient is as deterministic as torch's own functions: register another one"
# Copies of the arguments that calls take in turn.
_PLACES = 8


@dataclass(frozen=True)
class _Way:
    """How the same call is made: in words, and as a block that can be entered once."""

    words: str
    block: contextlib.AbstractContextManager[None]
    most_calls: int = 1
    remedy: str = _REMEDY


# What gives the results that are compared.
_Run = Callable[[], Sequence[torch.Tensor]]


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Repeat a typical, a large and each long case, forward and backward, in several ways."""
    if not context.op.contract.deterministic:
        return
    if context.target.engine is Engine.INTERPRETER:
        yield NotChecked(NAME, "Triton's interpreter runs programs in one order")
        return
    cases = list(dict.fromkeys([*typical_cases(context, 1), *large_cases(context, 1), *_long_cases(context)]))
    if not cases:
        yield NotChecked(NAME, "no case could be run")
        return
    calls = 0
    for case in cases:
        for what, run in _runs(context, case):
            found = _repeat(context, case, run)
            if isinstance(found, str):
                yield context.failed(NAME, str(case), what + found)
                return
            calls += found
    if calls:
        yield Finding(NAME, Status.PASS, message=f"{calls} calls", coverage=Coverage(len(cases), len(cases)))


def _long_cases(context: Context) -> list[Case]:
    return [] if context.runs_slowly else long_cases(context)


def _runs(context: Context, case: Case) -> Iterator[tuple[str, _Run]]:
    """A forward of the case, and a backward if it has one."""
    run = context.observe(case)
    assert isinstance(run, Observation)  # these are only cases that ran
    if context.op.contract.random or is_right(context, run, run.outputs) is None:  # else the check "values" reports it
        places = itertools.cycle([same_layout(list(run.arguments)) for _ in range(_PLACES)])
        yield "", functools.partial(_forward, context, run, places)
    if not differentiable_cases(context, [case]):
        return
    backward = gradients.backward_of(context, run)
    if backward is not None:
        is_derived = context.op.parts["autograd"].origin is Origin.DERIVED
        yield f"gradients{f' ({_OF_GRADIENT})' if is_derived else ''}: ", functools.partial(_backward, backward)


def _forward(context: Context, run: Observation, places: Iterator[Any]) -> Sequence[torch.Tensor]:
    outputs = context.results(write_into(next(places), run.arguments))
    context.synchronize()
    return outputs


def _backward(run: Callable[[], Any]) -> Sequence[torch.Tensor]:
    found = run().of_inputs
    assert not isinstance(found, str), found  # it has run before
    return [t for t in found if t is not None]


def _repeat(context: Context, case: Case, run: _Run) -> str | int:
    """How the bits of one of many calls differ from the first's; else how many calls were made."""
    calls = 0
    with without_deterministic_algorithms():
        try:
            first = [t.clone() for t in run()]
        except Exception as error:  # an exception of the kernel is a finding
            return f"without deterministic algorithms, a call raised {in_words(error)}"
        for way in _ways(context):
            began = time.monotonic()
            with way.block:
                for number in range(way.most_calls):
                    if number >= _LEAST_CALLS and time.monotonic() - began > _SECONDS:
                        break
                    context.progress(NAME, str(case))
                    calls += 1
                    _draw_numbers()
                    wrong = _difference(first, run)
                    if wrong is not None:
                        return f"call {calls} with the same arguments{way.words} {wrong}\n{way.remedy}"
    return calls


def _draw_numbers() -> None:
    """Let the next call find other random states, which other work of a program would have changed."""
    random.random()
    np.random.random()
    torch.rand(1)


def _difference(first: Sequence[torch.Tensor], run: _Run) -> str | None:
    try:
        different = different_bits(first, run())
    except Exception as error:  # an exception of the kernel is a finding
        return f"raised {in_words(error)}"
    return None if different is None else f"gave other bits: {different}"


def _ways(context: Context) -> Iterator[_Way]:
    if context.runs_slowly:
        yield from (_Way(", its programs in another order,", under_check(order)) for order in _ORDERS)
    else:
        yield _Way("", contextlib.nullcontext(), _MOST_CALLS)
        yield _Way(", beside other work,", beside_other_work(context.device), _MOST_CALLS)
    for name, block in context.hooks.configurations() if context.kernel in context.op.kernels else ():
        yield _Way(f", with the configuration {name},", block, remedy=_OF_CONFIGURATION)


CHECK = Check(
    NAME,
    "Does an operator that is declared deterministic give the same bits in every call, forward and backward?",
    cases="a typical one, a large one, each dim long",
    run=check,
    process=Process.KERNEL,
    group="memory",
)
