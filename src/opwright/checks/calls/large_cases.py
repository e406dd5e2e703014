"""Cases of sizes that only a large GPU holds, for launchers that run on meta tensors, which have no memory.

Each dim grows while the others are 1, small, and past a tile; and each dim grows beside another one that is long.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opwright import tree
from opwright.contract.contract import Contract
from opwright.contract.inputs.arguments import arguments_of, env_of, shape_of
from opwright.contract.inputs.case import Case, Size
from opwright.contract.inputs.layouts import arrange
from opwright.contract.inputs.sizes import admissible, base_case, elements
from opwright.errors import CheckError

__all__ = ["MOST_BYTES", "Branch", "Series", "branches", "meta_arguments", "series_of"]

# A tensor has at most so many elements, so that x of a grid holds a block for each. All arguments together have at most
# so many bytes, as a large GPU holds.
_MOST_ELEMENTS, MOST_BYTES = (1 << 31) - 1, 64 << 30
# The lengths of a dim that grows: from the first that no y and z of a grid holds, to the longest that fits. Beside a
# long dim it begins where blocks of it are several.
_LENGTHS, _FEW_LENGTHS = (1 << 16, 1 << 19, 1 << 22, 1 << 25, 1 << 28), (1 << 16,)
_LONG, _LENGTHS_BESIDE_LONG = 1 << 17, (1 << 10,)
_EXPONENTS = range(10, 32)
# Each has series of its own, and takes its time.
_MOST_BRANCHES = 4
# Values are drawn for the first case of a branch only.
_MOST_DRAWN = 1 << 19
_SHAPES: tuple[Callable[[int], Size], ...] = (
    lambda length: (length,),
    lambda length: (3, length),
    lambda length: (length, 5),
    lambda length: (2, length, 3),
)


@dataclass(frozen=True)
class Branch:
    """Optional arguments and flags that a launcher may treat apart.

    Attributes:
        short: a case that the kernel takes, with dims of 1 if it takes them.
        wide: one whose dims are past a tile, if it takes them.
        like: the arguments of a case, for what does not follow from sizes.
    """

    short: Case
    wide: Case
    like: tuple[Any, ...]


@dataclass(frozen=True)
class Series:
    """Cases in which one dim grows.

    Attributes:
        name: of the dim.
        size: the dim's size, by its length: several axes, of dims such as ``*n``.
        lengths: those that are tried, in growing order.
    """

    contract: Contract
    base: Case
    name: str
    size: Callable[[int], Size]
    lengths: tuple[int, ...]

    def case(self, length: int) -> Case | None:
        """The case with a length, or with the nearest one that the contract allows; None if it allows none."""
        grown = self.base.with_size(self.name, self.size(length))
        return admissible(self.contract, grown, keep=[self.name]) or admissible(self.contract, grown)


def branches(
    contract: Contract,
    cases: Iterable[Case],
    dtypes: tuple[tuple[str, torch.dtype], ...],
    takes: Callable[[Case, Sequence[Any]], bool],
) -> Iterator[Branch]:
    """The branches of a launcher, as far as cases that a check runs have them.

    Args:
        dtypes: those of all cases.
        takes: whether the kernel takes a case, of which it gets the arguments on meta.
    """
    of_branch: dict[Any, list[Case]] = {}
    for case in [*cases, base_case(contract)]:
        is_usual = case.is_plain and case.sample is None and case.layout == "contiguous"
        if is_usual and 0 < elements(contract, case) <= _MOST_DRAWN:
            of_branch.setdefault(case.branch, []).append(dataclasses.replace(case, dtypes=dtypes))
    for found in list(of_branch.values())[:_MOST_BRANCHES]:
        branch = _branch(contract, list(dict.fromkeys(found)), takes)
        if branch is not None:
            yield branch


def _branch(contract: Contract, cases: list[Case], takes: Callable[[Case, Sequence[Any]], bool]) -> Branch | None:
    """Cases with dims of 1, with small and with large ones, among those that the kernel takes."""
    like: tuple[Any, ...] = ()

    def taken(case: Case) -> bool:
        arguments = meta_arguments(contract, case, like)
        return arguments is not None and takes(case, arguments)

    for first in cases:
        with contextlib.suppress(CheckError):  # no values of these sizes
            like = arguments_of(contract, first, "cpu")
            if taken(first):
                break
    else:
        return None
    ones = admissible(contract, _with_ones(first))
    wide = sorted(cases, key=_shortest, reverse=True)
    short = ones if ones is not None and taken(ones) else first
    return Branch(short, next(filter(taken, wide), first), like)


def _with_ones(case: Case) -> Case:
    sizes = ((name, tuple(1 for _ in size) if isinstance(size, tuple) else 1) for name, size in case.sizes)
    return dataclasses.replace(case, sizes=tuple(sizes))


def _shortest(case: Case) -> int:
    """The shortest dim of a case, by which one past a tile in each dim is found."""
    return min((min(size, default=0) if isinstance(size, tuple) else size for _, size in case.sizes), default=0)


def series_of(contract: Contract, branch: Branch) -> Iterator[Series]:
    """The series of a branch, those of the fewest elements first."""
    yield from _each_dim(contract, branch, branch.short, _LENGTHS)
    for long, size in branch.short.sizes:
        if isinstance(size, tuple):
            yield _growing(branch, Series(contract, branch.short, long, _beside_long, _LENGTHS_BESIDE_LONG))
            continue
        beside = admissible(contract, branch.short.with_size(long, _LONG))
        if beside is not None:
            for name in (n for n, s in beside.sizes if n != long and not isinstance(s, tuple)):
                yield _growing(branch, Series(contract, beside, name, _alone, _LENGTHS_BESIDE_LONG))
    for layout in ("contiguous", "padded", "transposed"):
        base = dataclasses.replace(branch.wide, layout=layout)
        yield from _each_dim(contract, branch, base, _FEW_LENGTHS)


def _each_dim(contract: Contract, branch: Branch, base: Case, lengths: tuple[int, ...]) -> Iterator[Series]:
    for name, size in base.sizes:
        for shape in _SHAPES if isinstance(size, tuple) else (_alone,):
            yield _growing(branch, Series(contract, base, name, shape, lengths))


def _alone(length: int) -> int:
    return length


def _beside_long(length: int) -> tuple[int, ...]:
    return (_LONG, length)


def _growing(branch: Branch, series: Series) -> Series:
    """A series with the lengths that fit, and the longest power of two that does."""

    def is_too_long(exponent: int) -> bool:
        case = series.case(1 << exponent)
        return case is None or _shapes(series.contract, case, branch.like) is None

    fitting = bisect.bisect_left(_EXPONENTS, True, key=is_too_long)
    longest = 1 << _EXPONENTS[fitting - 1] if fitting else 0
    lengths = sorted({*(n for n in series.lengths if n < longest), longest} - {0})
    return dataclasses.replace(series, lengths=tuple(lengths))


def meta_arguments(contract: Contract, case: Case, like: Sequence[Any]) -> list[Any] | None:
    """The arguments of a case, with tensors on meta; None if the case is too large, or impossible.

    Args:
        like: those of another case; numbers that are not sizes are taken from there.
    """
    shapes = _shapes(contract, case, like)
    if shapes is None:
        return None
    env, remaining = env_of(contract, case), iter(shapes)

    def on_meta(tensor: torch.Tensor, place: int) -> torch.Tensor:
        made = torch.empty(next(remaining), dtype=tensor.dtype, device="meta")
        return made if case.layout == "contiguous" else arrange(made, case.layout, "meta", place)

    found = []
    for place, (argument, value) in enumerate(zip(contract.signature.arguments, like, strict=True)):
        if argument.scalar_type is int and value is not None:
            found.append(env.get(argument.name, value))
        else:
            found.append(tree.map_tensors(functools.partial(on_meta, place=place), value))
    return found


def _shapes(contract: Contract, case: Case, like: Sequence[Any]) -> list[tuple[int, ...]] | None:
    """The shape of each tensor of a case; None if they are too large, or impossible."""
    try:
        env = env_of(contract, case)
        listed = [
            (shape_of(argument, env, index=i), tensor.dtype.itemsize)
            for argument, value in zip(contract.signature.arguments, like, strict=True)
            for i, tensor in enumerate(tree.tensors([value]))
        ]
    except CheckError:
        return None
    counts = [math.prod(shape) for shape, _ in listed]
    total = sum(count * itemsize for count, (_, itemsize) in zip(counts, listed, strict=True))
    # An empty tensor stands for no launch, and the nearest size to 1 that a contract allows may be 0.
    fits = bool(counts) and min(counts) > 0 and max(counts) <= _MOST_ELEMENTS and total <= MOST_BYTES
    return [shape for shape, _ in listed] if fits else None
