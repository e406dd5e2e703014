"""Sizes of cases: the base, the boundaries of each dim, and sizes that satisfy the contract's conditions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from opwright import tree
from opwright.contract.contract import Contract
from opwright.contract.dtypes import TakenDtypes
from opwright.contract.inputs.arguments import env_of, shape_of
from opwright.contract.inputs.case import Case, Size
from opwright.contract.inputs.samples import sample_arguments
from opwright.contract.shapes.dims import AnyDim, VariadicDim, size_name
from opwright.contract.shapes.search import nearest
from opwright.contract.signature import Kind
from opwright.errors import CheckError

__all__ = [
    "MOST_ELEMENTS", "admissible", "axes_of_any_size", "base_case", "boundaries", "dtypes_to_check", "elements",
    "elements_of_arguments", "has_lists", "in_step", "like", "sizes_of", "smaller", "tiled", "varied",
    "whole_beside_past",
    "with_long_remainders",
]  # fmt: skip

# Around powers of two; and between them, so that what is left of vectors and tiles of any size has many lengths.
_QUICK = (0, 1, 2, 3, 7, 8, 9, 13, 22, 31, 32, 33, 52, 64, 127, 128, 129, 180, 256, 300, 700, 768, 1023, 1024, 1025)
_FULL = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 22, 28, 31, 32, 33, 46, 52, 63, 64, 65, 100,
         127, 128, 129, 180, 255, 256, 257, 300, 511, 512, 513, 700, 768, 1023, 1024, 1025, 1500, 2047, 2048, 4095,
         4097)  # fmt: skip
# Past a row of registers, past 16 bits (and a grid's y axis), and past the threads that run on a GPU at a time.
_LONG = {"smoke": (), "quick": (2049, 4096, 65_537, 300_007), "full": (2049, 5003, 8192, 65_537, 300_007, 1_048_579)}
# Different sizes for the dims that are not varied, so that swapped dims are found.
_BASE = (5, 7, 3, 6, 4, 11, 13)
# All dims larger than a tile at once: a bug in the corner tile needs two long dims.
_TILED = ((131, 137, 139, 149), (67, 71, 73, 79), (35, 37, 39, 41), (17, 19, 18, 21))
# The same with long remainders.
_TILED_LONG = ((155, 151, 147, 157), (91, 59, 61, 63), (47, 43, 46, 45), (30, 28, 31, 26))
_TILED_ELEMENTS = 1 << 17
# A whole tile of every usual size, and one past it; the first that are not too large.
_WHOLE_AND_PAST = ((128, 129), (64, 65), (32, 33))
_WHOLE_ELEMENTS, _MOST_OF_WHOLE = 1 << 15, 6
# The maximum number of elements in one argument of a derived case.
MOST_ELEMENTS = {"smoke": 1 << 18, "quick": 1 << 19, "full": 1 << 22}
_CHECKED = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool,
    torch.complex64, torch.uint8, torch.int16, torch.int8, torch.complex128,
)  # fmt: skip
_FLOATS_OF_A_BYTE = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def boundaries(level: str, longest: int) -> tuple[int, ...]:
    """The sizes to try for one dim, none larger than ``longest``."""
    known = (*(_FULL if level == "full" else _QUICK), *_LONG[level])
    return tuple(size for size in known if size <= longest)


def sizes_of(like_size: Size, level: str, longest: int) -> list[Size]:
    """The sizes to try for a dim, or for dims such as ``*n`` if ``like_size`` is a tuple."""
    known = boundaries(level, longest)
    if isinstance(like_size, tuple):
        return [(), *((b,) for b in known), (3, 5), (2, 3, 4), (0, 3), (3, 33)]
    return list(known)


def like(size: Size, new: int) -> Size:
    """A size of the same kind: for dims such as ``*n``, two of them."""
    return (3, new) if isinstance(size, tuple) else new


def dtypes_to_check(contract: Contract, allowed: TakenDtypes = None) -> list[tuple[tuple[str, torch.dtype], ...]]:
    """The combinations of dtypes that checks use, most common first.

    ``allowed`` is a kernel's ``dtypes``: it restricts floating ones (all, if the contract has no floating argument), or
    those of single arguments.
    """
    classes: dict[str, list[torch.dtype]] = {}
    for tensor in (a.tensor for a in contract.signature.arguments if a.tensor):
        known = _checked(tensor.dtypes)
        if len(tensor.dtypes) > 1:
            classes.setdefault(tensor.dtype_class, known)
    has_float = any(d.is_floating_point or d.is_complex for known in classes.values() for d in known)
    of_arguments = allowed if isinstance(allowed, Mapping) else {}
    for argument in contract.signature.arguments:
        if argument.name in of_arguments and argument.tensor and argument.tensor.dtype_class in classes:
            taken = of_arguments[argument.name]
            classes[argument.tensor.dtype_class] = [d for d in classes[argument.tensor.dtype_class] if d in taken]
    for name, known in classes.items():
        floating = [d for d in known if d.is_complex or (d.is_floating_point and d.itemsize > 1)]
        if allowed is not None and not of_arguments and (floating or not has_float):
            classes[name] = [d for d in known if d in allowed]
    names = list(classes)
    return [tuple(zip(names, chosen, strict=True)) for chosen in itertools.product(*classes.values())]


def _checked(dtypes: Sequence[torch.dtype]) -> list[torch.dtype]:
    """Those that checks use. A class that has all floats of a byte is one of jaxtyping's: most operators on ``Float``
    do not mean them, and torch computes nothing in them."""
    of_a_byte = [d for d in _FLOATS_OF_A_BYTE if d in dtypes]
    chosen = of_a_byte if len(of_a_byte) < len(_FLOATS_OF_A_BYTE) else []
    return [*(d for d in _CHECKED if d in dtypes), *chosen]


def base_case(contract: Contract, ranks: int | None = None) -> Case:
    """Small sizes, all of them different.

    Args:
        ranks: the number of processes in each process group; by default, those of this process's default group.
    """
    if ranks is None:
        ranks = dist.get_world_size() if contract.signature.groups and dist.is_initialized() else 1
    sizes: dict[str, Size] = {}
    for tensor in (a.tensor for a in contract.signature.arguments if a.tensor):
        for axis, dim in enumerate(tensor.dims):
            if (name := size_name(dim, axis)) is not None:
                sizes.setdefault(name, (3, 5) if isinstance(dim, VariadicDim) else _BASE[len(sizes) % len(_BASE)])
    dtypes = dtypes_to_check(contract, None)
    case = Case(tuple(sizes.items()), dtypes[0] if dtypes else (), ranks=ranks)
    return admissible(contract, case) or case


def axes_of_any_size(contract: Contract) -> Iterator[tuple[str, int, str]]:
    """Each axis ``_``: the argument's name, the axis, and the name under which cases give its size."""
    for argument in contract.signature.arguments:
        for axis, dim in enumerate(argument.tensor.dims if argument.tensor else ()):
            if isinstance(dim, AnyDim):
                yield argument.name, axis, str(size_name(dim, axis))


