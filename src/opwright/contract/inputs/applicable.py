"""Finds sizes that an operator takes, where only trying tells: a kernel's ``when``, a reference that raises."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from opwright.contract.contract import Contract
from opwright.contract.inputs.case import SCALARS, Case, Size
from opwright.contract.inputs.layouts import layouts_of
from opwright.contract.inputs.sizes import admissible, elements, sizes_of, varied

__all__ = ["Admits", "Reach", "find_reach", "usual_reach"]

# Whether the kernel is applicable and the reference defined.
Admits = Callable[[Case], bool]

# Sizes that are tried where few of the usual ones are taken: multiples of what tiles, vectors and heads have.
_STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 160, 192, 200, 240, 256,
          384, 512, 640, 768, 1000, 1024, 1152, 2048, 2304, 4096, 66_048, 264_192)  # fmt: skip
_ALIKE = (16, 32, 64, 128, 8, 4, 2, 1, 256, 6, 12, 24, 48, 96, 512, 3, 9, 1024)
_FEW, _MANY = (1, 2, 3, 4), (8, 16, 32, 64, 128, 256)
_TRIES = 2000
# With fewer sizes of a dim alone, it is varied together with others; no more than so many are needed.
_ENOUGH, _MOST_SIZES = 4, 16
# The sizes of a base, if they are taken.
_DIFFERENT, _SMALL = (5, 7, 3, 6, 4, 11, 13), (2, 8, 12, 16, 24, 32, 48, 64, 1)
# What is tried first for a dim; if one of these is not taken, all are tried.
_PROBES = (1, 7, 33, 129)
_MOST_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Reach:
    """The sizes of an operator that cases have.

    Attributes:
        base: a case that it takes, if one is known.
        sizes: for dims that are varied, together if there are several, the sizes.
        is_known: whether ``sizes`` are all taken; else they are the usual ones, some of which may not be.
    """

    base: Case
    sizes: tuple[tuple[tuple[str, ...], tuple[Size, ...]], ...]
    is_known: bool = False


def usual_reach(base: Case, level: str, longest: int) -> Reach:
    """Each dim alone, with the sizes of a level."""
    return Reach(base, tuple(((name,), tuple(sizes_of(size, level, longest))) for name, size in base.sizes))


def find_reach(
    contract: Contract, level: str, bases: Sequence[Case], admits: Admits, longest: int, own: Iterable[Case]
) -> Reach:
    """The usual sizes if they are taken, else others that are.

    Args:
        bases: the base case in each combination of dtypes.
        own: cases with sizes that the author stated.
    """
    if not bases:
        raise ValueError("there is no dtype to check")
    asked = functools.cache(lambda case: elements(contract, case) <= _MOST_ELEMENTS * 2 and admits(case))
    base = next(filter(asked, _homes(contract, bases)), None)
    if base is None:
        base = next(filter(asked, _candidates(contract, bases, own)), None)
        if base is None:
            return usual_reach(bases[0], level, longest)
        base = _small(contract, base, asked)
    usual = usual_reach(base, level, longest)
    if all(_takes_probes(contract, base, names, asked) for names, _ in usual.sizes):
        return usual
    found = [_of_dim(contract, base, name, level, longest, asked) for name, _ in base.sizes]
    return Reach(base, tuple(dict.fromkeys(f for f in found if f is not None)), is_known=True)


def _homes(contract: Contract, bases: Sequence[Case]) -> Iterator[Case]:
    """The base with other dtypes, layouts and numbers, any of which a kernel may require."""
    yield from bases
    for layout in layouts_of(contract)[1:]:
        yield dataclasses.replace(bases[0], layout=layout)
    for scalars in SCALARS:
        yield from (dataclasses.replace(base, scalars=scalars) for base in bases)


def _candidates(contract: Contract, bases: Sequence[Case], own: Iterable[Case]) -> Iterator[Case]:
    """Cases with other sizes: the author's, all sizes alike, then drawn ones, some of them products of others."""
    yield from own
    starts = [b for base in bases[:4] for b in (base, dataclasses.replace(base, scalars="default"))]
    for base, size in itertools.product(starts, _ALIKE):
        yield from _admissible(contract, _with_all(base, [size] * len(base.sizes)))
    generator = random.Random(0)  # not for cryptography
    for start in itertools.islice(itertools.cycle(starts), _TRIES):
        drawn = [generator.choice(_FEW if generator.random() < 0.4 else _MANY) for _ in start.sizes]
        if len(drawn) > 1 and generator.random() < 0.4:  # one is as another, or a multiple of it
            a, b = generator.sample(range(len(drawn)), 2)
            drawn[a] = drawn[b] * generator.choice((1, 1, 2, 3, 4, drawn[generator.randrange(len(drawn))]))
        yield from _admissible(contract, _with_all(start, drawn))


