"""Searches for the sizes closest to wanted ones that fulfil the conditions of a contract.

Conditions without a common name are solved apart. Within a group, each chosen size shortens the ranges of the others,
and a condition is evaluated as soon as all of its names but one are known. The search continues for a while after the
first solution, for a closer one, and ends after a fixed number of steps.
"""

from __future__ import annotations

import ast
import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from opwright.contract.shapes.bounds import Condition, Range, Ranges, narrow, read_condition
from opwright.contract.shapes.relations import Relation
from opwright.errors import ContractError

__all__ = ["broken_by", "conflict", "nearest", "refuse_conflict"]

# No size is larger.
_LARGEST = 1 << 62
# Steps of a search: evaluations of conditions, and ranges that are shortened, each of which takes as long as several.
_OF_A_RANGE = 20
_STEPS, _MORE_STEPS, _STEPS_OF_DEFAULT = 6_000, 1_500, 400_000
# Neighbours of a size that are tried if none of the usual candidates is possible.
_NEIGHBOURS = 512
# The sizes that a contract is defined with.
_DEFAULT = 4

# A power of more bits is computed for no test input.
_MOST_BITS = 4096
_ONE_ARGUMENT = ast.arguments(posonlyargs=[], args=[ast.arg("sizes")], kwonlyargs=[], kw_defaults=[], defaults=[])

Sizes = tuple[tuple[str, int], ...]


def nearest(
    relations: Sequence[Relation], wanted: Mapping[str, int], keep: Collection[str] = ()
) -> dict[str, int] | None:
    """The sizes closest to the wanted ones that satisfy the relations; None if none are found.

    Relations with names that are not in ``wanted`` are ignored.

    Args:
        keep: names whose sizes must not change.
    """
    known = tuple(r for r in relations if r.names <= wanted.keys())
    found = dict(wanted)
    for group, names in _groups(known, frozenset(keep)):
        of_group = _solve(group, tuple((n, wanted[n]) for n in names), frozenset(n for n in names if n in keep))
        if of_group is None:
            return None
        found |= of_group
    return found


def conflict(relations: Sequence[Relation]) -> list[Relation]:
    """Relations for which no sizes were found, each of which is needed for that; empty if all have a solution."""

    def is_found(some: Sequence[Relation]) -> bool:
        return nearest(some, {name: _DEFAULT for r in some for name in r.names}) is not None

    needed = next((list(group) for group, _ in _groups(tuple(relations)) if not is_found(group)), [])
    for relation in tuple(needed):
        rest = [r for r in needed if r is not relation]
        if not is_found(rest):
            needed = rest
    return needed


def refuse_conflict(qualname: str, relations: Sequence[Relation]) -> None:
    """Raises ContractError if no sizes are found that fulfil the relations; it names those that exclude each other."""
    if needed := conflict(relations):
        raise ContractError(
            f"{qualname}: no sizes were found for which {' and '.join(map(str, needed))}",
            fix="remove or change one of them" if len(needed) > 1 else "change it",
        )


@lru_cache(maxsize=1024)
def _groups(
    relations: tuple[Relation, ...], keep: frozenset[str] = frozenset()
) -> tuple[tuple[tuple[Relation, ...], tuple[str, ...]], ...]:
    """The relations in groups without a common name, except for names whose sizes do not change; each with its names,
    sorted."""
    groups: list[tuple[set[str], list[Relation]]] = []
    for relation in relations:
        names, members = {n for n in relation.names if n not in keep}, [relation]
        for other in [g for g in groups if g[0] & names]:
            groups.remove(other)
            names, members = names | other[0], [*other[1], *members]
        groups.append((names, members))
    return tuple((tuple(members), tuple(sorted({n for r in members for n in r.names}))) for _, members in groups)


@lru_cache(maxsize=4096)
def _solve(relations: tuple[Relation, ...], wanted: Sizes, keep: frozenset[str]) -> dict[str, int] | None:
    sizes = dict(wanted)
    if all(holds(relation, sizes) for relation in relations):
        return sizes
    default = tuple((name, _DEFAULT) for name in sizes)
    is_default = wanted == default and not keep
    search = _Search(relations, sizes, keep, _STEPS_OF_DEFAULT if is_default else _STEPS)
    found = search.run()
    if found is None and not keep and not is_default:
        return _solve(relations, default, keep)  # farther from what is wanted, and better than none
    return found


