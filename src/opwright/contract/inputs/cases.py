"""The cases of a contract: sizes, dtypes, layouts and values, boundaries first.

A case is a short text that stands for one call's arguments, such as ``n=5 k=3 dtype=float32
layout=sliced``; the same text always gives the same values, so a failure can be repeated from it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from opwright.contract import derive
from opwright.contract.contract import Contract
from opwright.contract.dtypes import TakenDtypes
from opwright.contract.inputs.applicable import Admits, Reach, find_reach, usual_reach
from opwright.contract.inputs.arguments import (
    arguments_of,
    has_free_integers,
    has_free_numbers,
    has_free_tensors,
    has_half_tensors,
    has_masks,
    has_ranges,
    has_ranges_of_floats,
    optional_arguments,
)
from opwright.contract.inputs.arranged import has_arranged_floats
from opwright.contract.inputs.case import (
    BOUNDS,
    CONFIDENT,
    DYADIC,
    HUGE,
    LARGE_INTEGERS,
    MASKED,
    PEAK_TARGETS,
    RUNS,
    SCALAR_BOUNDS,
    SCALARS,
    VALUES,
    WIDE,
    Case,
    longest_of,
    own_size_name,
)
from opwright.contract.inputs.layouts import FAR_STRIDES, FARS, far_axis, layouts_of
from opwright.contract.inputs.options import option_sets
from opwright.contract.inputs.samples import sample_cases
from opwright.contract.inputs.sizes import (
    MOST_ELEMENTS,
    admissible,
    axes_of_any_size,
    base_case,
    dtypes_to_check,
    elements,
    has_lists,
    in_step,
    like,
    tiled,
    varied,
    whole_beside_past,
    with_long_remainders,
)
from opwright.contract.inputs.targets import targets
from opwright.contract.shapes.dims import AnyDim, NamedDim, VariadicDim, size_name

__all__ = ["cases"]

# The maximum number of elements in one argument of a case of ``op.sizes``, and of a published task's own sizes, which
# its kernels may be written for.
_TYPICAL_ELEMENTS, _PUBLISHED_ELEMENTS = 1 << 16, 1 << 22
_LONG = 2048
_SIDE = 6
# So many choices of options are tried with strided arguments, too.
_FEW_SETS = 3
# Values that every dtype is tried with; the others only the first one.
_VALUES_OF_EACH_DTYPE = ("large", "shifted")


def cases(
    contract: Contract,
    level: str,
    allowed: TakenDtypes = None,
    *,
    admits: Admits | None = None,
    longest: int = 1 << 22,
    far: bool = True,
    ranks: int = 1,
) -> list[Case]:
    """The derived cases, smallest first within a dtype and layout, those with a long dim last.

    Args:
        level: ``smoke`` (a few sizes in one dtype), ``quick`` or ``full`` (more sizes, every layout in every dtype).
        allowed: the kernel's dtypes, of all arguments or of single ones; None for all of the contract's.
        admits: whether a case can be run; where the usual sizes cannot, others are searched for.
        longest: no dim is longer.
        ranks: the number of processes in each process group.
        far: include views whose rows lie far apart, in memory that is hardly used.
    """
    if contract.own_inputs.recorded is not None:
        return sample_cases(contract)
    combinations = dtypes_to_check(contract, allowed)
    if not combinations:
        return []
    bases = [dataclasses.replace(base_case(contract, ranks), dtypes=dtypes) for dtypes in combinations]
    if admits is None:
        reach = usual_reach(bases[0], level, longest)
    else:
        reach = find_reach(contract, level, bases, admits, longest, _with_own_sizes(contract, bases[0]))
    if level == "smoke":
        return list(dict.fromkeys(c for case in _smoke(contract, reach) if (c := admissible(contract, case))))
    found = _all(contract, level, allowed, reach, combinations)
    if admits is not None:
        found += [case for case in _with_sizes_apart(contract, reach.base) if admits(case)]
    least = functools.cache(functools.partial(_least_results, contract))
    return [
        case
        for case in found
        if (far or case.layout not in FARS)
        and (case.layout == "contiguous" or not contract.own_inputs.contiguous)
        and _has_small_results(contract, case, level, least)
    ]


# What a tensor costs at least, in elements: lists may have one for each row.
_OF_A_TENSOR = 10_000


def _has_small_results(contract: Contract, case: Case, level: str, least: Callable[[Case], int]) -> bool:
    """Whether results are not much larger than arguments may be, as an outer product's of two long vectors.

    Args:
        least: how many elements the results have at least, which is the same for all layouts.
    """
    if case.sample is not None or case.layout in FARS or elements(contract, case) < _LONG:
        return True
    return least(dataclasses.replace(case, layout="contiguous")) <= 4 * MOST_ELEMENTS[level]


def _least_results(contract: Contract, case: Case) -> int:
    """How many elements results have, where a tensor counts as one of some size; 0 if that is not known."""
    try:
        results = derive.fake_outputs(contract, arguments_of(contract, case, "meta", only_sizes=True))
    except Exception:  # a reference may raise anything; it is asked again with values
        return 0
    return sum(max(_OF_A_TENSOR, result.numel()) for result in results)


def _all(
    contract: Contract,
    level: str,
    allowed: TakenDtypes,
    reach: Reach,
    combinations: Sequence[tuple[tuple[str, torch.dtype], ...]],
) -> list[Case]:
    base, layouts = reach.base, layouts_of(contract)
    by_size = [c for names, sizes in reach.sizes for s in sizes if (c := varied(contract, base, names, s)) is not None]
    large = _large(contract, reach)
    some = [base, *large[-2:]]
    found = [*by_size, *large, *_arranged(contract, reach, some, layouts), *_vectors(contract, reach, layouts)]
    found += _branches(contract, base, large[-1], layouts)
    found += _with_values(contract, some, VALUES)
    long = [c for c in by_size if _longest(c) > _LONG]
    found += _past_large_tiles(contract, _shortest(long))
    for dtypes in (d for d in combinations if d != base.dtypes):
        few = [*by_size, *large] if level == "full" else [*_empty(by_size), *large, *_shortest(long)]
        few += (
            [dataclasses.replace(base, layout="sliced")]
            if level != "full"
            else _arranged(contract, reach, some, layouts)
        )
        found += [dataclasses.replace(c, dtypes=dtypes) for c in (base, *few)]
        last = dataclasses.replace(some[-1], dtypes=dtypes)
        found += _with_values(contract, [last], VALUES if level == "full" else _VALUES_OF_EACH_DTYPE)
    if has_lists(contract):
        found += [dataclasses.replace(base, lists=count) for count in (0, 1, 2, 5, 33, 111)]
    found += _typical(contract, base)
    found += _square(contract, base)
    if not reach.is_known:
        found += whole_beside_past(contract, base)
    found.append(base)
    small_enough = [c for c in dict.fromkeys(found) if elements(contract, c) <= MOST_ELEMENTS[level]]
    derived = sorted(
        small_enough,
        key=lambda c: (  # long dims last: a kernel may take long to compile for them
            combinations.index(c.dtypes), layouts.index(c.layout), max(_longest(c), _LONG), elements(contract, c)
        ),
    )  # fmt: skip
    return [*derived, *_own_samples(contract, allowed)]


def _with_sizes_apart(contract: Contract, base: Case) -> Iterator[Case]:
    """Cases in which the ``_`` of one argument is longer than that of the same axis of others, or has size 1."""
    first: dict[str, str] = {}
    for argument, axis, shared in axes_of_any_size(contract):
        if first.setdefault(shared, argument) != argument:
            size = dict(base.sizes)[shared]
            assert isinstance(size, int)  # one axis
            yield from (base.with_size(own_size_name(argument, axis), other) for other in (size + 4, 1))


def _longest(case: Case) -> int:
    return max((longest_of(size) for _, size in case.sizes), default=0)


def _shortest(long: Sequence[Case]) -> list[Case]:
    """Of the cases with a long dim, those with the shortest such sizes: one for each dim."""
    limit = min(map(_longest, long), default=0)
    return [c for c in long if _longest(c) == limit]


def _empty(found: Iterable[Case]) -> list[Case]:
    return [c for c in found if any(s == 0 or s == (0,) for _, s in c.sizes)]


def _large(contract: Contract, reach: Reach) -> list[Case]:
    """Cases past a tile in one dim, and in several at once; the base if there are none."""
    if not reach.is_known:
        longer = (varied(contract, reach.base, (n,), like(s, new)) for n, s in reach.base.sizes for new in (128, 129))
        remainders = with_long_remainders(contract, reach.base)
        found = (remainders, *longer, *reversed(tiled(contract, reach.base)))
        return [c for c in found if c is not None] or [reach.base]
    chosen = {names: _past_a_tile(sizes) for names, sizes in reach.sizes}
    longer = (varied(contract, reach.base, names, size) for names, size in chosen.items() if size is not None)
    every: Case | None = reach.base
    for names, size in chosen.items():
        if every is not None and size is not None:
            every = varied(contract, every, names, size)
    return [c for c in (*longer, every) if c is not None] or [reach.base]


def _past_a_tile(sizes: Sequence[object]) -> int | tuple[int, ...] | None:
    """The smallest size from 64 on, else the largest."""
    known = [s for s in sizes if isinstance(s, int)]
    of_several = [s for s in sizes if isinstance(s, tuple)]
    if known:
        return min((s for s in known if s >= 64), default=max(known))
    return next((s for s in of_several if s and s[-1] >= 64), of_several[-1] if of_several else None)


def _arranged(contract: Contract, reach: Reach, some: Sequence[Case], layouts: Sequence[str]) -> list[Case]:
    """A few cases in each layout."""
    found = [
        dataclasses.replace(c, layout=layout)
        for layout in layouts
        if layout not in FARS
        for c in (some if ":" not in layout else (some[0], some[-1]))
    ]
    for layout in (layout for layout in FARS if layout in layouts):
        few = (_with_far(contract, some[0], layout, size) for size in FAR_STRIDES)
        found += [dataclasses.replace(c, layout=layout) for c in few if c is not None]
    return [c for c in found if c.layout != reach.base.layout]


def _branches(contract: Contract, base: Case, large: Case, layouts: Sequence[str]) -> Iterator[Case]:
    """Cases of each branch that a kernel may have: optional arguments that are absent, and each choice of options, at
    sizes past a tile; a few strided."""
    strided = [dataclasses.replace(base, layout="sliced")] * ("sliced" in layouts)
    if optional := optional_arguments(contract):
        yield from (dataclasses.replace(c, absent=True) for c in (base, large, *strided))
        if len(optional) > 1:
            yield from (dataclasses.replace(c, without=name) for name in optional for c in (base, large))
    sets = option_sets(contract)
    for options in sets:
        yield from (dataclasses.replace(c, options=options) for c in (large, *strided[: len(sets) <= _FEW_SETS]))


def _vectors(contract: Contract, reach: Reach, layouts: Sequence[str]) -> Iterator[Case]:
    """Where dims stand for any number of axes: one axis, with gaps and not aligned. The base has several."""
    for names, sizes in reach.sizes:
        one = _past_a_tile([s for s in sizes if isinstance(s, tuple) and len(s) == 1])
        case = None if one is None else varied(contract, reach.base, names, one)
        if case is not None:
            yield from (
                dataclasses.replace(case, layout=layout) for layout in ("sliced", "offset") if layout in layouts
            )


def _with_far(contract: Contract, case: Case, layout: str, size: int) -> Case | None:
    """The case with another size of the dims whose elements lie far apart."""
    for argument in contract.signature.arguments:
        dims = argument.tensor.dims if argument.tensor else ()
        axis = far_axis(layout, len(dims))
        of_known_rank = axis == 0 or not any(isinstance(dim, VariadicDim) for dim in dims)
        if len(dims) > 1 and of_known_rank and isinstance(dim := dims[axis], NamedDim | AnyDim):
            case = case.with_size(str(size_name(dim, axis)), size)
    return admissible(contract, case)


def _with_values(contract: Contract, some: Sequence[Case], values: Sequence[str]) -> Iterator[Case]:
    """Cases with other numbers and values, where the author states none."""
    for case in some:
        if has_free_tensors(contract):
            yield from (dataclasses.replace(case, values=kind) for kind in values)
        elif has_ranges_of_floats(contract):
            yield dataclasses.replace(case, values=DYADIC)
        elif case is some[-1] and has_arranged_floats(contract):
            yield from (dataclasses.replace(case, values=kind) for kind in (CONFIDENT, DYADIC))
        if case is some[-1] and has_free_tensors(contract):
            yield dataclasses.replace(case, values=MASKED)
        if case is some[-1] and has_half_tensors(contract, case):
            yield dataclasses.replace(case, values=HUGE)
        if has_free_integers(contract, case):
            yield from (dataclasses.replace(case, values=kind) for kind in (LARGE_INTEGERS, WIDE))
        if has_free_numbers(contract):
            yield from (dataclasses.replace(case, scalars=kind) for kind in SCALARS)
        if has_masks(contract):
            yield dataclasses.replace(case, values=RUNS)
        if targets(contract):
            yield dataclasses.replace(case, values=PEAK_TARGETS)
        if has_ranges(contract):
            yield from (dataclasses.replace(case, values=BOUNDS, scalars=end) for end in SCALAR_BOUNDS)
    if has_free_tensors(contract) and has_free_numbers(contract):  # a number, too, is equal to some elements
        yield dataclasses.replace(some[0], values=DYADIC, scalars="negative")


def _past_large_tiles(contract: Contract, long: Sequence[Case]) -> Iterator[Case]:
    """Values that may fill a whole tile of a long dim, or one place in each tile: those that are masked."""
    for case in long:
        if has_free_tensors(contract):
            yield dataclasses.replace(case, values="inf")
        if has_masks(contract):
            yield dataclasses.replace(case, values=RUNS)


def _square(contract: Contract, base: Case) -> list[Case]:
    """A case whose dims are all alike, so that shapes are the same after a transposition."""
    sizes = tuple((name, (_SIDE,) * max(2, len(s)) if isinstance(s, tuple) else _SIDE) for name, s in base.sizes)
    found = admissible(contract, dataclasses.replace(base, sizes=sizes))
    return [] if found is None else [found]


def _typical(contract: Contract, base: Case) -> list[Case]:
    """The sizes of ``op.sizes`` that are not too large for a check."""
    own = contract.own_inputs
    most = _PUBLISHED_ELEMENTS if own.samples_are_smaller else _TYPICAL_ELEMENTS
    found = (admissible(contract, case) for case in in_step(base, own.sizes))
    return [c for c in found if c is not None and elements(contract, c) <= most]


def _with_own_sizes(contract: Contract, base: Case) -> list[Case]:
    """Derived cases with the sizes of ``op.sizes`` and of ``op.samples``."""
    names = [name for name, _ in base.sizes]
    sampled = [dataclasses.replace(base, sizes=c.sizes) for c in sample_cases(contract)]
    return [*_typical(contract, base), *(c for c in sampled if [name for name, _ in c.sizes] == names)]


def _own_samples(contract: Contract, allowed: TakenDtypes) -> list[Case]:
    """The author's samples in the dtypes of a kernel, as they are and with gaps between elements."""
    # Those of single arguments are seen when the kernel is asked whether it takes the sample.
    found = [c for c in sample_cases(contract) if allowed is None or isinstance(allowed, Mapping) or c.dtype in allowed]
    return [*found, *(dataclasses.replace(c, layout="sliced") for c in found)]


def _smoke(contract: Contract, reach: Reach) -> list[Case]:
    """Small sizes, contiguous and strided, and sizes past a tile: a first test, not a complete check."""
    past_a_tile = _large(contract, reach)
    return [
        reach.base, *past_a_tile[-1:], *[dataclasses.replace(reach.base, layout="sliced")] * bool(reach.base.sizes)
    ]  # fmt: skip
