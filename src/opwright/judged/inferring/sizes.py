"""Which numbers the sizes of arguments show, and every size as an expression of these."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from opwright.judged.inferring.fitting import Observation, fit, fit_alone
from opwright.judged.inferring.reference_run import Run
from opwright.judged.shown import Shown

__all__ = ["divisors", "fitted", "multiples", "sizes_of"]

# Runs, each with the values of all numbers that may differ.
Runs = Sequence[tuple[Mapping[str, int], Run | None]]
# By number, the runs in which it alone has another value.
Tried = Mapping[str, Sequence[tuple[Mapping[str, int], Run]]]
Dims = list[tuple[str, ...]]

# What blocks of kernels have; and so many cases show that sizes are multiples of it.
_SMALLEST_BLOCK, _LARGEST_BLOCK, _SEVERAL = 32, 256, 2
# Elements of the smallest arguments: more take too long in a simulator.
_MOST_ELEMENTS = 1 << 20
_MULTIPLE = re.compile(r"(\d+)\*\w+([+-]\d+)?")


def fitted(own: Run, values_of_own: Mapping[str, int], tried: Tried, together: Runs = ()) -> tuple[list[Shown], Dims]:
    """The numbers whose values the sizes of the arguments show, and each size as an expression of what is shown.

    A number that changes a size, and that no size of an argument shows, is taken as fixed, and so is one that changes a
    size in a way that no expression has.
    """
    names = list(tried)
    while True:
        alone = {name: [(values_of_own, own), *tried[name]] for name in names}
        shown = _shown(own, alone)
        if len(shown) == len(names):
            runs = [(values_of_own, own), *(each for name in names for each in tried[name])]
            # A run of all numbers tells nothing if one of them is taken as fixed.
            runs += [(v, r) for v, r in together if r is not None and v.keys() == set(names)]
            dims = _dims(own, shown, runs)
            missing = {s.name for s in shown if not any(s.dim in each for each in dims[: len(own.tensors)])}
            if _unfit(own, dims):
                missing = {_to_fix(own, values_of_own, tried, shown)}
            elif not missing:
                return shown, [tuple(dim or "_" for dim in each) for each in dims]
            names = [name for name in names if name not in missing]
        else:
            names = [each.name for each in shown]


def sizes_of(shown: Sequence[Shown], values: Mapping[str, int]) -> dict[str, int]:
    """The sizes that show some values, by the names of dims."""
    return {each.dim: each.size(values[each.name]) for each in shown}


def multiples(shown: Sequence[Shown]) -> Iterator[str]:
    """The relations that hold because only some sizes stand for a value."""
    for each in shown:
        if found := _MULTIPLE.fullmatch(each.text):
            factor, more = int(found.group(1)), int(found.group(2) or 0)
            yield f"{each.dim} % {factor} == {more % factor}"
            if more > 0:
                yield f"{each.dim} > {more}"


def divisors(
    shown: Sequence[Shown], cases: Sequence[Mapping[str, int]], elements: Callable[[Mapping[str, int]], int | None]
) -> dict[str, int]:
    """By size, the power of two that divides it in each of several cases, if it is one that blocks of kernels have: a
    task that states its cases has no others. If the smallest such sizes make large arguments, those that are small in
    some case are left out.

    Args:
        elements: how many elements arguments have with some constants; None if the reference takes none such.
    """
    listed = [sizes_of(shown, case) for case in cases if {each.name for each in shown} <= case.keys()]
    if len({tuple(sizes.values()) for sizes in listed}) < _SEVERAL:
        return {}
    common = {each.dim: math.gcd(*(sizes[each.dim] for sizes in listed)) for each in shown}
    powers = {dim: min(number & -number, _LARGEST_BLOCK) for dim, number in common.items()}
    least = {dim: min(sizes[dim] for sizes in listed) for dim in powers}
    found = {dim: powers[dim] for dim in sorted(powers, key=least.__getitem__) if powers[dim] >= _SMALLEST_BLOCK}
    while found and (elements(_smallest(shown, found)) or 0) > _MOST_ELEMENTS:
        del found[next(iter(found))]
    return found


def _smallest(shown: Sequence[Shown], divisors: Mapping[str, int]) -> dict[str, int]:
    """The constants with the smallest sizes."""
    return {each.name: each.value(divisors.get(each.dim, 1), 1) or 1 for each in shown}


def _shown(own: Run, alone: Tried) -> list[Shown]:
    """How the arguments show each number: a size that is the number, or else one that grows with it, and with no number
    before it."""
    axes = [(i, axis) for i, shape in enumerate(own.shapes[: len(own.tensors)]) for axis in range(len(shape))]
    observed = {
        name: [[(values, run.shapes[i][axis]) for values, run in runs] for i, axis in axes]
        for name, runs in alone.items()
    }
    itself = {name for name, each in observed.items() if any(_is(name, observations) for observations in each)}
    found, taken = list[Shown](), set[int]()
    for name, each in observed.items():
        if name in itself:
            found.append(Shown(name, name))
            continue
        for at, observations in enumerate(each):
            text = fit_alone(observations, name) if at not in taken else None
            if text is not None:
                taken.add(at)
                found.append(Shown(name, text))
                break
    return found


def _is(name: str, observations: Sequence[Observation]) -> bool:
    return all(values[name] == size for values, size in observations)


def _dims(own: Run, shown: Sequence[Shown], runs: Sequence[tuple[Mapping[str, int], Run]]) -> Dims:
    """Each size as an expression; "" if there is none."""
    observed = [(sizes_of(shown, values), run) for values, run in runs]

    def one(i: int, axis: int) -> str:
        return fit([(values, run.shapes[i][axis]) for values, run in observed]) or ""

    return [tuple(one(i, axis) for axis in range(len(shape))) for i, shape in enumerate(own.shapes)]


def _unfit(own: Run, dims: Dims) -> int:
    """How many sizes of arguments have no expression."""
    return sum(dim == "" for each in dims[: len(own.tensors)] for dim in each)


def _to_fix(own: Run, values: Mapping[str, int], tried: Tried, shown: Sequence[Shown]) -> str:
    """The number without which the most sizes have an expression; the last of several."""

    def without(name: str) -> int:
        others = [each for each in shown if each.name != name]
        runs = [(values, own), *(each for other in others for each in tried[other.name])]
        return _unfit(own, _dims(own, others, runs))

    return min((each.name for each in reversed(shown)), key=without)
