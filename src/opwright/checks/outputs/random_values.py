"""The values of operators that are declared random: their distribution against the reference's, and repeatability."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.comparison.statistics import first_difference
from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation, to_cpu
from opwright.contract.inputs.case import MOST_LISTS, Case, longest_of
from opwright.contract.inputs.sizes import elements
from opwright.contract.signature import Return

__all__ = ["difference_of_distributions", "not_repeatable", "sampled_cases"]

# Results of one side that are compared: runs times elements.
_MOST_VALUES = 1 << 19
_RUNS = (128, 1024)
# Of more elements, fewer runs show as much; correlations of all places need about these.
_MODERATE, _RUNS_OF_LARGE = 8192, 64
# So many pairs of outputs are compared together.
_MOST_PAIRS = 3
# What large cases have: a dim that is longer, more elements, and not more than so many.
_LONG, _MANY, _MOST_ELEMENTS = 1024, 4096, 1 << 15
# Runs between two signs of life.
_STEP = 64


def sampled_cases(context: Context) -> list[Case]:
    """The largest typical case in each dtype, a strided one, and some large ones: each takes hundreds of runs."""
    by_dtype: dict[Any, Case] = {}
    for case in typical_cases(context, 24):
        by_dtype.setdefault(case.dtype, case)
    strided = typical_cases(context, 1, layouts=("sliced",))
    is_quick = context.runs_slowly or context.request.level == "smoke"
    large = [] if is_quick else [case for case in _large(context) if context.ran(case)]
    return list(dict.fromkeys([*by_dtype.values(), *strided, *large]))


def _large(context: Context) -> Iterator[Case]:
    """In the first dtype: each dim past a large tile, more elements than a generator may give before it repeats, and a
    list of more tensors than usual."""
    sizes = {
        case: elements(context.op.contract, case)
        for case in context.cases
        if case.layout == "contiguous" and case.is_plain and case.sample is None
        and case.dtypes == context.cases[0].dtypes
    }  # fmt: skip
    for name in {name: None for case in sizes for name, _ in case.sizes}:
        longer = [c for c in sizes if longest_of(dict(c.sizes).get(name, 0)) > _LONG and sizes[c] <= _MOST_ELEMENTS]
        yield from sorted(longer, key=sizes.__getitem__)[:1]
    larger = [c for c in sizes if _MANY < sizes[c] <= _MOST_ELEMENTS]
    yield from sorted(larger, key=sizes.__getitem__)[:1]
    yield from sorted((c for c in sizes if c.lists > MOST_LISTS), key=lambda c: c.lists)[:1]


def not_repeatable(context: Context, run: Observation) -> str | None:
    """Whether two calls with the same seed give different results."""
    # With a seed of its own, an operator does not depend on torch's generator.
    first, again = (_outputs(context, run, seed=0, reseed=not _seed(context)) for _ in range(2))
    for i, (a, b) in enumerate(zip(first, again, strict=True)):
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            how = f"the same {_seed(context)}" if _seed(context) else "the same torch.manual_seed"
            return f"output {i} of two calls with {how} differs: it draws from another generator"
    return None


def difference_of_distributions(context: Context, run: Observation, check: str) -> str | None:
    """How the distribution of an output differs from the reference's, or None. What differs in one sample must differ
    in a second one too, so that the error rate is squared."""
    found = _compare(context, run, check, first_seed=1)
    return found if found is None else _compare(context, run, check, first_seed=1 << 20)


def _compare(context: Context, run: Observation, check: str, first_seed: int) -> str | None:
    elements = max((t.numel() for t in run.expected), default=0)
    least = _RUNS[0] if elements <= _MODERATE else _RUNS_OF_LARGE
    runs = max(least, min(_RUNS[1], _MOST_VALUES // max(1, elements)))
    ours, theirs = [], []
    for i in range(runs):
        if i % _STEP == 0:
            context.progress(check, f"{run.case} (sample {i} of {runs})")
        ours.append(_outputs(context, run, seed=first_seed + i, reseed=i == 0))
    torch.manual_seed(first_seed + (1 << 10))
    on_cpu = to_cpu(run.arguments)
    for i in range(runs):
        if i % _STEP == 0:
            context.progress(check, f"{run.case} (reference {i} of {runs})")
        theirs.append(_wide(context.op.contract.reference(_with_seed(context, on_cpu, first_seed + runs + i))))
    names = context.op.contract.result_names(run.arguments, run.expected)
    returns = context.op.contract.signature.stated_returns(len(run.expected))
    for i, expected in enumerate(run.expected):
        if i < len(returns) and returns[i].by_property:
            continue
        found = first_difference(_sample(ours, i), _sample(theirs, i), _rounding(run, expected))
        if found is not None:
            return f"{names[i]}: {found}" if names[i] else str(found)
    for i, j in itertools.islice(_together(run, returns), _MOST_PAIRS if elements <= _MANY else 0):
        a, b = (_sample(each, i) * _sample(each, j) for each in (ours, theirs))
        found = first_difference(a, b, _rounding(run, run.expected[i]) + _rounding(run, run.expected[j]))
        if found is not None:
            return f"outputs {i} and {j} do not belong together, of their product: {found}"
    return None


def _together(run: Observation, returns: Sequence[Return]) -> Iterator[tuple[int, int]]:
    """The outputs of one shape whose elements may belong together, as those of a mask and of what it masks."""
    compared = [
        i for i, t in enumerate(run.expected) if t.numel() and not (i < len(returns) and returns[i].by_property)
    ]
    pairs = itertools.combinations(compared, 2)
    return ((i, j) for i, j in pairs if run.expected[i].shape == run.expected[j].shape and run.expected[i].dim())


def _rounding(run: Observation, output: torch.Tensor) -> float:
    dtypes = [d for d in (run.case.dtype, output.dtype) if d is not None and (d.is_floating_point or d.is_complex)]
    is_rounded = output.is_floating_point() or output.is_complex()
    return 8 * max((torch.finfo(d).eps for d in dtypes), default=0.0) if is_rounded else 0.0


def _sample(outputs: Sequence[Sequence[torch.Tensor]], i: int) -> torch.Tensor:
    return torch.stack([each[i] for each in outputs])


def _outputs(context: Context, run: Observation, *, seed: int, reseed: bool) -> list[torch.Tensor]:
    """The results of one call, in float64 on the CPU. ``reseed``: seed torch's generators too."""
    arguments = _with_seed(context, same_layout(run.arguments), seed)
    return _wide(to_cpu(context.results(arguments, seed=seed if reseed else None)))


def _wide(outputs: Sequence[Any]) -> list[torch.Tensor]:
    return [(torch.view_as_real(t) if t.is_complex() else t).detach().double() for t in tree.tensors(list(outputs))]


def _with_seed(context: Context, arguments: Sequence[Any], seed: int) -> list[Any]:
    """The arguments with another seed, if the operator has one."""
    name = _seed(context)
    return [
        seed if a.name == name else v for a, v in zip(context.op.contract.signature.arguments, arguments, strict=True)
    ]


def _seed(context: Context) -> str:
    random = context.op.contract.random
    return random if isinstance(random, str) else ""
