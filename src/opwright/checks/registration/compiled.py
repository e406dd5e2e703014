"""The check "torch.compile": ``fullgraph=True``, static and dynamic shapes, forward and backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from opwright import tree
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.checks.derivatives.derivative import derivative_of
from opwright.checks.derivatives.gradients import compare_with_reference
from opwright.checks.exceptions import in_words
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation
from opwright.checks.outputs import values
from opwright.contract.inputs.case import Case
from opwright.results import Finding, NotChecked, Status

__all__ = ["NAME", "check"]

NAME = "torch.compile"
_BACKENDS = {"smoke": "aot_eager", "quick": "aot_eager", "full": "inductor"}


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Compile for one size with static shapes, and for two with dynamic shapes."""
    chosen = typical_cases(context, 2)
    if not chosen:
        yield NotChecked(NAME, "no case could be run")
        return
    backend = _BACKENDS[context.level]
    for dynamic in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(_caller(context), fullgraph=True, dynamic=dynamic, backend=backend)
        for case in chosen if dynamic else chosen[:1]:
            context.progress(NAME, str(case))
            wrong = _run(context, compiled, case)
            if wrong is not None:
                yield context.failed(
                    NAME, str(case), f"{'dynamic' if dynamic else 'static'} shapes, {backend}: {wrong}"
                )
                return
    yield Finding(NAME, Status.PASS, message=f"fullgraph, static and dynamic, {backend}")


def _caller(context: Context) -> Any:
    operator, contract = context.op, context.op.contract

    def call(*arguments: Any) -> Any:
        return contract.results(contract.signature.call(operator.with_saved, arguments), arguments)

    return call


def _run(context: Context, compiled: Any, case: Case) -> str | None:
    run = context.observe(case)
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran

    contract = context.op.contract
    # A leaf that requires a gradient cannot be written, and the gradients of two random results differ.
    tracked = not contract.signature.mutated and not contract.random

    arguments = list(same_layout(run.arguments))
    if tracked:
        arguments = derivative_of(context, run).track(arguments)
    with context.op.only(context.kernel):
        try:
            outputs = compiled(*arguments)
            wrong = values.find_error(context, dataclasses.replace(run, outputs=outputs))
            if wrong is not None or not tracked:
                return wrong
            eager = contract.unpack(contract.signature.call(context.op.with_saved, arguments))
            return _compare_gradients(context, run, arguments, outputs, eager)
        except Exception as error:  # a graph break, a failing fake, any compiler error
            return in_words(error)[:1500]


def _compare_gradients(
    context: Context, run: Observation, arguments: Any, compiled: tuple[Any, ...], eager: tuple[Any, ...]
) -> str | None:
    """Compare compiled with eager gradients; the check "gradients" compares eager ones with the reference."""
    tracked = [t for t in tree.tensors(arguments) if t.requires_grad]
    pairs = [(c, e) for c, e in zip(compiled, eager, strict=True) if isinstance(c, torch.Tensor) and e.requires_grad]
    if not tracked or not pairs:
        return None
    if not all(c.requires_grad for c, _ in pairs):
        return "the compiled output carries no gradient, the eager one does"
    ones = [torch.ones_like(e) for _, e in pairs]
    ours = torch.autograd.grad([c for c, _ in pairs], tracked, ones, allow_unused=True)
    theirs = torch.autograd.grad([e for _, e in pairs], tracked, ones, allow_unused=True)
    if all(map(_are_close, ours, theirs)) or _are_right(context, run, arguments, eager, ours):
        return None
    return "the compiled gradient differs from the eager one"


def _are_close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.allclose(a, b, rtol=1e-2, atol=1e-2, equal_nan=True)


def _are_right(context: Context, run: Observation, arguments: Any, eager: tuple[Any, ...], found: Any) -> bool:
    """Whether compiled gradients are the reference's, though eager ones were rounded otherwise, as those of a product
    of many float16 numbers."""
    every = [t.requires_grad for t in tree.tensors(arguments)]
    visible = eager[: context.op.contract.signature.visible]
    ones = [torch.ones_like(e) if e.requires_grad else None for e in visible]
    return compare_with_reference(context, run, every, ones, found) is None