def varied(contract: Contract, base: Case, names: Collection[str], size: Size) -> Case | None:
    """The base with another size of some dims, and of others if the contract's conditions need that, or if the case
    would be too large."""
    found = None
    for most in (None, 2, 1):
        case = base if most is None else _at_most(base, most)
        for name in names:
            case = case.with_size(name, size)
        found = admissible(contract, case, keep=names) or admissible(contract, case)
        if found is None or elements(contract, found) <= MOST_ELEMENTS["quick"]:
            break
    return found


def _at_most(case: Case, most: int) -> Case:
    sizes = (
        tuple(min(s, most) for s in size) if isinstance(size, tuple) else min(size, most) for _, size in case.sizes
    )
    return dataclasses.replace(case, sizes=tuple(zip((name for name, _ in case.sizes), sizes, strict=True)))


def tiled(contract: Contract, base: Case) -> list[Case]:
    """The largest cases of moderate size in which every dim, or every two dims, are past a tile."""
    if not base.sizes or (len(base.sizes) == 1 and not isinstance(base.sizes[0][1], tuple)):
        return []
    every = _first_small_enough(contract, base, [name for name, _ in base.sizes])
    # Where all are only just past a small tile, each two are past a large one.
    pairs = list(itertools.combinations([name for name, _ in base.sizes], 2)) if len(base.sizes) > 2 else []
    found = [every, *(_first_small_enough(contract, base, pair) for pair in pairs)]
    return [case for case in dict.fromkeys(found) if case is not None]