class _Search:
    """A depth-first search, which starts anew with what it has learned if it finds nothing for long."""

    def __init__(
        self, relations: tuple[Relation, ...], wanted: dict[str, int], keep: frozenset[str], steps: int
    ) -> None:
        self.relations, self.wanted, self.keep, self.steps = relations, wanted, keep, steps
        self.of_name = {name: [r for r in relations if name in r.names] for name in wanted}
        self.candidates = {name: _candidates(name, wanted, self.of_name[name]) for name in wanted}
        # How often a relation left no size: names in such relations are chosen first.
        self.failures: Counter[Relation] = Counter()
        self.large = 4 * max(8, *wanted.values())
        self.best: tuple[float, dict[str, int]] | None = None

    def run(self) -> dict[str, int] | None:
        common = _common_ranges(self.relations, frozenset(n for n, size in self.wanted.items() if size < 0))
        if common is None or any(not common[n][0] <= self.wanted[n] <= common[n][1] for n in self.keep):
            return None
        start = {**common, **{n: (self.wanted[n], self.wanted[n]) for n in self.keep}}
        ranges = self._narrowed(start, [r for r in self.relations if r.names & self.keep])
        if ranges is None:
            return None
        self._change_one(common)
        if self.best is not None:
            if self.best[0] > 2:  # two changes may be less
                self.steps = _MORE_STEPS
                self._extend(ranges, {}, 0.0)
            return self.best[1]
        left, share = self.steps, self.steps // 8
        while left > 0:
            self.steps = min(share, left)
            left, share = left - share, 2 * share
            is_complete = self._extend(ranges, {}, 0.0)
            if self.best is not None:
                return self.best[1]
            if is_complete:  # of those candidates
                self.candidates = {
                    n: listed | set(_near(self.wanted[n], ranges[n])) for n, listed in self.candidates.items()
                }
        return None

    def _change_one(self, ranges: Ranges) -> None:
        """Change one size only, if that is enough."""
        unmet = [r.names for r in self.relations if not holds(r, self.wanted)]
        for name in sorted(frozenset.intersection(*unmet) - self.keep):
            others = {n: size for n, size in self.wanted.items() if n != name}
            within = {**{n: (size, size) for n, size in others.items()}, name: ranges[name]}
            if all(shorten(r, within) for r in self.of_name[name]):
                self.steps -= _OF_A_RANGE * len(self.of_name[name])
                size = next(self._possible(name, within, others), None)
                if size is not None and (self.best is None or self._cost(name, size) <= self.best[0]):
                    self.best = (self._cost(name, size), {**others, name: size})

    def _cost(self, name: str, size: int) -> float:
        """The distance from what is wanted; more for sizes past all wanted ones, as large cases are left out."""
        return _distance(size, self.wanted[name]) + max(0.0, math.log2(max(size, 1) / self.large))

    def _extend(self, ranges: Ranges, chosen: dict[str, int], cost: float) -> bool:
        """Choose the sizes that are not known yet; False if the steps end before every candidate is tried."""
        rest = [name for name in self.wanted if name not in chosen]
        if not rest:
            self.steps = _MORE_STEPS if self.best is None else self.steps
            self.best = (cost, chosen)
            return True
        name = min(rest, key=lambda n: self._urgency(n, ranges))
        others = sum(_least_distance(ranges[n], self.wanted[n]) for n in rest if n != name)
        for size in self._possible(name, ranges, chosen):
            if self.steps <= 0:
                return False
            new = cost + self._cost(name, size)
            if self.best is not None and new + others >= self.best[0] - 1e-9:
                return True
            known = {**chosen, name: size}
            narrowed = self._narrowed(
                {**ranges, name: (size, size)}, [r for r in self.of_name[name] if not r.names <= known.keys()]
            )
            if narrowed is not None and not self._extend(narrowed, known, new):
                return False
        return True

    def _urgency(self, name: str, ranges: Ranges) -> tuple[float, str]:
        """Names with few possible sizes first, and those in relations that failed often."""
        low, high = ranges[name]
        return math.log2(high - low + 1) / sum(1 + self.failures[r] for r in self.of_name[name]), name

    def _narrowed(self, ranges: Ranges, changed: Sequence[Relation]) -> Ranges | None:
        """The ranges that the relations leave, if those of ``changed`` are new; None if they leave nothing."""
        count, failed = _shorten_all(ranges, self.relations, changed)
        self.steps -= _OF_A_RANGE * count
        if failed is None:
            return ranges
        self.failures[failed] += 1
        return None

    def _possible(self, name: str, ranges: Ranges, chosen: Mapping[str, int]) -> Iterator[int]:
        """The candidates of a name, nearest first; if there are none, others that conditions on it alone allow."""
        low, high = ranges[name]
        start = min(max(self.wanted[name], low), high)
        known = [r for r in self.of_name[name] if r.names <= chosen.keys() | {name}]
        sizes = dict(chosen)

        def allows(size: int) -> bool:
            sizes[name] = size
            self.steps -= len(known)
            return all(holds(relation, sizes) for relation in known)

        listed = {s for s in self.candidates[name] if low <= s <= high} | {start}
        listed |= {end for end in (low, high) if abs(end) < _LARGEST}
        found = False
        for size in sorted(listed, key=lambda size: (self._cost(name, size), size)):
            if allows(size):
                found = True
                yield size
        if not found:
            more = itertools.chain(
                _near(start, (low, high), _NEIGHBOURS), self._sieved(name, known, ranges[name], sizes)
            )
            yield from itertools.islice((size for size in more if allows(size)), 2)
            self.failures.update(known[-1:])

    def _sieved(self, name: str, relations: Sequence[Relation], within: Range, sizes: dict[str, int]) -> Iterator[int]:
        """A size that may fulfil conditions such as ``"n % 97 == 3"`` together: the first for one condition, then, in
        steps as long as its period, the first for the next one."""
        at, step = max(within[0], min(self.wanted[name], within[1])), 1
        for relation in relations:
            hits: list[int] = []
            for size in range(at, min(within[1], at + _NEIGHBOURS * step) + 1, step):
                sizes[name] = size
                self.steps -= 1
                if holds(relation, sizes):
                    hits.append(size)
                    if len(hits) == 2:
                        break
            if not hits:
                return
            at, step = hits[0], hits[-1] - hits[0] or step
        yield at


