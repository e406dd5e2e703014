"""The check "own work": whether a kernel computes itself what it is named for.

A "Triton kernel" whose launcher calls torch's own function, or the reference, passes every comparison and every
benchmark as what it is not. Results are right, so this is a warning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation, to_cpu
from opwright.checks.outputs.torchs_share import share_in_words
from opwright.internals.compiler import DispatchMode
from opwright.languages import title_of
from opwright.results import Finding, NotChecked, Status

__all__ = ["CHECK", "MOVES", "NAME", "check"]

NAME = "own work"
# Functions that move, allocate or describe, and compute nothing.
MOVES = frozenset(
    {"alias", "arange", "cat", "clone", "copy", "copy_", "detach", "empty", "empty_like", "empty_strided", "equal",
     "fill", "fill_", "full", "full_like", "is_pinned", "lift_fresh", "new_empty", "new_empty_strided", "new_full",
     "new_ones", "new_zeros", "ones", "ones_like", "record_stream", "resize_", "scalar_tensor", "set_", "stack",
     "zero_", "zeros", "zeros_like", "_local_scalar_dense", "_to_copy"}
)  # fmt: skip


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Watch one call of a typical case: torch's functions, and the reference's code."""
    if context.kernel not in context.op.kernels or context.hooks.is_compiled_function:
        return
    if not (cases := typical_cases(context, 1)):
        return
    run = context.observe(cases[0])
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran
    context.progress(NAME, str(run.case))
    seen = _Seen()
    calls_reference = _calls(
        context.op.contract.function.__code__,
        lambda: _watch(seen, lambda: context.run_kernel(same_layout(list(run.arguments)))),
    )
    must_compute = context.hooks.computes_itself or context.op.contract.own_inputs.expects_kernel
    found = [
        "it calls the reference" if calls_reference else "",
        _torchs_work(context, run, seen) if must_compute else "",
        _work_on_cpu(seen) if context.device == "cuda" else "",
    ]
    for what in filter(None, found):
        yield Finding(
            NAME, Status.WARNING, str(run.case), what,
            remedy=f"compute it in {title_of(context.hooks.spec.backend)}, or attach this function with @op.baseline",
        )  # fmt: skip
    if not any(found):
        words = _part_of_torch(context, seen) or "it calls neither the reference nor torch's functions for it"
        yield Finding(NAME, Status.PASS, message=words)


@dataclass
class _Seen:
    """Torch's functions that computed something: the largest number of elements that each got, by device."""

    elements: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, name: str, arguments: Sequence[torch.Tensor]) -> None:
        # Torch computes with a number on the CPU, a tensor without dims, where the other arguments are.
        device = next((t.device.type for t in arguments if t.device.type != "cpu"), "cpu")
        count = max(t.numel() for t in arguments)
        self.elements[name, device] = max(count, self.elements.get((name, device), 0))

    def by_name(self) -> Mapping[str, int]:
        return {name: count for (name, _), count in self.elements.items()}


class _Recording(DispatchMode):  # type: ignore[misc]  # found at run time
    def __init__(self, seen: _Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Without autograd, a mode gets ``softmax``; with it, the ``_softmax`` that this consists of.
        with self:
            returned = function.decompose(*args, **(kwargs or {}))
        if returned is not NotImplemented:
            return returned
        name = function.overloadpacket.__name__
        tensors = tree.tensors([list(args), list((kwargs or {}).values())])
        if function.namespace == "aten" and tensors and name not in MOVES and not function.is_view:
            self._seen.add(name.rstrip("_"), tensors)
        return function(*args, **(kwargs or {}))


def _watch(seen: _Seen, call: Callable[[], Any]) -> None:
    with _Recording(seen):
        try:
            call()
        except Exception:  # the check "values" reports it
            return


def _calls(code: CodeType, call: Callable[[], Any]) -> bool:
    """Whether a function in Python runs during a call."""
    found = False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal found
        found = found or (event == "call" and frame.f_code is code)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def _torchs_work(context: Context, run: Observation, seen: _Seen) -> str:
    """All of the reference's functions, if torch computes them on as many elements within the kernel."""
    expected = _Seen()
    _watch(expected, lambda: context.op.contract.reference(to_cpu(list(run.arguments))))
    used = seen.by_name()
    if expected.elements and all(used.get(name, 0) >= count for name, count in expected.by_name().items()):
        share = _share(context)
        words = f"torch computes it within the kernel: {', '.join(f'aten::{name}' for name in expected.by_name())}"
        return f"{words}\nthat is {share}" if share else words
    return ""


def _part_of_torch(context: Context, seen: _Seen) -> str:
    """What torch computes of a candidate that must bring a kernel: a part is allowed, and may be most of its time."""
    if not context.op.contract.own_inputs.expects_kernel or not seen.elements:
        return ""
    names = ", ".join(f"aten::{name}" for name in seen.by_name())
    return f"torch computes a part of it: {_share(context) or names}"


def _share(context: Context) -> str:
    """How much of a candidate's time torch takes, and in which case; "" if that is not known.

    Only of candidates: a finding that has a time in it differs from run to run. A simulator's time says nothing.
    """
    if context.device not in ("cpu", "cuda") or not context.op.contract.own_inputs.expects_kernel:
        return ""
    own = [case for case in context.cases if case.sample is not None]
    case = next((c for c in (*own, *typical_cases(context, 1)) if context.ran(c)), None)
    run = context.observe(case) if case is not None else None
    if not isinstance(run, Observation):
        return ""
    arguments = same_layout(list(run.arguments))
    share = share_in_words(lambda: context.run_kernel(arguments), context.device, moves=MOVES)
    return f"{share} for {case}" if share else ""


def _work_on_cpu(seen: _Seen) -> str:
    slow = [name for (name, device), count in seen.elements.items() if device == "cpu" and count > 1]
    return f"it computes on the CPU: {', '.join(f'aten::{name}' for name in slow)}" if slow else ""


CHECK = Check(
    NAME,
    "Does the kernel compute the result itself, and not through the reference, torch's functions or the CPU?",
    cases="one",
    run=check,
    process=Process.KERNEL,
    worst=Status.WARNING,
    group="derivatives",
)
