"""The check "sharding": a custom rule for DTensors, whose parts are computed one by one and put together.

No process group is needed: what a rule says of placements is said of values. Arguments are split as it accepts them,
the operator runs on the parts of each of two processes, and its results, put together as the rule says, must be those
of whole arguments. What is a sum over processes is split into twice the values and their negatives, of which only a
linear function gives the right sum.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.comparison.difference import describe_difference
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.each_case import MOST_FAILURES
from opwright.checks.exceptions import in_words
from opwright.checks.observation import Observation
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import elements
from opwright.errors import ArgumentError
from opwright.results import Coverage, Finding, NotChecked, Origin, Status
from opwright.runtime.register.registration import custom_rule

__all__ = ["CHECK", "NAME", "check"]

NAME = "sharding"
# Processes among which arguments are split.
_PROCESSES = 2
_CASES = 6
# A sum of rounded parts is off by their size, which may be much more than that of the sum.
_ROUNDINGS = 4


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Every placement that the rule accepts, in a few cases. Derived placements are torch's."""
    contract = context.op.contract
    if context.op.parts["sharding"].origin is not Origin.CUSTOM:
        return
    if contract.random or contract.signature.mutated:
        yield NotChecked(NAME, "parts of random results, or of what is written, cannot be compared")
        return
    failed: set[str] = set()
    passed, run_cases = set[str](), 0
    cases = _cases(context)
    for case in cases:
        context.progress(NAME, str(case))
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        accepted = _accepted(context, run)
        if isinstance(accepted, str):
            yield NotChecked(NAME, accepted)
            return
        run_cases += 1
        for outputs, inputs in accepted:
            wrong = _check_placements(context, run, outputs, inputs)
            if isinstance(wrong, NotChecked):
                continue
            shown = f"{_shown(inputs)} → {_shown(outputs)}"
            if wrong is None:
                passed.add(shown)
            elif shown not in failed and len(failed) < MOST_FAILURES:
                failed.add(shown)
                yield context.failed(NAME, str(case), f"{shown}: {wrong}")
        if not accepted and "none" not in failed:
            failed.add("none")
            yield context.failed(NAME, str(case), "the rule accepts no placements, so that no call with DTensors runs")
    if passed and not failed:
        coverage = Coverage(run_cases, len(cases))
        yield Finding(NAME, Status.PASS, message=f"{'; '.join(sorted(passed))}", coverage=coverage)
    elif not failed:
        yield NotChecked(NAME, "no case has dims that can be split as the rule says")


def _cases(context: Context) -> list[Case]:
    """The smallest that run and whose dims can be split, in the first dtype."""

    def can_be_split(case: Case) -> bool:
        sizes = (n for _, size in case.sizes for n in (size if isinstance(size, tuple) else (size,)))
        return case.is_plain and case.layout == "contiguous" and all(n >= _PROCESSES for n in sizes)

    wanted = [c for c in context.cases if c.dtypes == context.cases[0].dtypes and can_be_split(c)]
    wanted.sort(key=lambda case: elements(context.op.contract, case))
    found = list(itertools.islice(filter(context.ran, wanted), _CASES))
    return found or typical_cases(context, _CASES)


def _accepted(context: Context, run: Observation) -> list[tuple[list[Any], list[Any]]] | str:
    """What the rule accepts; or why it cannot be asked. It sees meta tensors in place of DTensor's own descriptions."""
    described = tree.map_tensors(lambda t: t.detach().to("meta"), list(run.arguments))
    rule = custom_rule(context.op.contract, NAME)
    assert rule is not None  # its part is custom
    try:
        found = context.op.contract.signature.call(rule, described)
        return [(list(outputs), list(inputs)) for outputs, inputs in found]
    except Exception as error:  # a rule may read what only DTensor's descriptions have
        return f"the rule raises on tensors without placements: {in_words(error)}"


