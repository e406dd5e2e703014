"""The check "repeated calls": the hundredth call, with other values at the same addresses or the same at others.

Finds results that are kept by address, or by address and some of the values; a counter that makes some call wrong;
buffers that a later call overwrites; memory, files and threads that are never given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from opwright import tree
from opwright.checks.calls import growth
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import large_cases, long_cases, typical_cases
from opwright.checks.comparison.difference import describe_difference
from opwright.checks.context import Context
from opwright.checks.derivatives import gradients
from opwright.checks.derivatives.passes import differentiable_cases
from opwright.checks.exceptions import Raised, in_words
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation, Prepared, SkippedCase
from opwright.checks.outputs import values
from opwright.contract import derive
from opwright.contract.inputs.sizes import elements
from opwright.results import Finding, NotChecked, Origin, Status

__all__ = ["CHECK", "NAME", "check", "draws_of", "is_right", "take_one_element", "write_into"]

NAME = "repeated calls"
# Calls. One in 50 that is wrong is found with a probability of 0.98 in the least number, and of 0.994 in the most, if
# that many end in time. Of a simulated kernel, and of one that takes very long, fewer are made.
_MOST_CALLS, _LEAST_CALLS, _SECONDS = 256, 200, 0.6
_LEAST_OF_SLOW, _MOST_SECONDS = 12, 5.0
_DRAWS = 4
# How many results are kept, to see whether later calls change them; and the bytes of those that are held, to see
# whether later ones get their memory.
_KEPT, _MOST_HELD = 8, 64 << 20
# The bytes of the results of the calls that must not take more memory than as many before them, and of the gradients of
# backwards; the number of calls.
_RESULTS, _GRADIENTS, _LEAST_THAT_LEAK, _MOST_THAT_LEAK = 16 << 20, 8 << 20, 24, 512


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Repeat a small case with several values; a large one, to see its memory."""
    if context.kernel not in context.op.kernels or context.op.contract.random:
        return
    case = next(iter(typical_cases(context, 1)), None)
    if case is None:
        yield NotChecked(NAME, "no case could be run")
        return
    run = context.observe(case)
    assert isinstance(run, Observation)  # typical_cases returns only cases that ran
    if is_right(context, run, run.outputs) is not None:
        return  # the check "values" reports it
    draws = draws_of(context, case, _DRAWS)
    draws += _nearly_the_same(context, *draws[:2])
    wrong, calls = _repeat(context, str(case), draws)
    if wrong is not None:
        yield context.failed(NAME, str(case), wrong)
        return
    found = [*_of_large_results(context), *_of_backwards(context)]
    yield from found
    if not any(one.status is Status.FAIL for one in found):
        yield Finding(NAME, Status.PASS, message=f"{calls} calls")


def draws_of(context: Context, case: Any, count: int) -> list[Prepared]:
    """The arguments of a case with several random values, those in which the kernel gives right results alone."""
    prepared = [context.prepare(case, draw=draw) for draw in range(count)]
    return [p for p in prepared if not isinstance(p, SkippedCase)]


def _nearly_the_same(context: Context, first: Prepared, other: Prepared | None = None) -> list[Prepared]:
    """A draw with one element of each tensor from another draw, and with two of them exchanged: who keeps results by a
    few of the values, or by their sum, takes them for the first."""
    if other is None or first.case.sample is not None:
        return []  # of samples nobody knows which values go together
    varied = [_varied(context, first, other, vary) for vary in (take_one_element, _exchange_two_elements)]
    return [p for p in varied if not isinstance(p, SkippedCase)]


def _varied(
    context: Context, first: Prepared, other: Prepared, vary: Callable[[torch.Tensor, torch.Tensor], None]
) -> Prepared | SkippedCase:
    arguments = same_layout(list(first.arguments))
    for argument, mine, others in zip(context.op.contract.signature.arguments, arguments, other.arguments, strict=True):
        if not argument.goes_together:
            for tensor, source in zip(tree.tensors([mine]), tree.tensors([others]), strict=True):
                if tensor.numel() > 2 and 0 not in tensor.stride():
                    vary(tensor, source)
    return context.prepare_with(first.case, arguments)


def take_one_element(tensor: torch.Tensor, source: torch.Tensor) -> None:
    place = _place(tensor, 2)
    tensor[place] = source[place]