def _small(contract: Contract, base: Case, asked: Admits) -> Case:
    """A case with smaller and different sizes, if they are taken."""
    for number, (name, size) in enumerate(base.sizes):
        if isinstance(size, tuple):
            continue
        usual = [*_DIFFERENT[number % len(_DIFFERENT) :], *_DIFFERENT[: number % len(_DIFFERENT)]]
        for smaller in (s for s in (*usual, *_SMALL) if s < size):
            candidate = base.with_size(name, smaller)
            if candidate == admissible(contract, candidate) and asked(candidate):
                base = candidate
                break
    return base


def _admissible(contract: Contract, case: Case) -> Iterator[Case]:
    found = admissible(contract, case)
    if found is not None and elements(contract, found) <= _MOST_ELEMENTS:
        yield found


def _with_all(base: Case, sizes: Sequence[int]) -> Case:
    for (name, size), new in zip(base.sizes, sizes, strict=True):
        base = base.with_size(name, (2, new) if isinstance(size, tuple) else new)
    return base


def _takes_probes(contract: Contract, base: Case, names: tuple[str, ...], asked: Admits) -> bool:
    size = dict(base.sizes)[names[0]]
    probes: Iterable[Size] = [(p,) for p in _PROBES] if isinstance(size, tuple) else _PROBES
    return all(_is_taken(contract, base, names, probe, asked) for probe in probes)


def _is_taken(contract: Contract, base: Case, names: tuple[str, ...], size: Size, asked: Admits) -> bool:
    case = varied(contract, base, names, size)
    return case is not None and all(dict(case.sizes)[n] == size for n in names) and asked(case)


def _of_dim(
    contract: Contract, base: Case, name: str, level: str, longest: int, asked: Admits
) -> tuple[tuple[str, ...], tuple[Size, ...]] | None:
    """Sizes of a dim that are taken: alone, or together with others that have the same size or follow it."""
    size = dict(base.sizes)[name]
    usual = sizes_of(size, level, longest)
    taken: list[Size] = [s for s in usual if _is_taken(contract, base, (name,), s, asked)]
    if 2 * len(taken) >= len(usual):
        return (name,), tuple(taken)
    steps = [s for s in _STEPS if s <= longest]
    more: list[Size] = [*((s,) for s in steps), *((2, s) for s in steps), *((2, 3, s) for s in (4, 16, 64))]
    if not isinstance(size, tuple):
        more = [*steps]
    alone = _some(s for s in more if s not in taken and _is_taken(contract, base, (name,), s, asked))
    best: tuple[tuple[str, ...], list[Size]] = ((name,), [*taken, *alone])
    for names in _together(base, name) if len(best[1]) < _ENOUGH else ():
        found = _some(s for s in more if _is_taken(contract, base, names, s, asked))
        if len(found) > len(best[1]):
            best = (names, found)
    names, found = best
    if not found:
        return None
    if len(found) < _ENOUGH - 1:  # so few that the others are worth to be counted as skipped
        return (name,), tuple(dict.fromkeys([*usual, *best[1]])) if names == (name,) else (*usual,)
    return names, tuple(sorted(found, key=lambda s: (isinstance(s, tuple), s)))


def _some(found: Iterable[Size]) -> list[Size]:
    return list(itertools.islice(found, _MOST_SIZES))


def _together(base: Case, name: str) -> Iterator[tuple[str, ...]]:
    """Groups of dims that may have to be alike: those that are, in the base, and each two."""
    size = dict(base.sizes)[name]
    same = tuple(n for n, s in base.sizes if s == size)
    if len(same) > 1:
        yield same
    for other, s in base.sizes:
        if other != name and isinstance(s, tuple) == isinstance(size, tuple):
            yield (name, other)
