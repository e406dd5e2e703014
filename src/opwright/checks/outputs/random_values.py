"""The values of operators that are declared random: their distribution against the reference's, and repeatability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opwright import tree
from opwright.checks.chosen_cases import typical_cases
from opwright.checks.comparison.statistics import first_difference
from opwright.checks.context import Context
from opwright.checks.kernel_calls import same_layout
from opwright.checks.observation import Observation, to_cpu
from opwright.contract.inputs.case import Case

__all__ = ["difference_of_distributions", "not_repeatable", "sampled_cases"]

# Results of one side that are compared: runs times elements.
_MOST_VALUES = 1 << 19
_RUNS = (128, 1024)
# Runs between two signs of life.
_STEP = 64


def sampled_cases(context: Context) -> list[Case]:
    """The largest typical case in each dtype, and a strided one: a comparison takes hundreds of runs."""
    by_dtype: dict[Any, Case] = {}
    for case in typical_cases(context, 24):
        by_dtype.setdefault(case.dtype, case)
    return list(dict.fromkeys([*by_dtype.values(), *typical_cases(context, 1, layouts=("sliced",))]))


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
    runs = max(_RUNS[0], min(_RUNS[1], _MOST_VALUES // max(1, elements)))
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
    return None


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
