"""The search for sizes that fulfil conditions: what it finds, how much it evaluates, and what it proves."""

from __future__ import annotations

import itertools
import random

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.contract.definition.define import make_contract
from opwright.contract.inputs import arguments
from opwright.contract.inputs.arguments import env_of
from opwright.contract.inputs.cases import cases
from opwright.contract.inputs.sizes import elements
from opwright.contract.shapes import search
from opwright.contract.shapes.bounds import narrow, read_condition
from opwright.contract.shapes.relations import parse_relation
from opwright.contract.shapes.search import conflict, nearest
from tests.sampled import quick

UNRELATED = [f"{name} >= {i}" for i, name in enumerate("abcdefghij")] + [f"{name} <= 99" for name in "abcdefghij"]
# Sets of conditions that are hard to fulfil by trying sizes; each has a solution.
HARD = {
    "chunks": [
        "t <= c*l", "(c-1)*l < t", "c >= 1", "l >= 1", "t >= 1", "l % 8 == 0", "h % g == 0", "g >= 1",
        "d in (32, 64, 128)", "b >= 1", "h*d == e", "e <= 4096", "v == 2*e", "w == v + e", "s == t + q", "h % p == 0",
    ],
    "ascending": [f"x{i} < x{i + 1}" for i in range(20)],
    "divisors": [*(f"x{i + 1} % x{i} == 0" for i in range(10)), *(f"x{i} < x{i + 1}" for i in range(10))],
    "magic square": [
        "a+b+c == 15", "d+e+f == 15", "g+h+i == 15", "a+d+g == 15", "b+e+h == 15", "c+f+i == 15", "a+e+i == 15",
        "c+e+g == 15", *(f"{x} != {y}" for x, y in ("ab", "ac", "bc", "de", "df", "ef", "gh", "gi", "hi", "ae", "ai")),
    ],
    "remainders": ["n % 97 == 3", "n % 89 == 5", "n % 83 == 7", "m == n + 1"],
    "right triangle": ["a*a + b*b == c*c", "a >= 5", "b > a", "c % 5 == 0", "d == a*b", "e == d // 2", "e % 6 == 0"],
    "products": [
        "a*b*c == 4096", "a >= 2", "a < b", "b < c", "d*a == c", "e*d == 64*f", "f >= 1", "g == a+b+c", "h*h == a*b",
    ],
    "subset sum": [
        *(f"x{i} in (0, {n})" for i, n in enumerate((31, 57, 83, 112, 139, 171, 202, 255, 301, 377))),
        "+".join(f"x{i}" for i in range(10)) + " == 887",
    ],
    "choices": [
        "a == 2*b or a == 3*c", "b == c + 7 or b == 5*d", "c % 4 == 1", "d in (3, 5, 7)", "not (a < 50 and d < 6)",
        "e == max(a, b, c)", "f == min(a, b) + e", "g == abs(a - f)", "g % 3 == 0",
    ],
    "powers": ["2**a == b", "b*b == c", "c <= 65536", "a >= 3", "d**3 == b", "e == a**2"],
    "queens": [f"q{i} != q{j} and abs(q{i}-q{j}) != {i - j}" for i in range(6) for j in range(i)] + ["q0 <= 5"],
    "sums modulo": ["(a*b + c*d) % 97 == 5", "(a + b + c + d) % 89 == 3", "a % 4 == 1", "b % 3 == 2", "c > a", "d > b"],
    "convolution": [
        "i % g == 0", "o % g == 0", "g >= 1", "y == (h + 2*p - e*(k-1) - 1)//s + 1", "s >= 1", "e >= 1", "k >= 1",
        "x == (w + 2*p - e*(k-1) - 1)//s + 1", "h + 2*p >= e*(k-1) + 1", "w + 2*p >= e*(k-1) + 1", "y >= 1", "x >= 1",
        "k % 2 == 1", "p < k", "n >= 1", "i//g <= 64", "o >= i", "r == o//g", "s <= 3", "e <= 4",
    ],
}  # fmt: skip
# Sets without a solution, and those of their conditions that are needed for that.
INFEASIBLE = {
    "one condition": (["n > 5 and n < 3", "m >= 1"], {"n > 5 and n < 3"}),
    "one of many groups": ([*UNRELATED, "x < y", "y < x"], {"x < y", "y < x"}),
    "circle": ([*(f"x{i} < x{i + 1}" for i in range(19)), "x19 < x0"], None),
    "odd circle of two values": (
        [*(f"x{i} in (0, 1)" for i in range(7)), *(f"x{i} != x{(i + 1) % 7}" for i in range(7))], None,
    ),
    "five in four places": (
        [*(f"p{i} <= 3" for i in range(5)), *(f"p{i} != p{j}" for i in range(5) for j in range(i))], None,
    ),
    "even sum": (
        [*(f"x{i} in (0, {2 * n})" for i, n in enumerate((31, 57, 83, 112, 139, 171, 202, 255, 301, 377))),
         "+".join(f"x{i}" for i in range(10)) + " == 887"], None,
    ),
    "ranges that shorten each other for ever": (["a + 1 <= b", "b + 1 <= a", "c == a"], {"a + 1 <= b", "b + 1 <= a"}),
    "quotient": (["a // 8 == 3", "a % 8 == 2", "a > 26", "b == a"], {"a // 8 == 3", "a % 8 == 2", "a > 26"}),
}  # fmt: skip


