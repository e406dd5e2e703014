"""The check "vmap": a custom rule for batches, against the reference on each example."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.check import Check, Process
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.comparison.tolerance import Computation
from opwright.checks.context import Context
from opwright.checks.each_case import kind_of
from opwright.checks.exceptions import in_words
from opwright.checks.observation import Observation, to_cpu
from opwright.checks.outputs.errors_in_words import describe_errors
from opwright.results import Coverage, Finding, NotChecked, Origin, Status

__all__ = ["CHECK", "NAME", "check"]

NAME = "vmap"
# Examples in a batch.
_BATCH = 3


def check(context: Context) -> Iterator[Finding | NotChecked]:
    """Batches of all tensors, of each alone, and along the last axis, in a few cases. Derived rules are torch's."""
    contract = context.op.contract
    if context.op.parts["vmap"].origin is not Origin.CUSTOM or contract.random or contract.signature.mutated:
        return
    cases = typical_cases(context, 3)
    failed: set[str] = set()
    for case in cases:
        run = context.observe(case)
        assert isinstance(run, Observation)  # typical_cases returns only cases that ran
        examples = [run.arguments, *(_other_values(run.arguments, i) for i in range(1, _BATCH))]
        for dims in _ways_to_batch(context, run.arguments):
            context.progress(NAME, str(case))
            wrong = _check_batch(context, examples, dims)
            if wrong is not None and kind_of(wrong) not in failed:
                failed.add(kind_of(wrong))
                yield context.failed(NAME, str(case), f"in_dims={_shown(dims)}: {wrong}")
    if cases and not failed:
        yield Finding(
            NAME, Status.PASS, message="batches of all tensors and of each", coverage=Coverage(len(cases), len(cases))
        )


def _other_values(arguments: Sequence[Any], example: int) -> list[Any]:
    """Arguments of another example: the same values in another order, which no stated values forbid."""
    return tree.map_tensors(lambda t: t.flatten().roll(example).view(t.shape), list(arguments))  # type: ignore[no-any-return]


def _ways_to_batch(context: Context, arguments: Sequence[Any]) -> list[tuple[int | None, ...]]:
    """The batch dim of each argument; None for what every example shares."""
    batched = [isinstance(value, torch.Tensor) for value in arguments]
    first: list[tuple[int | None, ...]] = [tuple(0 if b else None for b in batched)]
    last = tuple(-1 if b else None for b in batched)
    alone = [tuple(0 if i == j else None for j in range(len(batched))) for i, b in enumerate(batched) if b]
    return list(dict.fromkeys([*first, last, *(alone if sum(batched) > 1 else [])]))


def _check_batch(context: Context, examples: Sequence[Sequence[Any]], dims: tuple[int | None, ...]) -> str | None:
    contract = context.op.contract
    together = [
        torch.stack([example[i] for example in examples], dim) if dim is not None else examples[0][i]
        for i, dim in enumerate(dims)
    ]

    def call(*values: Any) -> Any:
        return contract.unpack(contract.visible(contract.signature.call(context.op.with_saved, values)))

    try:
        with context.op.only(context.kernel):
            got = torch.vmap(call, in_dims=dims)(*together)
    except Exception as error:  # a custom rule may raise anything
        return f"it raised {in_words(error)}"
    for number, example in enumerate(examples):
        own = [example[i] if dim is not None else examples[0][i] for i, dim in enumerate(dims)]
        largest = max(t.numel() for t in tree.tensors(own))
        run = context.as_reference(contract.reference)
        reference = Computation(run, to_cpu(own), functools.partial(_terms, largest), in_tf32=context.op.contract.tf32)
        for i, output in enumerate(got):
            actual, expected = output[number].detach().cpu(), reference.rounded[i]
            if actual.shape != expected.shape:
                return f"output {i} of an example has shape {list(actual.shape)}, expected {list(expected.shape)}"
            wrong = reference.wrong(i, actual)
            if wrong.any():
                return f"example {number} of output {i}: {describe_errors(reference, i, actual, wrong)}"
    return None


def _terms(largest: int, i: int) -> int:
    """The number of operations behind an element of any output: at most one for each element of an argument."""
    return largest


def _shown(dims: Sequence[int | None]) -> str:
    return f"({', '.join(map(str, dims))})"


CHECK = Check(
    NAME,
    "With a custom batching rule, is each example of a batch right?",
    cases="three",
    run=check,
    process=Process.KERNEL,
    group="derivatives",
)