def _check_placements(
    context: Context, run: Observation, outputs: Sequence[Any], inputs: Sequence[Any]
) -> str | NotChecked | None:
    """What is wrong with one line of a rule."""
    flat = _flat(run.arguments)
    if len(inputs) != len(flat):
        return f"{len(inputs)} placements for {len(flat)} arguments"
    if len(outputs) != len(run.expected):
        return f"{len(outputs)} placements for {len(run.expected)} results"
    if wrong := _contradiction(flat, inputs):
        return wrong
    if unknown := [str(p) for p in outputs if p.is_partial() and p.reduce_op not in _JOINED]:
        return NotChecked(NAME, f"{unknown[0]} is not put together here")
    parts = [_split(value, placement) for value, placement in zip(flat, inputs, strict=True)]
    if any(part is None for part in parts):
        return NotChecked(NAME, "too short to be split")
    results = []
    for process in range(_PROCESSES):
        own = _unflat(run.arguments, iter([part[process] for part in parts if part is not None]))
        try:
            with context.op.only(context.kernel):
                found = context.op.contract.signature.call(context.op.with_saved, own)
        except ArgumentError as error:  # the contract does not take parts of these sizes
            return NotChecked(NAME, error.message)
        except Exception as error:
            return f"on a part of the arguments it raised {in_words(error)}"
        results.append([t.detach().cpu() for t in tree.tensors([found])])
    return _compare(run.reference, outputs, results)


def _compare(reference: Computation, outputs: Sequence[Any], results: Sequence[Sequence[Tensor]]) -> str | None:
    for i, placement in enumerate(outputs):
        expected, parts = reference.rounded[i], [own[i] for own in results]
        for whole in parts if placement.is_replicate() else [_joined(parts, placement)]:
            if whole is None:
                shapes = " and ".join(str(list(part.shape)) for part in parts)
                return f"result {i}: parts of shape {shapes} do not make a {placement}"
            if whole.shape != expected.shape:
                what = "of one process has" if placement.is_replicate() else "has, put together,"
                return f"result {i} {what} shape {list(whole.shape)}, expected {list(expected.shape)}"
            wrong = reference.wrong(i, whole.to(expected.dtype))
            if placement.is_partial() and expected.is_floating_point():
                size = sum(part.abs().double() for part in parts)
                wrong &= (whole.double() - expected).abs() > _ROUNDINGS * torch.finfo(expected.dtype).eps * size
            if wrong.any():
                return f"result {i}: {describe_difference(whole.to(expected.dtype), expected, wrong)}"
    return None


def _contradiction(flat: Sequence[Any], inputs: Sequence[Any]) -> str | None:
    """A placement of what is no tensor, none of a tensor, or one along a dim that a tensor does not have."""
    for number, (value, placement) in enumerate(zip(flat, inputs, strict=True)):
        if isinstance(value, Tensor) != (placement is not None):
            return f"argument {number} is {'a' if isinstance(value, Tensor) else 'no'} tensor and has {placement}"
        if placement is not None and placement.is_shard() and not -value.dim() <= placement.dim < value.dim():
            return f"argument {number} has {value.dim()} dims and {placement}"
    return None


def _split(value: Any, placement: Any) -> list[Any] | None:
    """The part of each process; None if there is not one for each."""
    if placement is None or placement.is_replicate():
        return [value] * _PROCESSES
    if placement.is_shard():
        parts = [part.contiguous() for part in value.chunk(_PROCESSES, placement.dim)]
        return parts if len(parts) == _PROCESSES and all(part.numel() for part in parts) else None
    if not value.is_floating_point() or placement.reduce_op not in ("sum", "avg"):
        return None
    return [2 * value, -value if placement.reduce_op == "sum" else torch.zeros_like(value)]


_JOINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda a, b: a.double() + b.double() if a.is_floating_point() else a + b,
    "avg": lambda a, b: (a.double() + b.double()) / 2,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}


def _joined(parts: Sequence[Tensor], placement: Any) -> Tensor | None:
    """The whole result that parts stand for; None if their shapes do not fit together."""
    if not placement.is_shard():
        same = all(part.shape == parts[0].shape for part in parts)
        return functools.reduce(_JOINED[placement.reduce_op], parts) if same else None
    dims = parts[0].dim()
    if not -dims <= placement.dim < dims:
        return None
    others = {(*part.shape[: placement.dim % dims], *part.shape[placement.dim % dims + 1 :]) for part in parts}
    return torch.cat(list(parts), placement.dim) if len(others) == 1 else None


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """The arguments, with the items of each list of tensors in its place, as torch has placements for them."""
    return [item for value in arguments for item in (value if _is_list_of_tensors(value) else [value])]


def _unflat(arguments: Sequence[Any], items: Iterator[Any]) -> list[Any]:
    return [[next(items) for _ in value] if _is_list_of_tensors(value) else next(items) for value in arguments]


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value)


def _shown(placements: Sequence[Any]) -> str:
    return f"({', '.join('–' if p is None else str(p) for p in placements)})"


CHECK = Check(
    NAME,
    "With a custom rule for DTensors, do the parts make up the whole results?",
    cases="six, the smallest",
    run=check,
    process=Process.KERNEL,
    group="derivatives",
)