@pytest.fixture
def steps(monkeypatch):
    """How often conditions were evaluated, and ranges were shortened."""
    search._solve.cache_clear()
    search._common_ranges.cache_clear()
    count = {"holds": 0, "shorten": 0}
    for name in count:
        original = getattr(search, name)

        def counted(*arguments, name=name, original=original):
            count[name] += 1
            return original(*arguments)

        monkeypatch.setattr(search, name, counted)
    return count


def read(texts):
    return [parse_relation(text) for text in texts]


def names_in(relations):
    return sorted({name for r in relations for name in r.names})


@pytest.mark.parametrize("texts", quick(HARD.values(), every=3), ids=HARD)
def test_hard_sets_have_sizes(texts, steps):
    relations = read(texts)
    assert conflict(relations) == []
    assert steps["holds"] < 2500
    assert steps["shorten"] < 1000
    names = names_in(relations)
    base = nearest(relations, {name: (5, 7, 3, 6, 4, 11, 13)[i % 7] for i, name in enumerate(names)})
    assert all(r.holds(base) for r in relations)
    for name, size in itertools.product(names, (0, 1, 33, 1024, 300_007)):
        found = nearest(relations, {**base, name: size})
        assert all(r.holds(found) for r in relations)
        kept = nearest(relations, {**base, name: size}, [name])
        assert kept is None or (kept[name] == size and all(r.holds(kept) for r in relations))
    searches = 10 * len(names)
    assert steps["holds"] < 4000 * (searches + 1)
    assert steps["shorten"] < 500 * (searches + 1)


@pytest.mark.parametrize(("texts", "needed"), INFEASIBLE.values(), ids=INFEASIBLE)
def test_sets_without_sizes(texts, needed, steps):
    found = {r.text for r in conflict(read(texts))}
    assert found == (set(texts) if needed is None else needed)
    assert steps["holds"] < 40_000
    assert steps["shorten"] < 8_000


def test_the_error_names_only_conditions_that_contradict_each_other(namespace):
    def function(x: Float[Tensor, "a b c d e f"]) -> Float[Tensor, "a b c d e f"]:
        return x

    where = [*(f"{name} >= 1" for name in "abcdef"), "a*b == c", "c < b", "d % 8 == 0"]
    with pytest.raises(ow.errors.ContractError) as error:
        ow.op(f"{namespace}::f", where=where)(function)
    assert "no sizes were found for which a >= 1 and a*b == c and c < b" in str(error.value)
    assert "remove or change one of them" in str(error.value)
    assert "d % 8" not in str(error.value)
    with pytest.raises(ow.errors.ContractError, match=r"no sizes were found for which a > 5 and a < 3\n  → change it"):
        ow.op(f"{namespace}::f", where="a > 5 and a < 3")(function)


def test_unrelated_conditions_are_solved_apart(steps):
    """Six such conditions took seconds before the first case, nine half a minute."""

    def rope(
        q: Float[Tensor, "b hq s d"], k: Float[Tensor, "b hk s d"], angles: Float[Tensor, "s d//2"]
    ) -> Float[Tensor, "b hq s d"]:
        return q

    where = [
        "d % 2 == 0", "d >= 2", "hq >= 1", "hk >= 1", "s >= 1", "b >= 1", "d <= 128", "hq <= 64", "hk <= 64",
        "b <= 4096", "s <= 9999", "hq != 63", "hk != 62", "s != 61", "b != 60", "d != 58", "hq != 57", "hk != 56",
        "s != 55", "b != 54",
    ]  # fmt: skip
    found = cases(make_contract("search::rope", rope, {}, where=where), "quick")
    assert steps["holds"] < 4000
    assert steps["shorten"] < 1000
    sizes = [dict(c.sizes) for c in found]
    assert {s["hq"] for s in sizes} >= {1, 2, 3, 7, 8, 9, 31, 32, 33, 64}
    assert {s["d"] for s in sizes} >= {2, 8, 22, 32, 52, 64, 128}
    assert {s["s"] for s in sizes} >= {1, 128, 129, 1023, 1024, 1025, 4096}
    assert all(parse_relation(text).holds(s) for text in where for s in sizes)


