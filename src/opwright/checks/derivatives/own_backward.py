"""The check "own backward": the backward of a kernel that is an ``autograd.Function``.

Calls of an operator use the gradient that is registered with it, and never one inside a kernel. So such a backward is
compared with the reference's VJP by itself, and a warning says that it has to be registered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.checks.derivatives import gradients
from opwright.checks.derivatives.passes import differentiable_cases
from opwright.checks.kernel_calls import gradients_of, same_layout
from opwright.checks.observation import Observation
from opwright.contract import derive
from opwright.results import Finding, NotChecked, Origin, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "own backward"
# The error of an operator of ``torch.library.custom_op`` without a backward, which has a node all the same.
_NO_FORMULA = "no autograd formula was registered"


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """A few typical cases, with contiguous and expanded incoming gradients."""
    kernel = context.op.kernels.get(context.kernel)
    contract = context.op.contract
    if kernel is None or not kernel.runs_python or context.op.adopted or contract.signature.mutated or contract.random:
        return
    found = ""
    passed = 0
    unchecked: dict[str, NotChecked] = {}
    for case in differentiable_cases(context, typical_cases(context, 8))[:3]:
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        for layout in ("contiguous", "expanded"):
            context.progress(NAME, str(case))
            incoming = gradients.incoming_gradients(context, run, layout)
            if isinstance(incoming, NotChecked):
                return
            inputs = derive.leaves(contract, same_layout(run.arguments))
            try:
                with torch.enable_grad():
                    outputs = contract.unpack(kernel.load()(*inputs))
            except Exception:  # it may not be made for tensors that require gradients
                return
            found = found or _function_of(outputs)
            if not found:
                return
            tracked = [t.requires_grad for t in tree.tensors(inputs)]
            got = gradients_of(inputs, outputs, incoming, context.synchronize)
            if isinstance(got.of_inputs, str) and _NO_FORMULA in got.of_inputs:
                return
            wrong = gradients.compare(context, run, tracked, incoming, got)
            if isinstance(wrong, NotChecked):
                unchecked.setdefault(wrong.reason, NotChecked(NAME, wrong.reason))
                continue
            if wrong is not None:
                yield context.failed(NAME, str(case), f"the backward of {found}, {layout} incoming gradient: {wrong}")
                return
            passed += 1
    yield from unchecked.values()
    if passed and context.op.parts["autograd"].origin is not Origin.CUSTOM:
        yield Finding(
            NAME,
            Status.WARNING,
            message=f"the kernel has a backward of its own ({found}), which calls of the operator do not use",
            remedy="register it with op.register_autograd, and attach the forward alone",
        )


def _function_of(outputs: Any) -> str:
    """The name of an ``autograd.Function`` behind some results; empty if there is none."""
    waiting = [t.grad_fn for t in tree.tensors(list(outputs)) if t.grad_fn is not None]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        if function is not None:
            return str(function.__name__)
        waiting += [following for following, _ in node.next_functions if following is not None]
    return ""


CHECK = Check(
    NAME,
    "Is the backward of a kernel that is an `autograd.Function` right?",
    cases="three",
    run=check,
    process=Process.KERNEL,
    group="derivatives",
)
