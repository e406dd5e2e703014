"""The sizes to time: those of the request, else a few from small to larger than the cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import torch

from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.inputs.case import Case, Size
from opwright.contract.inputs.samples import sample_cases
from opwright.contract.inputs.sizes import admissible, base_case, dtypes_to_check, elements, in_step
from opwright.errors import CheckError

__all__ = ["bench_cases"]

# Elements of the largest tensor: launch-bound, in the cache, past the cache.
_ELEMENTS = {"cpu": (1 << 10, 1 << 17, 1 << 23), "cuda": (1 << 10, 1 << 20, 1 << 24, 1 << 28)}
_QUICK = {"cpu": (1 << 20,), "cuda": (1 << 26,)}
# For a table of the fastest kernels by size: denser, because a change is placed between two of them.
_SWEEP = {"cpu": tuple(1 << p for p in range(8, 24, 2)), "cuda": tuple(1 << p for p in range(10, 28, 2))}


def bench_cases(
    contract: Contract,
    device: str,
    *,
    sizes: Mapping[str, Sequence[Size]],
    dtypes: Sequence[str],
    quick: bool,
    sweep: bool = False,
) -> list[Case]:
    """The cases to time: the requested sizes; else the author's (``op.sizes``, in step, or ``op.samples``); else a few.

    Args:
        sizes: requested sizes by dim; every combination is timed. A ``*name`` dim gets one axis of that size, several
            if the size is a tuple, or as many axes as there are dims S, K … that the contract does not know
            (``S=1024 K=1024`` for ``*n``).
        dtypes: requested dtypes; by default the first of the contract.
        sweep: without sizes, more of them, from launch-bound to larger than the cache (``quick``: every second).

    Raises:
        CheckError: a dim or dtype that the contract does not have.
    """
    base, declared = base_case(contract), contract.own_inputs.sizes
    chosen = _dtypes(contract, dtypes)
    if contract.own_inputs.recorded is not None:
        return _samples(contract, chosen)
    if sizes:
        found = _combinations(contract, base, sizes)
    elif declared:
        found = in_step(base, declared)
        found = [found[len(found) // 2]] if quick and not sweep else found
    elif contract.own_inputs.samples and not sweep:
        return _samples(contract, chosen)
    elif sweep:
        found = [_grown(contract, base, n) for n in _SWEEP[device][:: 2 if quick else 1]]
    else:
        found = [_grown(contract, base, n) for n in (_QUICK if quick else _ELEMENTS)[device]]
    fitted = [_fitted(contract, c, sizes or declared) for c in found]
    return [Case(c.sizes, d) for d in chosen for c in dict.fromkeys(fitted)]


def _samples(contract: Contract, chosen: Sequence[tuple[tuple[str, torch.dtype], ...]]) -> list[Case]:
    """The author's samples, those in the requested dtypes if there are any."""
    found = sample_cases(contract)
    return [c for c in found if c.dtypes in chosen] or found


def _fitted(contract: Contract, case: Case, requested: Collection[str]) -> Case:
    """The case with sizes that satisfy the contract's conditions; what was requested stays."""
    fitted = admissible(contract, case, keep=requested)
    if fitted is None:
        raise CheckError(
            f"{contract.qualname}: no sizes satisfy {' and '.join(map(str, contract.where))} in the case {case}",
            fix="choose other sizes",
        )
    return fitted


def _dtypes(contract: Contract, names: Sequence[str]) -> list[tuple[tuple[str, torch.dtype], ...]]:
    known = dtypes_to_check(contract, None)
    if not names:
        return known[:1]
    found = [d for name in names for d in known if name in {short(t) for _, t in d}]
    if not found:
        known_names = sorted({short(t) for d in known for _, t in d})
        expected = f"one of {', '.join(known_names)}" if known_names else "left out, as the contract fixes it"
        raise CheckError(
            f"{contract.qualname}: the dtype must be {expected}, got {', '.join(names)}", fix="leave --dtype out"
        )
    return found


def _combinations(contract: Contract, base: Case, sizes: Mapping[str, Sequence[Size]]) -> list[Case]:
    known = dict(base.sizes)
    extra = [n for n in sizes if n not in known]
    variadic = [n for n, s in known.items() if isinstance(s, tuple)]
    if extra and len(variadic) != 1:
        raise CheckError(
            f"{contract.qualname}: a dim must be one of {', '.join(known)}, got {extra[0]!r}", fix="name one of them"
        )
    for name in sizes.keys() - set(variadic):
        if any(isinstance(size, tuple) for size in sizes[name]):
            raise CheckError(
                f"{contract.qualname}: the size of {name!r} must be one number, got several axes",
                fix=f"pass {name}=1024",
            )
    found = []
    for combination in itertools.product(*sizes.values()):
        values = dict(zip(sizes, combination, strict=True))
        case = base
        for name in variadic:
            case = case.with_size(name, _axes([values[e] for e in extra] or [values.get(name, known[name])]))
        for name in values.keys() - set(extra) - set(variadic):
            case = case.with_size(name, values[name])
        found.append(case)
    return found


def _axes(sizes: Sequence[Size]) -> tuple[int, ...]:
    return tuple(axis for size in sizes for axis in (size if isinstance(size, tuple) else (size,)))


def _grown(contract: Contract, base: Case, target: int) -> Case:
    """Every dim grown by the same factor until the largest tensor has about ``target`` elements.

    Of axes of any number (``*batch``) there is one. It and the other dims together have about as many elements each, as
    batches and rows of models have.
    """
    variadic = [n for n, s in base.sizes if isinstance(s, tuple)]
    if variadic:
        inner = _grown_to(contract, base.with_size(variadic[0], (1,)), math.isqrt(target))
        return inner.with_size(variadic[0], (max(1, target // max(1, elements(contract, inner))),))
    return _grown_to(contract, base, target)


def _grown_to(contract: Contract, base: Case, target: int) -> Case:
    """The dims of one axis, grown; the base if it has none, or is too large."""
    low, high = 0, 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if elements(contract, _scaled(base, 2 ** (middle / 2))) <= target else (low, middle)
    return _scaled(base, 2 ** (low / 2))


def _scaled(base: Case, factor: float) -> Case:
    case = base
    for name, size in base.sizes:
        if isinstance(size, int):
            case = case.with_size(name, 2 ** round(math.log2(max(1.0, size * factor))))
    return case
