"""A guard for calls with other sizes and numbers than an earlier call.

A guard compares sizes with those of one call, so a program whose sizes change in every call misses each of them. Where
the contract says no more of sizes than that some are equal, and the kernel is the same for all sizes, calls need not be
like one another in them: it is enough to compare ranks, dtypes and devices, in torch's guard, and the dims of one name,
in a function that is written and compiled for the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from opwright.contract.contract import Contract
from opwright.contract.shapes.dims import AnyDim, Dim, FixedDim, NamedDim, VariadicDim
from opwright.internals.guards import guard_tensors
from opwright.runtime.call.guard import Guard

__all__ = ["holds_for_any_size"]

_NUMBERS = (int, float, bool)
_Places = dict[str, list[str]]


def holds_for_any_size(guard: Guard, contract: Contract, arguments: Sequence[Any]) -> Callable[..., bool] | None:
    """A function of a call's arguments that tells whether a call with these dtypes, devices and ranks satisfies the
    contract; None if the contract has conditions that it does not compare.

    Args:
        guard: that of a valid call with these arguments.
    """
    if guard.flags or contract.where or contract.signature.mutated:
        return None
    conditions = _conditions(guard, contract, arguments)
    if conditions is None:
        return None
    # Only names made here and numbers are in the text: no part of a contract is.
    names = [f"a{i}" for i in range(guard.arguments)]
    scope: dict[str, Any] = {
        "check": guard_tensors(guard.examples, any_sizes=True),
        "is_grad_enabled": torch.is_grad_enabled,
        **{f"c{i}": value for i, value in guard.constants},
    }
    parts = [*conditions[0], f"check({', '.join(f'a{i}' for i in guard.tensors)})", *conditions[1]]
    if guard.tracking is not None:
        parts.insert(0, f"is_grad_enabled() is {guard.tracking}")
    made: Callable[..., bool] = eval(f"lambda {', '.join(names)}: {' and '.join(parts)}", scope)
    return made


def _conditions(guard: Guard, contract: Contract, arguments: Sequence[Any]) -> tuple[list[str], list[str]] | None:
    """What is compared before torch's guard, and after it: it compares ranks, on which the places of dims depend."""
    first = [f"a{i} is a{earlier}" for i, earlier in guard.repeats]
    for i, value in guard.constants:
        spec = contract.signature.arguments[i]
        if type(value) in _NUMBERS and not spec.choices:
            first.append(f"type(a{i}) is {type(value).__name__}")
        elif value is None:
            first.append(f"a{i} is None")
        else:
            first.append(f"type(a{i}) is type(c{i}) and a{i} == c{i}")
    after: list[str] = []
    places: _Places = {}
    whole: dict[tuple[Dim, ...], int] = {}  # the first argument with these dims
    for i, (spec, value) in enumerate(zip(contract.signature.arguments, arguments, strict=True)):
        if not isinstance(value, torch.Tensor):
            continue
        if spec.tensor is None or not all(map(_can_be_compared, spec.tensor.dims)):
            return None
        if whole.setdefault(spec.tensor.dims, i) != i and all(map(_is_compared, spec.tensor.dims)):
            after.append(f"a{i}.shape == a{whole[spec.tensor.dims]}.shape")
        else:
            after += _of_axes(i, spec.tensor.dims, value.dim(), places)
    return first, [*after, *_equal(places)]


def _can_be_compared(dim: Dim) -> bool:
    return isinstance(dim, AnyDim | FixedDim | VariadicDim) or (
        isinstance(dim, NamedDim) and not dim.broadcast and not dim.each
    )


def _is_compared(dim: Dim) -> bool:
    return not (isinstance(dim, AnyDim) or (isinstance(dim, VariadicDim) and dim.name is None))


def _of_axes(argument: int, dims: Sequence[Dim], rank: int, places: _Places) -> Iterator[str]:
    """The conditions on one tensor's axes alone; where each name stands goes into ``places``."""
    axis = 0
    for dim in dims:
        taken = rank - (len(dims) - 1) if isinstance(dim, VariadicDim) else 1
        if isinstance(dim, FixedDim):
            yield f"a{argument}.shape[{axis}] == {int(dim.size)}"
        elif isinstance(dim, VariadicDim) and dim.name is not None:
            all_of_it = taken == rank
            places.setdefault(dim.name, []).append(
                f"a{argument}.shape" + ("" if all_of_it else f"[{axis}:{axis + taken}]")
            )
        elif isinstance(dim, NamedDim):
            places.setdefault(dim.name, []).append(f"a{argument}.shape[{axis}]")
        axis += taken


def _equal(places: _Places) -> Iterator[str]:
    for at in places.values():
        if len(at) > 1:
            yield " == ".join(at)
