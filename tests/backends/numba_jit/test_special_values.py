"""Expressions that Numba compiles give NumPy's values for special values, or are refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import opwright as ow
from opwright.backends.numpy import numba_compiled
from tests.backends.numba_jit.special_values import CASES, verdict_of
from tests.sampled import quick, sampled

pytest.importorskip("numba", reason="Numba is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# Numba's own values are others, on any processor.
DIFFERENT = [
    ("np.sign(a)", "float64"), ("a ** 0.5", "float64"), ("np.remainder(a, b)", "float32"),
    ("np.divmod(a, b)", "float64"), ("np.clip(a, b, c) + 0", "float32"),
]  # fmt: skip
# They are others on some processors only, or end the process (the least integer divided by -1).
SOMETIMES_DIFFERENT = [("a ** -1", "float32"), ("a ** b[0]", "float64"), ("a // b", "int64")]
REFUSED = [
    ("np.fmod(a, b)", "int32"), ("np.left_shift(a, b)", "int64"), ("np.lcm(a, b)", "int64"),
    ("np.isclose(a, b)", "int64"), ("np.sign(a)", "complex128"), ("a.clip(b, 3)", "float64"),
]  # fmt: skip
SAME = [("np.sqrt(a)", "float64"), ("a % 3", "int64"), ("a ** 2", "float64"), ("np.fmod(a, b)", "float64")]


# Numba compiles each for a second.
@pytest.mark.parametrize(("expression", "dtype"), quick([*DIFFERENT, *SOMETIMES_DIFFERENT, *SAME], 1, 7, 8))
def test_they_are_numpys(expression: str, dtype: str) -> None:
    assert verdict_of(expression, dtype) == "same"


@pytest.mark.parametrize(("expression", "dtype"), quick(REFUSED, 0, 5))
def test_some_are_refused(expression: str, dtype: str) -> None:
    assert "gives something else than NumPy" in verdict_of(expression, dtype)


@pytest.mark.parametrize(("expression", "dtype"), quick(DIFFERENT, 0))
def test_without_these_rules_they_are_different(expression: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = functools.partial(numba_compiled.with_numba, integers="numba")
    monkeypatch.setattr(numba_compiled, "with_numba", lambda *a, **k: plain(*a))
    assert "NumPy gives" in verdict_of(expression, dtype)


def test_the_least_integer_divided_by_minus_one_does_not_end_the_process() -> None:
    def remainders(a, b):  # type: ignore[no-untyped-def]
        return np.remainder(a, b), a % b, np.divmod(a, b), a[0] % b[0]

    compiled = ow.compile_numpy(compiler="numba", mode="compiled")(remainders)
    compiled(np.array([7, 8]), np.array([2, 3]))
    least, ones = np.array([-(2**63), 5]), np.array([-1, -1])
    with np.errstate(all="ignore"):
        assert repr(compiled(least, ones)) == repr(remainders(least, ones))


@pytest.mark.parametrize(("expression", "dtype"), sampled([pytest.param(*case) for case in CASES], len(CASES)))
def test_all_that_numba_has(expression: str, dtype: str) -> None:
    verdict = verdict_of(expression, dtype)
    assert verdict == "same" or verdict.startswith("refused")