@lru_cache(maxsize=256)
def _common_ranges(relations: tuple[Relation, ...], negative: frozenset[str]) -> Ranges | None:
    """The ranges that relations leave whatever is wanted; None if they leave nothing."""
    names = {name for r in relations for name in r.names}
    ranges = {name: (-_LARGEST if name in negative else 0, _LARGEST) for name in names}
    _, failed = _shorten_all(ranges, relations, relations)
    return ranges if failed is None else None


def _shorten_all(
    ranges: Ranges, relations: Sequence[Relation], changed: Sequence[Relation]
) -> tuple[int, Relation | None]:
    """Shorten ranges until none changes: how often that was tried, and the relation that leaves nothing."""
    waiting, most = list(changed), 4 * len(relations) + 4  # two ranges may shorten each other for ever
    for count in range(most):
        if not waiting:
            return count, None
        relation = waiting.pop(0)
        before = [(n, ranges[n]) for n in relation.names]
        if not shorten(relation, ranges):
            return count + 1, relation
        new = {n for n, old in before if ranges[n] != old}
        if new:
            waiting += (r for r in relations if r is not relation and r.names & new and r not in waiting)
    return most, None


def holds(relation: Relation, sizes: Mapping[str, int]) -> bool:
    """Whether a relation holds for sizes that are numbers; not if a power in it is very large."""
    return _compiled(relation)(sizes)


def broken_by(sizes: Mapping[str, Any], relations: Sequence[Relation]) -> Relation | None:
    """The first relation that does not hold for sizes that are numbers, among those whose names are all known."""
    return next((r for r in relations if r.names <= sizes.keys() and not _compiled(r)(sizes)), None)


def shorten(relation: Relation, ranges: Ranges) -> bool:
    """Shorten the ranges to what a relation allows; False if it allows nothing."""
    return narrow(_read(relation), ranges)


def _near(size: int, within: Range, count: int = 32) -> Iterator[int]:
    """The numbers of a range that are nearest to one of them, on both sides."""
    yield size
    for away in range(1, count + 1):
        yield from (s for s in (size - away, size + away) if within[0] <= s <= within[1])


def _candidates(name: str, sizes: Mapping[str, int], own: Sequence[Relation]) -> set[int]:
    """Sizes that may satisfy a relation: the numbers in it, its other sizes, and multiples and parts of these."""
    units = {n for r in own for n in r.numbers if n > 0} | {sizes[n] for r in own for n in r.names if sizes[n] > 0}
    found = {sizes[name], *range(9)}
    for unit in units:
        nearby = sizes[name] // unit
        found |= {unit * factor for factor in (1, 2, 3, 4, 8, nearby, nearby + 1)}
        found |= {unit // factor for factor in (2, 3, 4, 8)}
        found |= {unit - 1, unit + 1}
    return {size for size in found if size >= 0}


def _least_distance(within: Range, wanted: int) -> float:
    return _distance(min(max(wanted, within[0]), within[1]), wanted)


def _distance(size: int, wanted: int) -> float:
    """How far a size is from the wanted one: by its ratio, with a step for any change."""
    return 0.0 if size == wanted else 1.0 + abs(math.log2((max(size, 0) + 1) / (max(wanted, 0) + 1)))


# -- reading relations ------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _read(relation: Relation) -> Condition:
    return read_condition(relation.condition)


class _Compilable(ast.NodeTransformer):
    """A condition on ``sizes``, in which functions and sizes may have the same name."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Subscript(ast.Name("sizes", ast.Load()), ast.Constant(node.id), ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return ast.Call(node.func, [self.visit(a) for a in node.args], [])

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Pow):
            return ast.Call(ast.Name("power", ast.Load()), [left, right], [])
        return ast.BinOp(left, node.op, right)


def _power(base: int, exponent: int) -> Any:
    if abs(base) > 1 and exponent * base.bit_length() > _MOST_BITS:
        raise OverflowError
    return base**exponent


@lru_cache(maxsize=1024)
def _compiled(relation: Relation) -> Callable[[Mapping[str, int]], bool]:
    body = _Compilable().visit(copy.deepcopy(relation.condition))
    function = ast.Expression(ast.Lambda(_ONE_ARGUMENT, body))
    known = {"__builtins__": {}, "min": min, "max": max, "abs": abs, "power": _power}
    evaluated = eval(compile(ast.fix_missing_locations(function), "<condition>", "eval"), known)

    def holds(sizes: Mapping[str, int]) -> bool:
        try:
            return bool(evaluated(sizes))
        except (ZeroDivisionError, OverflowError):
            return False

    return holds
