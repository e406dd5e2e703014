"""The check "DTensor": an operator whose arguments are sharded over several ranks, beside the same with whole ones.

It runs if a number of ranks is asked for. For each dim, the arguments that have it are sharded along it, and the others
replicated. Results and gradients, put together on each rank, are compared with the reference's of whole arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright.checks.check import Check
from opwright.checks.comparison.difference import describe_difference
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.derivatives.derivative import derivative_of
from opwright.checks.derivatives.gradients import expected_gradients, incoming_gradients
from opwright.checks.each_case import MOST_FAILURES
from opwright.checks.exceptions import Raised
from opwright.checks.observation import Observation
from opwright.checks.ranks.answers import RankAnswer, RankError, Ranks
from opwright.checks.ranks.context import is_of_others, what_failed
from opwright.contract.inputs.case import Case
from opwright.contract.inputs.sizes import elements
from opwright.contract.shapes.dims import VariadicDim
from opwright.contract.signature import Argument, Kind
from opwright.results import Coverage, Finding, NotChecked, Origin, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "DTensor"
_CASES = 2


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Each dim in a small case whose sizes can be split evenly and one in which they cannot, in the first dtype."""
    contract, part = context.op.contract, context.op.parts["sharding"]
    if context.ranks == "" or contract.signature.groups:  # no ranks were asked for, or it communicates by itself
        return
    if isinstance(context.ranks, str):
        yield NotChecked(NAME, context.ranks)
        return
    if part.origin is Origin.MISSING:
        yield NotChecked(NAME, part.how)
        return
    if any(a.kind is Kind.TENSOR_LIST for a in contract.signature.arguments) or contract.signature.returns_list:
        yield NotChecked(NAME, "lists of tensors are not sharded here")
        return
    try:
        context.progress("build", f"{context.ranks.size} ranks")
        context.ranks.start()
    except RankError as error:
        yield Finding(NAME, Status.INCONCLUSIVE, message=str(error))
        return
    yield from _each_dim(context, context.ranks, is_custom=part.origin is Origin.CUSTOM)


def _each_dim(context: Context, ranks: Ranks, *, is_custom: bool) -> Iterator[Finding | NotChecked]:
    passed, refused = list[str](), dict[str, str]()
    failures = 0
    runs = [(case, name) for name, _ in context.cases[0].sizes for case in _cases(context, name, ranks.size)]
    for case, name in runs:
        context.progress(NAME, str(case))
        run = context.observe(case)
        assert isinstance(run, Observation)  # as _cases chooses them
        try:
            wrong = _check_dim(context, run, name, ranks)
        except RankError as error:
            wrong = NotChecked(NAME, str(error))
        if isinstance(wrong, Raised) and is_custom and not _is_refusal(wrong):
            wrong = f"it raises {wrong}"
        if isinstance(wrong, Raised):  # torch's placements of what the reference consists of, or the lack of them
            refused.setdefault(name, (str(wrong.args[0]).strip().splitlines() or [""])[0][:200])
        elif isinstance(wrong, NotChecked):
            yield wrong
            break
        elif wrong is None:
            passed.append(name)
        elif failures < MOST_FAILURES:
            failures += 1
            yield context.failed(NAME, str(case), f"sharded along {name!r} on {ranks.size} ranks: {wrong}")
    for name, why in refused.items():
        yield NotChecked(NAME, f"torch does not shard it along {name!r}: {why}")
    if passed and not failures:
        along = ", ".join(dict.fromkeys(passed))
        message = f"along {along} on {ranks.size} ranks, forward and backward"
        yield Finding(NAME, Status.PASS, message=message, coverage=Coverage(len(passed), len(runs)))


def _is_refusal(error: Raised) -> bool:
    """Whether DTensor has no placements, or none of those that a rule accepts."""
    return "sharding strategy" in str(error.args[0])


def _cases(context: Context, name: str, ranks: int) -> list[Case]:
    """The smallest that run in which a dim can be split evenly, and in which it cannot."""

    def length(case: Case) -> int:
        size = dict(case.sizes)[name]
        return (size[0] if size else 0) if isinstance(size, tuple) else size

    def is_usual(case: Case) -> bool:
        sizes = [n for _, size in case.sizes for n in (size if isinstance(size, tuple) else (size,))]
        first = case.dtypes == context.cases[0].dtypes and case.sample is None
        return first and case.is_plain and case.layout == "contiguous" and min(sizes, default=0) >= ranks

    plain = [case for case in context.cases if case.sizes and is_usual(case)]
    plain.sort(key=lambda case: elements(context.op.contract, case))
    found = []
    for evenly in (True, False):
        wanted = (c for c in plain if length(c) > ranks and (length(c) % ranks == 0) is evenly)
        found += list(itertools.islice(filter(context.ran, wanted), 1))
    return found[:_CASES]


def _places(argument: Argument, name: str) -> int | None:
    """The axis along which an argument is sharded."""
    dims = argument.tensor.dims if argument.tensor else ()
    for axis, dim in enumerate(dims):
        if getattr(dim, "name", None) == name:
            return axis if not any(isinstance(d, VariadicDim) for d in dims[:axis]) else axis - len(dims)
    return None


def _check_dim(context: Context, run: Observation, name: str, ranks: Ranks) -> str | NotChecked | Raised | None:
    arguments = context.op.contract.signature.arguments
    axes = [_places(argument, name) for argument in arguments]
    tracked = list(derivative_of(context, run).exists)
    incoming = incoming_gradients(context, run, "contiguous")
    if isinstance(incoming, NotChecked) or not any(tracked):
        incoming, tracked = [None] * len(run.expected), [False] * len(tracked)
    answers = ranks.sharded(run.arguments, axes, tracked, incoming)
    raised = [answer.outputs for answer in answers if isinstance(answer.outputs, Raised)]
    if raised:
        return min(raised, key=is_of_others)
    failed = what_failed(answers)
    if failed:
        return failed
    visible = context.op.contract.signature.visible
    results = len(run.expected[:visible])
    gradients = expected_gradients(context, run, tracked, incoming) if any(tracked) else None
    for rank, answer in enumerate(answers):
        wrong = _compare(run.reference, range(results), answer, 0, "result")
        if wrong is None and gradients is not None:
            wrong = _compare(gradients, range(sum(tracked)), answer, results, "gradient")
        if wrong is not None:
            return f"on rank {rank}, {wrong}"
    return None


def _compare(reference: Computation, numbers: Sequence[int], answer: RankAnswer, first: int, what: str) -> str | None:
    for i in numbers:
        expected = reference.rounded[i]
        got: Any = answer.outputs[first + i]  # type: ignore[index]  # it is no exception
        got = torch.zeros_like(expected) if got is None else got
        if got.shape != expected.shape:
            return f"{what} {i} has, put together, shape {list(got.shape)}, expected {list(expected.shape)}"
        wrong = reference.wrong(i, got.to(expected.dtype))
        if wrong.any():
            return f"{what} {i}: {describe_difference(got, expected, wrong)}"
    return None


CHECK = Check(
    NAME,
    "With `--ranks N`, are results and gradients of arguments that are sharded over N ranks right?",
    cases="two for each dim",
    run=check,
    group="derivatives",
)
