# ruff: noqa: E501  # tables of statements
"""Programs of loops over elements of integer arrays, drawn by Hypothesis, for Numba.

``python -m tests.backends.numba_jit.loops 300`` draws so many and counts those that are compiled and the same as NumPy on
three calls, refused, or silently different.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import opwright as ow
from tests.backends.numba_jit.counting import main
from tests.backends.numpy.programs import function_of, verdict_of_calls

_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
# x, y: arrays of 6 integers; n: a Python integer; i: a loop's index; s: numbers made so far.
_NUMBERS = (
    "x[i]", "y[i]", "x[i - 1]", "x[-1]", "n", "i", "2", "3", "100", "len(x)", "{s} + {s}", "{s} - {s}", "{s} * {s}", "{s} // 3",
    "{s} % 7", "{s} & {s}", "{s} | 5", "{s} ^ {s}", "{s} << 1", "{s} >> {s}", "-{s}", "~{s}", "abs({s})", "max({s}, {s})",
    "min({s}, 9)", "int({s})", "{s} ** 2", "(1 if {s} > {s} else 0)", "x.sum()", "np.int32(7)", "helper({s}, {s})", "x.max()",
    "np.sum(y)", "({s} > 3)", "x.shape[0]", "y.size",
)  # fmt: skip
_STATEMENTS = (
    "x[i] = {s}", "x[i] += {s}", "y[i] = {s} + y[i]", "x[i] -= 1", "x[i] = x[i] * 3", "x += 1", "y *= 2", "x[:] = y", "x[1:] = x[:-1]",
    "x[i] ^= y[i]", "if {s} > {s}:\n            x[i] = y[i]", "for q in range(3):\n            x[q] = x[q] + y[i]", "x[i] >>= 1",
    "y[i] //= 2", "x[i] = -x[i]", "for e in y:\n            x[i] = x[i] + e", "np.add(x, y, x)",
)  # fmt: skip


@st.composite
def loops(draw: Any) -> tuple[str, str, str]:
    """The text of a function of ``x, y, n``, and the dtypes of ``x`` and ``y``."""
    names: list[str] = []

    def number(depth: int) -> str:
        if names and draw(st.integers(0, 2)) == 0:
            return str(draw(st.sampled_from(names)))
        simple = tuple(each for each in _NUMBERS if "{" not in each)
        text = str(draw(st.sampled_from(simple if depth > 2 else _NUMBERS)))
        return filled(text, depth)

    def filled(text: str, depth: int) -> str:
        while "{s}" in text:
            text = text.replace("{s}", f"({number(depth + 1)})", 1)
        return text

    lines = []
    for k in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            lines.append(filled(str(draw(st.sampled_from(_STATEMENTS))), 0))
        else:
            lines.append(f"s{k} = {number(0)}")
            names.append(f"s{k}")
    made = "".join(f"np.full(1, {name}), " for name in names)
    body = "\n        ".join(lines)
    text = (
        "def helper(a, b):\n    return 1 if a + b > 3 else 0\n\n\n"
        f"def program(x, y, n):\n    for i in range(1, 6):\n        {body}\n    return {made}x + y, x[2]\n"
    )
    return text, draw(st.sampled_from(_DTYPES)), draw(st.sampled_from(_DTYPES))


def _arguments(call: int, left: str, right: str) -> tuple[Any, ...]:
    def array(dtype: str, seed: int) -> Any:
        generator, limits = np.random.default_rng(seed), np.iinfo(dtype)
        if call == 0:
            return generator.integers(0, 4, 6).astype(dtype)
        values = generator.integers(limits.min, limits.max, 6, dtype=dtype, endpoint=True)
        values[generator.integers(6)] = limits.max
        return values

    too_large = int(np.iinfo(left).max) + 1
    return array(left, 10 + call), array(right, 20 + call), (3, 0, too_large if too_large < 2**40 else -5)[call]


def verdict_of_a_loop(text: str, left: str, right: str) -> str:
    """``same``, ``raises as NumPy``, ``refused``, or ``silently different: …``."""
    function = function_of(text)
    compiled = ow.compile_numpy(compiler="numba", mode="compiled")(function)
    return verdict_of_calls(function, compiled, [_arguments(call, left, right) for call in range(3)])


if __name__ == "__main__":
    main(__doc__, loops(), lambda drawn: verdict_of_a_loop(*drawn))