def _exchange_two_elements(tensor: torch.Tensor, source: torch.Tensor) -> None:
    one, two = _place(tensor, 2), _place(tensor, 3)
    tensor[one], tensor[two] = tensor[two].clone(), tensor[one].clone()


def _place(tensor: torch.Tensor, part: int) -> tuple[int, ...]:
    """The indices of the element after a half or a third of them."""
    return tuple(int(i) for i in np.unravel_index(tensor.numel() // part, tensor.shape))


def is_right(context: Context, draw: Prepared, outputs: tuple[Any, ...] | Raised) -> str | None:
    """What is wrong with the results of a draw, or None."""
    run = Observation(draw.case, draw.arguments, draw.compute, draw.arguments, outputs)
    wrong = values.find_error(context, run)
    if wrong is None and not isinstance(outputs, Raised):
        for i, (got, expected) in enumerate(zip(outputs, _dtypes(context, draw), strict=True)):
            if got.dtype != expected:
                return f"output {i} has dtype {got.dtype}, expected {expected}"
    return wrong


def _dtypes(context: Context, draw: Prepared) -> list[torch.dtype]:
    """Those of the results: what the fake promises, as a function may give others on a GPU than the reference does on
    the CPU."""
    run = context.observe(draw.case)
    promised = run.call.promised if isinstance(run, Observation) and run.call is not None else ""
    known = [] if isinstance(promised, str) else [layout.dtype for layout in promised[: len(draw.expected)]]
    return [*known, *(t.dtype for t in draw.expected[len(known) :])]


def write_into(arguments: Any, source: Any) -> Any:
    """Arguments in the memory of some, with the values and numbers of others of the same sizes."""
    targets = iter(tree.tensors(list(arguments)))
    return tree.map_tensors(lambda t: _written(next(targets), t), list(source))


def _written(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if 0 not in target.stride():  # else elements share an address: they keep their values
        target.copy_(source)
    return target


@dataclass
class _Kept:
    """Results of earlier calls, which later ones must not change, nor give their memory to others."""

    results: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = field(default_factory=list)
    # All that are held, and their addresses: memory that is in use is not given out twice.
    held: list[torch.Tensor] = field(default_factory=list)
    addresses: set[int] = field(default_factory=set)

    def add(self, outputs: Sequence[torch.Tensor]) -> str | None:
        """Hold the results of another call. Returns what is wrong with their memory."""
        self.results.append((tuple(outputs), tuple(t.clone() for t in outputs)))
        del self.results[:-_KEPT]
        return self.hold(outputs)

    def hold(self, outputs: Sequence[torch.Tensor]) -> str | None:
        """The same for results too large to be copied."""
        new = {t.untyped_storage().data_ptr(): i for i, t in enumerate(outputs) if t.numel()}
        if reused := new.keys() & self.addresses:
            return f"output {new[reused.pop()]} is in the memory of an earlier result: return a new tensor"
        if sum(t.nbytes for t in (*self.held, *outputs)) < _MOST_HELD:
            self.held += outputs
            self.addresses |= new.keys()
        return None

    def changed(self) -> str | None:
        for outputs, copies in self.results:
            for i, (now, then) in enumerate(zip(outputs, copies, strict=True)):
                differ = (now != then) & ~((now != now) & (then != then))
                if differ.any():
                    found = describe_difference(now.cpu(), then.cpu(), differ.cpu())
                    return f"output {i} of an earlier call was changed by a later one: {found}"
        return None


def _repeat(context: Context, case: str, draws: Sequence[Prepared]) -> tuple[str | None, int]:
    """The first error of many calls, and their number."""
    at_same_address = same_layout(list(draws[0].arguments))
    kept = _Kept()
    # The last right results of each draw: most results are equal to them, which is quickly seen.
    right: dict[int, tuple[torch.Tensor, ...]] = {}
    least = _LEAST_OF_SLOW if context.runs_slowly else _LEAST_CALLS
    started = time.monotonic()
    call = 0
    for call in range(_MOST_CALLS):
        seconds = time.monotonic() - started
        if (call >= least and seconds > _SECONDS) or (call >= _LEAST_OF_SLOW and seconds > _MOST_SECONDS):
            return kept.changed(), call
        context.progress(NAME, case)
        draw = draws[call % len(draws)]
        arguments = same_layout(list(draw.arguments)) if call % 8 == 7 else write_into(at_same_address, draw.arguments)
        try:
            outputs = context.results(arguments)
            context.synchronize()
        except Exception as error:  # an exception of the kernel is a finding
            return f"call {call + 1} raised {in_words(error)}", call
        if not _are_equal(outputs, right.get(call % len(draws), ())):
            wrong = is_right(context, draw, outputs)
            if wrong is not None:
                return f"call {call + 1} of the same sizes: {wrong}{_explanation(context, draws, draw, outputs)}", call
            right[call % len(draws)] = tuple(t.clone() for t in outputs)
        reused = kept.add(outputs[: context.op.contract.signature.output_count(draw.expected)])
        if (changed := kept.changed() if reused or call % _KEPT == _KEPT - 1 else None) is not None:
            return changed, call
        if reused is not None:
            return f"call {call + 1}: {reused}", call
    return kept.changed(), call + 1


def _are_equal(outputs: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return len(outputs) == len(right) and all(map(torch.equal, outputs, right))


def _explanation(context: Context, draws: Sequence[Prepared], draw: Prepared, outputs: tuple[Any, ...]) -> str:
    for other in draws:
        if other is not draw and is_right(context, other, outputs) is None:
            return "\nit is the result of other values that were at the same address: results are kept by address"
    return ""


def _of_large_results(context: Context) -> Iterator[Finding]:
    """Whether many calls of a large case are right, in memory of their own, and take no more and more of it."""
    cases = [] if context.runs_slowly else [*large_cases(context, 1), *long_cases(context)]
    if not cases:
        return
    run = context.observe(max(cases, key=lambda case: elements(context.op.contract, case)))
    assert isinstance(run, Observation)  # these are only cases that ran
    if is_right(context, run, run.outputs) is not None:
        return  # the check "values" reports it
    size = max(1, sum(t.nbytes for t in run.expected))
    wrong, calls = _compare_often(context, run, min(max(_RESULTS // size, _LEAST_THAT_LEAK), _MOST_THAT_LEAK))
    if wrong is not None:
        yield context.failed(NAME, str(run.case), wrong)
        return
    arguments = same_layout(list(run.arguments))
    yield from growth.findings(
        context, NAME, run.case, lambda: context.results(write_into(arguments, run.arguments)), calls, size
    )


def _of_backwards(context: Context) -> Iterator[Finding]:
    """Whether many forwards and backwards of a large case take no more and more memory, where a person has written the
    gradient."""
    if context.runs_slowly or context.op.parts["autograd"].origin is not Origin.CUSTOM:
        return
    cases = differentiable_cases(context, [*large_cases(context, 1), *long_cases(context)])
    if not cases:
        return
    run = context.observe(max(cases, key=lambda case: elements(context.op.contract, case)))
    assert isinstance(run, Observation)  # these are only cases that ran
    forward_and_backward = gradients.backward_of(context, run)
    if forward_and_backward is None:
        return
    size = max(1, sum(t.nbytes for t in tree.tensors(run.arguments) if derive.differentiable(t)))
    calls = min(max(_GRADIENTS // size, _LEAST_THAT_LEAK), _MOST_THAT_LEAK)
    yield from growth.findings(context, NAME, run.case, forward_and_backward, calls, size, what="backwards")


def _compare_often(context: Context, run: Observation, most: int) -> tuple[str | None, int]:
    """What is wrong with one of many calls with the same arguments, in each of which several threads may take part; and
    how many were made."""
    arguments, kept = same_layout(list(run.arguments)), _Kept()
    started = time.monotonic()
    right: tuple[torch.Tensor, ...] = ()
    for call in range(1, most + 1):
        context.progress(NAME, str(run.case))
        outputs = context.results(write_into(arguments, run.arguments))
        context.synchronize()
        if not _are_equal(outputs, right):
            if (wrong := is_right(context, run, outputs)) is not None:
                return f"call {call} with the same arguments: {wrong}", call
            right = tuple(t.clone() for t in outputs)
        reused = kept.hold(outputs[: context.op.contract.signature.output_count(run.expected)])
        if reused is not None:
            return f"call {call}: {reused}", call
        seconds = time.monotonic() - started
        least = _LEAST_THAT_LEAK if seconds < _MOST_SECONDS else _LEAST_OF_SLOW
        if call >= least and seconds > _SECONDS / 4:
            return None, call
    return None, most


CHECK = Check(
    NAME,
    "Are later calls right, with other values at the same addresses, and are memory, threads and files given back?",
    cases="one, up to 256 times; a large one",
    run=check,
    process=Process.KERNEL,
    group="memory",
)