def with_long_remainders(contract: Contract, base: Case) -> Case | None:
    """Every dim past a tile, of which more than a half is left over; None if there is only one."""
    if not base.sizes or (len(base.sizes) == 1 and not isinstance(base.sizes[0][1], tuple)):
        return None
    return _first_small_enough(contract, base, [name for name, _ in base.sizes], _TILED_LONG)


def whole_beside_past(contract: Contract, base: Case) -> list[Case]:
    """Cases in which some dims are whole tiles and others are one past a tile, so that each dim is a whole tile beside
    each other one that is not: a loop over tiles may take its end from the wrong dim. Other dims are small."""
    names = [name for name, size in reversed(base.sizes) if isinstance(size, int)]  # batches come first, tiles last
    open_pairs = dict.fromkeys(itertools.permutations(names, 2))
    small, found = _at_most(base, 2), list[Case]()
    while open_pairs and len(found) < _MOST_OF_WHOLE:
        whole, past = next(iter(open_pairs))
        is_whole = {whole: True, past: False}
        case = _with_tiles(contract, small, is_whole)
        for name in names if case is not None else ():  # one case for as many pairs as fit into it
            for choice in (True, False) if name not in is_whole else ():
                covered = [p for p in _covered({**is_whole, name: choice}) if p in open_pairs and name in p]
                larger = _with_tiles(contract, small, {**is_whole, name: choice}) if covered else None
                if larger is not None:
                    case, is_whole = larger, {**is_whole, name: choice}
                    break
        for pair in ((whole, past), *_covered(is_whole)):
            open_pairs.pop(pair, None)
        if case is not None:
            found.append(case)
    return list(dict.fromkeys(found))


def _covered(is_whole: Mapping[str, bool]) -> Iterator[tuple[str, str]]:
    return ((a, b) for a, b in itertools.permutations(is_whole, 2) if is_whole[a] and not is_whole[b])


def _with_tiles(contract: Contract, base: Case, is_whole: Mapping[str, bool]) -> Case | None:
    """Sizes of a whole tile, and of one more, for some dims: the largest such case that is not too large, if the
    contract's conditions allow these sizes."""
    for whole, past in _WHOLE_AND_PAST:
        case = base
        for name, is_one in is_whole.items():
            case = case.with_size(name, whole if is_one else past)
        found = admissible(contract, case, keep=is_whole)
        if found is not None and elements(contract, found) <= _WHOLE_ELEMENTS:
            return found
    return None


def _first_small_enough(
    contract: Contract, base: Case, names: Sequence[str], sizes: Sequence[tuple[int, ...]] = _TILED
) -> Case | None:
    for each in sizes:
        case, new = base, itertools.cycle(each)
        for name, size in base.sizes:
            if name in names:
                one = next(new)
                grown = (each[:2] if len(base.sizes) == 1 else (2, one)) if isinstance(size, tuple) else one
                case = case.with_size(name, grown)
        if elements(contract, case) <= _TILED_ELEMENTS:
            return admissible(contract, case)
    return None


