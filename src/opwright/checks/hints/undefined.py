"""Which argument makes the reference NaN: one that may be negative, or past 1, and should not be.

An argument is named if the NaN are gone once its values are replaced by others: by positive ones, or by ones from 0
to 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.checks.comparison.tolerance import Computation
from opwright.contract.contract import Contract
from opwright.contract.signature import Argument

__all__ = ["Cause", "cause_of_nan", "common_cause", "is_undefined", "undefined_share"]


@dataclass(frozen=True)
class Cause:
    """An argument, what is wrong with its values, and what to state of them."""

    argument: str
    why: str
    remedy: str
    is_number: bool


def is_undefined(computation: Computation) -> bool:
    """Whether a result of the reference has NaN, and no argument."""
    return undefined_share(computation) > 0 and not _has_nan(list(computation.arguments))


def undefined_share(computation: Computation) -> float:
    """The largest share of NaN among the elements of one result."""
    return max((float(t.isnan().double().mean()) for t in computation.rounded if _is_float(t) and t.numel()), default=0)


def cause_of_nan(contract: Contract, computation: Computation) -> list[Cause]:
    """The causes without which a reference that is NaN has no NaN."""
    return [cause for cause, changed in _replaced(contract, computation) if _is_defined(computation, changed)]


def common_cause(contract: Contract, undefined: Sequence[Computation]) -> Cause | None:
    """The cause of most of the computations that are NaN."""
    found = Counter(cause for computation in undefined for cause in cause_of_nan(contract, computation))
    cause, count = found.most_common(1)[0] if found else (None, 0)
    return cause if count >= 0.8 * len(undefined) else None


def _replaced(contract: Contract, computation: Computation) -> Iterator[tuple[Cause, list[Any]]]:
    """For each argument whose values are not stated, and may be a cause: the arguments with other values of it."""
    values = list(computation.arguments)
    for place, argument in enumerate(contract.signature.arguments):
        if not _is_unstated(argument):
            continue
        for is_wrong, replace, why, stated in _OTHER_VALUES:
            if _any(is_wrong, values[place]):
                others = [*values[:place], _mapped(replace, values[place]), *values[place + 1 :]]
                yield _cause(argument, why, stated), others


def _cause(argument: Argument, why: str, stated: str) -> Cause:
    shown = "float" if argument.tensor is None else str(argument.tensor)
    remedy = f"state its values: {argument.name}: Annotated[{shown}, {stated}]"
    if argument.tensor is None and not argument.has_default:
        remedy += ", or a default such as 1e-6 if it is small"
    return Cause(argument.name, f"{argument.name!r} {why}", remedy, is_number=argument.tensor is None)


def _is_unstated(argument: Argument) -> bool:
    if argument.values is not None and not argument.values.is_free:
        return False
    if argument.tensor is None:
        return argument.scalar_type is float and not argument.choices
    return any(d.is_floating_point and d.itemsize > 1 for d in argument.tensor.dtypes)


def _any(is_wrong: Callable[[torch.Tensor], torch.Tensor], value: Any) -> bool:
    if isinstance(value, float):
        return bool(is_wrong(torch.tensor(value)))
    return any(bool(is_wrong(t).any()) for t in tree.tensors([value]) if _is_float(t))


def _mapped(replace: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, float):
        return float(replace(torch.tensor(value, dtype=torch.float64)))
    return tree.map_tensors(lambda t: replace(t) if _is_float(t) else t, value)


def _is_defined(computation: Computation, arguments: list[Any]) -> bool:
    try:
        results = computation.run(arguments)
    except Exception:  # the reference may refuse other values by any exception
        return False
    return not _has_nan(list(results))


def _has_nan(values: list[Any]) -> bool:
    return any(bool(t.isnan().any()) for t in tree.tensors(values) if _is_float(t))


def _is_float(t: torch.Tensor) -> bool:
    return t.is_floating_point() and t.dtype.itemsize > 1


# What may be wrong with values, other ones, and both in words.
_OTHER_VALUES: tuple[
    tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor], str, str], ...
] = (
    (lambda t: t < 0, lambda t: t.abs(), "is negative", "ow.values(0, 1)"),
    (lambda t: t <= 0, lambda t: t.abs() + 0.125, "is not positive", "ow.values(0.01, 1)"),
    (lambda t: t.abs() >= 1, lambda t: t.sigmoid() - 0.5, "is not between -1 and 1", "ow.values(-1, 1)"),
    (lambda t: (t < 0) | (t > 1), torch.sigmoid, "is not between 0 and 1", "ow.values(0, 1)"),
)
