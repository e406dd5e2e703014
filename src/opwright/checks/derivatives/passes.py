"""The forwards and backwards that the check "gradients" runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright.checks.chosen_cases import large_cases, long_cases, typical_cases, with_other_shapes, with_values
from opwright.checks.context import Context
from opwright.checks.derivatives.derivative import names_of_tensors
from opwright.checks.derivatives.kinks import values_with_kinks
from opwright.checks.observation import Observation
from opwright.contract import derive
from opwright.contract.inputs.case import PEAK_TARGETS, Case
from opwright.results import Origin

__all__ = ["Pass", "differentiable_cases", "passes_of", "visible_outputs"]

# Values where a custom gradient may overflow, or lose small differences, and the forward does not.
_OTHER_VALUES = ("confident", PEAK_TARGETS)


@dataclass(frozen=True)
class Pass:
    """A forward and a backward.

    Attributes:
        inputs: which of the differentiable tensors among the arguments need a gradient; all, if it is None.
        names: what those are called.
        output: the only one of the differentiable outputs that gets an incoming gradient; all do, if it is None.
        is_kept: whether another forward follows before the backward, and a second backward after it.
        values: those with kinks in place of the case's own.
    """

    case: Case
    layout: str = "contiguous"
    inputs: frozenset[int] | None = None
    output: int | None = None
    is_kept: bool = False
    values: str = ""
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        inputs = "" if self.inputs is None else f", where only {_listed(self.names)} a gradient"
        output = "" if self.output is None else f", where only output {self.output} is used"
        kept = ", after another forward, and with retain_graph=True" if self.is_kept else ""
        values = f", of {self.values}" if self.values else ""
        return f"with {self.layout} incoming gradient{inputs}{output}{kept}{values}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(map(repr, names))} {'needs' if len(names) == 1 else 'need'}"


def passes_of(context: Context) -> Iterator[Pass]:
    """Cases with every layout of the incoming gradient; the first one also with some inputs tracked, and with each
    output alone; those with a long dim with one layout."""
    chosen = _cases(context)
    for case in chosen:
        for layout in ("contiguous", "transposed", "expanded"):
            yield Pass(case, layout)
    for case in chosen[:1]:
        yield from _partial_passes(context, case)
    for case in differentiable_cases(context, long_cases(context)):
        if case not in chosen:
            yield Pass(case)
    if context.op.parts["autograd"].origin is Origin.CUSTOM:  # a derived one is the reference's, at kinks as elsewhere
        same = [case for case in _typical(context) if chosen and case.dtypes == chosen[0].dtypes]
        for case in same[len(same) // 2 :][:1]:
            alone = _outputs_alone(context, case)
            for values, output in itertools.product(values_with_kinks(context, case), (None, *alone)):
                yield Pass(case, values=values, output=output)
        further = differentiable_cases(context, [*with_other_shapes(context), *with_values(context, _OTHER_VALUES)])
        yield from (Pass(case) for case in further if case not in chosen)


def _partial_passes(context: Context, case: Case) -> Iterator[Pass]:
    """Each input alone, each one left out, and each output alone: a backward may have a branch of its own for these."""
    run = context.observe(case)
    if not isinstance(run, Observation):
        return
    has_gradient = derive.differentiable_arguments(context.op.contract, run.arguments)
    names = list(itertools.compress(names_of_tensors(context, run), has_gradient))
    inputs = frozenset(range(len(names)))
    some = [*(frozenset({i}) for i in inputs), *(inputs - {i} for i in inputs)]
    yield from (
        Pass(case, inputs=each, names=tuple(names[i] for i in sorted(each)))
        for each in dict.fromkeys(some)
        if each and each != inputs
    )
    yield from (Pass(case, output=i) for i in _outputs_alone(context, case))
    yield Pass(case, is_kept=True)


def _outputs_alone(context: Context, case: Case) -> list[int]:
    """The differentiable outputs, if there are several."""
    run = context.observe(case)
    visible = visible_outputs(context, run) if isinstance(run, Observation) else ()
    outputs = [i for i, o in enumerate(visible) if derive.differentiable(o)]
    return outputs if len(outputs) > 1 else []


def differentiable_cases(context: Context, cases: Sequence[Case]) -> list[Case]:
    """The cases that run and have an input to differentiate by."""
    return [case for case in cases if _is_differentiable(context, case)]


def _cases(context: Context) -> list[Case]:
    """The largest and the smallest typical case in each dtype, past a tile in several dims, and strided ones."""
    by_dtype: dict[Any, list[Case]] = {}
    for case in _typical(context):
        by_dtype.setdefault(case.dtypes, []).append(case)
    chosen = [case for listed in by_dtype.values() for case in (listed[0], listed[-1])]
    strided = typical_cases(context, 2, layouts=("sliced", "transposed"))
    return list(dict.fromkeys([*chosen, *differentiable_cases(context, [*large_cases(context, 2), *strided])]))


def _typical(context: Context) -> list[Case]:
    return differentiable_cases(context, typical_cases(context, 48))


def _is_differentiable(context: Context, case: Case) -> bool:
    run = context.observe(case)
    return isinstance(run, Observation) and any(derive.differentiable_arguments(context.op.contract, run.arguments))


def visible_outputs(context: Context, run: Observation) -> tuple[torch.Tensor, ...]:
    """The outputs that a caller gets."""
    contract = context.op.contract.functional
    return () if contract is None else run.expected[: contract.signature.visible]
