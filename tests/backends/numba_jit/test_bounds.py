"""How large integers become, in functions that Numba compiles: what surely has less than 64 bits is not tested."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import opwright as ow

pytest.importorskip("numba", reason="Numba is not installed")

LARGE = 2**40


def compiled(function: Any) -> Any:
    return ow.compile_numpy(compiler="numba", mode="compiled")(function)


def squares_a_float(u: Any) -> Any:
    return int(u) * int(u)


def squares_a_floored_float(u: Any) -> Any:
    return int(u // 1) * int(u // 1)


def squares_elements(x: Any) -> Any:
    total = 0
    for value in x:
        total += int(value) * int(value)
    return total


def squares_its_default(a: Any, n: Any = LARGE) -> Any:
    return n * n if a > 1 else a


def shifts(n: Any) -> Any:
    return (n << 20) << 20


def shifts_by(n: Any, k: Any) -> Any:
    return n << k


def squares_a_side(x: Any) -> Any:
    return x.shape[0] * x.shape[0]


def register(n: Any) -> Any:
    a = b = c = d = e = f = g = h = 1
    for _ in range(n):
        t = a + a
        a = b
        b = c
        c = d
        d = e
        e = f
        f = g
        g = h
        h = t
    return a


CASES = [
    (squares_a_float, (3.5,), (1e15,)),
    (squares_a_floored_float, (3.5,), (1e15,)),
    (squares_elements, (np.array([1.0, 2.0]),), (np.array([1e12]),)),
    (squares_elements, (np.array([1, 2]),), (np.array([2**40]),)),
    (squares_its_default, (1,), (2,)),
    (shifts, (1,), (2**30,)),
    (shifts_by, (1, 3), (1, 63)),
    (squares_a_side, (np.ones((3, 0)),), (np.ones((2**40, 0)),)),
    (register, (3,), (560,)),
]


@pytest.mark.parametrize(("function", "usual", "large"), CASES)
def test_integers_that_need_more_bits_are_pythons(function: Any, usual: Any, large: Any) -> None:
    fast = compiled(function)
    assert fast(*usual) == function(*usual)
    assert fast(*large) == function(*large)


def sums_neighbours(x: Any, height: Any, width: Any) -> Any:
    total = 0.0
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            at = i * width + j
            total += x[at - 1] + x[at + 1] + x[at - width] + x[at + width]
    return total


def counts(x: Any) -> Any:
    found = at = 0
    while at < len(x):
        if x[at] > 0:
            found += 1
        at += 2
    return found


def swaps(x: Any) -> Any:
    i, j = 0, len(x) - 1
    while i < j:
        x[i], x[j] = x[j], x[i]
        i += 1
        j -= 1
    return x


def draws(seed: Any, n: Any) -> Any:
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
    return seed


def remainders(a: Any, b: Any) -> Any:
    for _ in range(3):
        a = (a * 48271 + 11) % 2147483647
    return a + (math.floor(b) % 7) * 3


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (sums_neighbours, (np.ones(30), 5, 6)),
        (counts, (np.ones(9),)),
        (swaps, (np.arange(5.0),)),
        (draws, (1, 5)),
        (remainders, (3, 4)),
    ],
)
def test_indices_counts_and_remainders_need_no_tests(function: Any, arguments: Any) -> None:
    fast = compiled(function)
    fast(*arguments)
    assert fast._ways["numba"]._integers == "refused"  # compiled as it is


def test_each_statement_is_looked_at_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import types
    from numba.core.compiler import run_frontend
    from numba.core.ir_utils import build_definitions
    from numba.core.ssa import reconstruct_ssa

    from opwright.backends.numba_jit.bounds import Bounds
    from opwright.backends.numba_jit.origins import Origins

    def looks(statements: int) -> int:
        lines = [
            f"        if a{i % 50} > {i}:\n            a{i % 50} = a{(i + 1) % 50} + {i}" for i in range(statements)
        ]
        text = "def many(n):\n    " + " = ".join(f"a{i}" for i in range(50)) + " = n\n    for _ in range(n):\n"
        names: dict[str, Any] = {}
        exec(text + "\n".join(lines) + "\n    return a0\n", names)
        function = reconstruct_ssa(run_frontend(names["many"]))
        function._definitions = build_definitions(function.blocks)
        counted.clear()
        Bounds(function, Origins(function, is_helper=False), [types.int64], 1 << 31)
        return len(counted)

    counted: list[None] = []
    look = Bounds._of_value
    monkeypatch.setattr(Bounds, "_of_value", lambda self, value: counted.append(None) or look(self, value))
    assert 0 < looks(300) < 8 * looks(100)  # thrice as many statements; were it quadratic, nine times
