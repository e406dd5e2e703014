# ruff: noqa: E501  # tables of statements
"""Programs of Python's and NumPy's numbers, drawn by Hypothesis, for Numba: large integers, divisions, functions of math.

``python -m tests.backends.numba_jit.scalars 300`` draws so many and counts those that are compiled and the same as NumPy on
five calls, refused, or silently different.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

import opwright as ow
from tests.backends.numba_jit.counting import main
from tests.backends.numpy.programs import function_of, verdict_of_calls

# a, n: Python integers; u, v: Python floats; x: four floats; k: four int64; i: a loop's index.
_INTEGERS = (
    "a", "n", "i", "2", "3", "1000003", "0x7FFFFFFF", "len(x)", "{i} + {i}", "{i} - {i}", "{i} * {i}", "{i} // {i}", "{i} % {i}",
    "{i} ** 2", "{i} ** n", "-{i}", "abs({i})", "{i} & {i}", "{i} ^ {i}", "{i} << 3", "max({i}, {i})", "int({f})", "round({f})",
    "math.floor({f})", "(1 if {f} > {f} else {i})", "helper({i}, {i})", "divmod({i}, {i})[1]",
)  # fmt: skip
_FLOATS = (
    "u", "v", "0.5", "0.0", "1e200", "{f} + {f}", "{f} - {f}", "{f} * {f}", "{f} / {f}", "{i} / {i}", "{f} / {i}", "{f} // {f}", "{f} % {f}",
    "{f} ** 2", "{f} ** {f}", "abs({f})", "float({i})", "math.sqrt({f})", "math.log({f})", "math.exp({f})", "math.sin({f})",
    "math.pow({f}, {f})", "math.atan2({f}, {f})", "x[i]", "x.sum()", "np.sqrt({f})", "np.float64({f})", "max({f}, {f})", "{f} * {i}",
    "math.fmod({f}, {f})", "math.hypot({f}, {f})",
)  # fmt: skip
_STATEMENTS = (
    "x[i] = {f}", "x[i] += {f}", "k[i] = {i}", "k[i] += {i}", "k[i] = {f}", "x[i] /= {f}", "k[i] = k[i] * k[i]", "a = a * {i}", "a += {i}",
    "a, n = n, a + n", "u = u * {f}", "v = v / {f}", "if {f} > {f}:\n            a = {i}", "for q in range(3):\n            a = a * 3 + q",
    "while a > 10:\n            a = a // 2", "for e in x:\n            u += e", "u = x[i] / {f}", "a = a * i", "n -= 1",
)  # fmt: skip


@st.composite
def programs(draw: Any) -> str:
    """The text of a function of ``a, n, u, v, x, k``."""

    def number(kind: str, depth: int) -> str:
        table = _INTEGERS if kind == "i" else _FLOATS
        simple = tuple(each for each in table if "{" not in each)
        return filled(str(draw(st.sampled_from(simple if depth > 2 else table))), depth)

    def filled(text: str, depth: int) -> str:
        while "{" in text:
            at = text.index("{")
            text = f"{text[:at]}({number(text[at + 1], depth + 1)}){text[at + 3 :]}"
        return text

    lines = [filled(str(draw(st.sampled_from(_STATEMENTS))), 0) for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        body = "    for i in range(4):\n        " + "\n        ".join(lines)
    else:
        body = f"    i = {draw(st.integers(0, 3))}\n    if True:\n        " + "\n        ".join(lines)
    return (
        "import math\n\n\ndef helper(p, q):\n    return p * q + 1\n\n\n"
        f"def program(a, n, u, v, x, k):\n{body}\n    return a, n, u, v\n"
    )


_CALLS = [
    (5, 3, 1.5, 2.5, [1.0, 2.0, 0.5, 3.0], [1, 2, 3, 4]),
    (0, 0, 0.0, -1.0, [0.0, -1.0, 0.5, 0.0], [0, -1, 2, 0]),
    (2**40, 70, 1e300, 1e-300, [1e300, -1e300, 1e-300, 0.0], [2**62, -(2**63), 2**63 - 1, 0]),
    (-(2**30), 41, math.inf, math.nan, [math.nan, math.inf, -math.inf, 1.0], [2**32, 7, -5, 1]),
    (2**62, -2, -0.0, 1e19, [-0.0, 9.3e18, -9.3e18, 0.25], [-1, 1, 2**53 + 1, 3]),
]


def _arguments(call: int) -> tuple[Any, ...]:
    *numbers, x, k = _CALLS[call]
    return (*numbers, np.array(x), np.array(k))


def verdict_of_numbers(text: str) -> str:
    """``same``, ``raises as NumPy``, ``refused``, or ``silently different: …``; each later call of compiled code alone."""
    worst = "same"
    for later in range(1, len(_CALLS)):
        function = function_of(text)
        compiled = ow.compile_numpy(compiler="numba", mode="compiled")(function)
        found = verdict_of_calls(function, compiled, [_arguments(0), _arguments(later)])
        if found.startswith(("silently", "refused by")):
            return f"{found} (call {later})"
        worst = found if found != "same" else worst
        if found == "refused":
            break
    return worst


if __name__ == "__main__":
    main(__doc__, programs(), verdict_of_numbers)
