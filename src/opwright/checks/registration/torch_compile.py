"""The check "torch.compile": ``fullgraph=True``, static and dynamic shapes, forward and backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.checks.derivatives.derivative import Doubt, derivative_of
from opwright.checks.derivatives.gradients import compare_with_reference, of_this_operator
from opwright.checks.exceptions import in_words
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation
from opwright.checks.outputs import values
from opwright.checks.registration.adopted import has_gradient, why_not_traced
from opwright.checks.registration.reference_faults import reference_fault, with_remedy
from opwright.contract import derive
from opwright.contract.inputs.case import Case
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "torch.compile"
_SHAPES = ("static", "dynamic")
_BACKENDS = {"smoke": "aot_eager", "quick": "aot_eager", "full": "inductor"}


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Compile for one size with static shapes, and for two with dynamic shapes."""
    chosen = typical_cases(context, 2)
    if not chosen:
        yield NotChecked(NAME, "no case could be run")
        return
    run = context.observe(chosen[0])
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran
    if context.op.has_fake and (why := why_not_traced(context, run)):
        yield NotChecked(NAME, why)
        return
    backend = _BACKENDS[context.request.level]
    if context.is_simulated and context.op.backward_launches_triton:
        backend = "aot_eager"  # Inductor compiles kernels that it finds in a graph for GPUs only
    shapes = []
    for dynamic in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(_caller(context), fullgraph=True, dynamic=dynamic, backend=backend)
        for case in chosen if dynamic else chosen[:1]:
            context.progress(NAME, str(case))
            wrong = _run(context, compiled, case, dynamic=dynamic)
            if isinstance(wrong, NotChecked):
                yield wrong
                break
            if wrong is not None:
                failure = context.failed(NAME, str(case), f"{_SHAPES[dynamic]} shapes, {backend}: {wrong}")
                yield with_remedy(context, failure)
                return
        else:
            shapes.append(_SHAPES[dynamic])
    if shapes:
        yield Finding(NAME, Status.PASS, message=f"fullgraph, {' and '.join(shapes)}, {backend}")


def _caller(context: Context) -> Any:
    operator, contract = context.op, context.op.contract

    def call(*arguments: Any) -> Any:
        return contract.results(contract.signature.call(operator.with_saved, arguments), arguments)

    return call


def _run(context: Context, compiled: Any, case: Case, *, dynamic: bool) -> str | NotChecked | None:
    run = context.observe(case)
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran

    contract = context.op.contract
    # A leaf that requires a gradient cannot be written, and the gradients of two random results differ.
    tracked = not contract.signature.mutated and not contract.random

    arguments = list(same_layout(run.arguments))
    derivative = derivative_of(context, run)
    if tracked and has_gradient(context, run, derivative.exists):
        arguments = derivative.track(arguments)
    with context.op.only(context.kernel):
        try:
            outputs = compiled(*arguments)
            wrong = values.find_error(context, dataclasses.replace(run, outputs=outputs))
            if wrong is not None or not tracked:
                return wrong
            eager = contract.unpack(contract.signature.call(context.op.with_saved, arguments))
            return _compare_gradients(context, run, arguments, outputs, eager)
        except Exception as error:  # a graph break, a failing fake, any compiler error
            needs = [t.requires_grad for t in tree.tensors(arguments)]
            if fault := reference_fault(context, run, needs, error, dynamic=dynamic):
                return NotChecked(NAME, f"{fault} where torch traces it with {_SHAPES[dynamic]} shapes")
            if not context.op.has_fake:  # torch.compile runs such a function in parts
                return NotChecked(NAME, f"{context.op.adopted} is not one graph: {in_words(error).splitlines()[0]}")
            return in_words(error)[:1500]


def _compare_gradients(
    context: Context, run: Observation, arguments: Any, compiled: tuple[Any, ...], eager: tuple[Any, ...]
) -> str | None:
    """Compare compiled with eager gradients; the check "gradients" compares eager ones with the reference."""
    tracked = [t for t in tree.tensors(arguments) if t.requires_grad]
    pairs = [(c, e) for c, e in zip(compiled, eager, strict=True) if isinstance(c, torch.Tensor) and _has_gradient(e)]
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


def _has_gradient(output: torch.Tensor) -> bool:
    """Whether a gradient may flow to an output. (To floats of a byte, none may.)"""
    return output.requires_grad and derive.differentiable(output)


def _are_close(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.allclose(a, b, rtol=1e-2, atol=1e-2, equal_nan=True)


def _are_right(context: Context, run: Observation, arguments: Any, eager: tuple[Any, ...], found: Any) -> bool:
    """Whether compiled gradients are the reference's, though eager ones were rounded otherwise, as those of a product
    of many float16 numbers."""
    every = [t.requires_grad for t in tree.tensors(arguments)]
    visible = eager[: context.op.contract.signature.visible]
    ones = [torch.ones_like(e) if _has_gradient(e) else None for e in visible]
    wrong = compare_with_reference(context, run, every, ones, found, of_this_operator(context))
    return wrong is None or isinstance(wrong, Doubt)


CHECK = Check(
    NAME,
    "Is the operator right with `fullgraph=True`, static and dynamic shapes, forward and backward?",
    cases="two sizes",
    run=check,
    process=Process.KERNEL,
    group="derivatives",
)