def test_conditions_are_evaluated_once_for_the_sizes_of_a_case(monkeypatch):
    """They were evaluated for each argument, by an interpreter of ours: twenty bounds took 12 seconds."""
    names = [f"x{i}" for i in range(20)]
    parameters = ", ".join(f'{name}: Float[Tensor, "{name}"]' for name in names)
    scope = {"Float": Float, "Tensor": Tensor}
    exec(f"def f({parameters}) -> Float[Tensor, 'x0']: return x0", scope)
    where = [f"{name} >= {i % 3}" for i, name in enumerate(names)]
    contract = make_contract("search::many", scope["f"], scope, where=where)
    found = cases(contract, "quick")
    assert {dict(c.sizes)["x2"] for c in found} >= {2, 3, 7, 8, 9, 1023, 1024, 1025, 4096}
    known: list[dict[str, int]] = []
    monkeypatch.setattr(arguments, "broken_by", lambda env, relations: known.append(env))
    assert all(elements(contract, case) for case in found if 0 not in dict(case.sizes).values())
    assert len(known) <= len(found)
    monkeypatch.undo()
    with pytest.raises(ow.errors.CheckError, match="do not satisfy x1 >= 1"):
        env_of(contract, found[0].with_size("x1", 0))


def test_sizes_that_stay_do_not_join_conditions(steps):
    relations = read([*(f"x{i} < n" for i in range(15)), "n % 4 == 0"])
    wanted = {**{f"x{i}": 3 + i for i in range(15)}, "n": 8}
    found = nearest(relations, wanted, ["n"])
    assert found == {**{f"x{i}": min(3 + i, 7) for i in range(15)}, "n": 8}
    assert steps["holds"] + steps["shorten"] < 1000


@pytest.mark.parametrize(
    ("texts", "wanted", "keep", "expected"),
    [
        (["t <= c*l", "(c-1)*l < t"], {"t": 100, "c": 5, "l": 8}, ["t", "l"], {"t": 100, "c": 13, "l": 8}),
        (["m == n*k + 1"], {"m": 5, "n": 7, "k": 6}, ["n", "k"], {"m": 43, "n": 7, "k": 6}),
        (["n % 24 == 7", "n > 100"], {"n": 90}, [], {"n": 103}),
        (["2**k == n", "n <= 1000"], {"k": 20, "n": 1000}, [], {"k": 9, "n": 512}),
        (["k >= -3", "k <= n"], {"k": -5, "n": 2}, [], {"k": -3, "n": 2}),
        (["min*max == n"], {"min": 3, "max": 5, "n": 1}, ["min", "max"], {"min": 3, "max": 5, "n": 15}),
        (["min(max, 4) == n"], {"max": 9, "n": 1}, ["max"], {"max": 9, "n": 4}),
        (["2**(n - 5) < 1"], {"n": 9}, [], {"n": 4}),
        (["n**m <= 2**64"], {"n": 300_007, "m": 300_007}, ["m"], {"n": 1, "m": 300_007}),
    ],
)
def test_sizes_that_follow_from_others(texts, wanted, keep, expected):
    assert nearest(read(texts), wanted, keep) == expected


@pytest.mark.slow
def test_narrowing_removes_no_solution():
    """Random conditions, compared with all sizes from 0 to 6."""
    generator = random.Random(0)
    for _ in range(1500):
        relation = parse_relation(_drawn_condition(generator))
        names = sorted(relation.names)
        ranges = {name: tuple(sorted(generator.choices(range(7), k=2))) for name in names}
        within = itertools.product(*(range(low, high + 1) for low, high in ranges.values()))
        solutions = [s for values in within if search.holds(relation, s := dict(zip(names, values, strict=True)))]
        assert all(relation.holds(s) for s in solutions)
        shortened = dict(ranges)
        possible = narrow(read_condition(relation.condition), shortened)
        assert possible or not solutions, relation
        for solution in solutions:
            assert all(shortened[n][0] <= size <= shortened[n][1] for n, size in solution.items()), relation


def test_read_conditions_allow_what_holds_at_points():
    generator = random.Random(1)
    for _ in range(500):
        relation = parse_relation(_drawn_condition(generator))
        point = {name: generator.randrange(7) for name in relation.names}
        allowed = narrow(read_condition(relation.condition), {n: (s, s) for n, s in point.items()})
        assert allowed or not search.holds(relation, point), (relation, point)


def _drawn_expression(generator: random.Random, depth: int) -> str:
    if depth == 0 or generator.random() < 0.3:
        return generator.choice(["a", "b", "c", "1", "2", "3", "5"])
    left, right = (_drawn_expression(generator, depth - 1) for _ in range(2))
    form = generator.choice(
        ["({}+{})", "({}-{})", "({}*{})", "({}//{})", "({}%{})", "min({}, {})", "max({}, {})", "abs({}-{})"]
    )
    return (
        f"(-{left})"
        if generator.random() < 0.1
        else f"({left}**2)"
        if generator.random() < 0.1
        else form.format(left, right)
    )


def _drawn_condition(generator: random.Random) -> str:
    sides = [_drawn_expression(generator, 2) for _ in range(4)]
    compared = [f"{a} {generator.choice(['==', '!=', '<', '<=', '>', '>='])} {b}" for a, b in (sides[:2], sides[2:])]
    form = generator.choice(
        ["{0}", "{0} and {1}", "{0} or {1}", "not ({0})", "not ({0} and {1})", "{2} in ({3}, 4)", "{2} not in (2, {3})"]
    )
    return "a >= 0 and " + f"({form.format(*compared, sides[0], sides[3])})"