def admissible(contract: Contract, case: Case, keep: Collection[str] = ()) -> Case | None:
    """The case with the nearest sizes that satisfy the contract's conditions, except that those of ``keep`` stay; None
    if there are none."""
    if not contract.where:
        return case
    # Of an int argument, some value must satisfy them; which one, is drawn with the arguments.
    wanted = {a.name: 2 for a in contract.signature.arguments if a.scalar_type is int}
    wanted |= {name: size for name, size in case.sizes if isinstance(size, int)}
    groups = {contract.signature.arguments[i].name: case.ranks for i in contract.signature.groups}
    found = nearest(contract.where, wanted | groups, {*keep, *groups})
    if found is None:
        return None
    return dataclasses.replace(case, sizes=tuple((name, found.get(name, size)) for name, size in case.sizes))


def in_step(base: Case, sizes: Mapping[str, Sequence[Size]]) -> list[Case]:
    """A case for each position of some lists of sizes by dim; a shorter list repeats its last."""
    found = []
    for i in range(max((len(listed) for listed in sizes.values()), default=0)):
        case = base
        for name, listed in sizes.items():
            size = listed[min(i, len(listed) - 1)]
            has_axes = isinstance(dict(base.sizes)[name], tuple)
            case = case.with_size(name, (size,) if has_axes and isinstance(size, int) else size)
        found.append(case)
    return found


def elements(contract: Contract, case: Case) -> int:
    """The number of elements in the largest tensor of a case (0 if its sizes contradict each other)."""
    if case.sample is not None:
        return max((t.numel() for t in tree.tensors(list(sample_arguments(contract, case.sample)))), default=0)
    return max(elements_of_arguments(contract, case).values(), default=0)


def elements_of_arguments(contract: Contract, case: Case) -> dict[str, int]:
    """The number of elements of each tensor argument of a derived case; none if its sizes contradict each other."""
    tensors = [a for a in contract.signature.arguments if a.tensor]
    try:
        env = env_of(contract, case)
        return {argument.name: math.prod(shape_of(argument, env)) for argument in tensors}
    except CheckError:
        return {}


def has_lists(contract: Contract) -> bool:
    return any(a.kind is Kind.TENSOR_LIST for a in contract.signature.arguments)


# -- shrinking --------------------------------------------------------------------------------------


def smaller(contract: Contract, case: Case) -> Iterator[Case]:
    """Simpler neighbours of a case, for shrinking a failure: plain values and layout first, then smaller sizes."""
    if case.values:
        yield dataclasses.replace(case, values="")
    if case.scalars:
        yield dataclasses.replace(case, scalars="")
    if case.without:
        yield dataclasses.replace(case, without="")
    if case.options:
        yield dataclasses.replace(case, options=())
    if case.layout != "contiguous":
        yield dataclasses.replace(case, layout="contiguous")
    if has_lists(contract):
        yield from (dataclasses.replace(case, lists=count) for count in range(min(case.lists, 6)))
    if case.sample is not None:
        return  # its sizes are the author's
    if (plain := base_case(contract).dtypes) != case.dtypes:
        yield dataclasses.replace(case, dtypes=plain)
    for name, size in case.sizes:
        if isinstance(size, tuple):
            yield from (case.with_size(name, size[:i] + size[i + 1 :]) for i in range(len(size)))
            for i, part in enumerate(size):
                yield from (case.with_size(name, (*size[:i], s, *size[i + 1 :])) for s in _below(part))
        else:
            fitted = (admissible(contract, case.with_size(name, s), keep=[name]) for s in _below(size))
            yield from (c for c in fitted if c is not None and elements(contract, c) <= elements(contract, case))


def _below(size: int) -> Iterable[int]:
    return sorted({s for s in (*range(10), *_near_powers(size), size // 4, size // 2, size - 1) if 0 <= s < size})


def _near_powers(size: int) -> Iterator[int]:
    """Powers of two and what follows them, past which many kernels change their ways."""
    for exponent in range(4, size.bit_length()):
        yield from (1 << exponent, (1 << exponent) + 1)
