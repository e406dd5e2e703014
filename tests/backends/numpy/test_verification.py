"""Compiled code that gives something else than NumPy is found at its first call; times decide which way calls go."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch

import opwright as ow
from opwright.backends.numpy import tracing, verification
from opwright.backends.numpy.choice import NUMPY, Choices, Form, quick_key
from opwright.contract.numpy import ufuncs
from opwright.errors import CompileError, ContractError


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run traced graphs in Python."""
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: graph)


@pytest.fixture
def wrong_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ufuncs.UFUNCS, "square", lambda x: x * x + (x > 2))


def takes_squares(a, b):  # type: ignore[no-untyped-def]
    c = a + b
    d = np.square(c)
    a[0] = 7
    return d.sum()


pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.usefixtures("wrong_squares")
def test_a_difference_names_the_first_statement_and_numpys_result_stands() -> None:
    a = np.array([0.0, 1.0, 2.0])
    with pytest.raises(CompileError) as found:
        ow.compile_numpy(takes_squares)(a, np.ones(3))
    line = takes_squares.__code__.co_firstlineno + 2
    assert f"values part after {__file__}:{line} `d = np.square(c)`: d[2] is 10.0, NumPy's 9.0" in str(found.value)
    assert found.value.result == 14
    assert a[0] == 7  # as NumPy leaves it
    assert "write this statement differently" in str(found.value)


@pytest.mark.usefixtures("wrong_squares")
def test_with_breaks_allowed_numpy_runs_what_would_differ_and_says_so() -> None:
    compiled = ow.compile_numpy(allow_breaks=True)(takes_squares)
    with pytest.warns(UserWarning, match="nothing is compiled, NumPy runs it: compiled code gives something else"):
        assert compiled(np.array([0.0, 1.0, 2.0]), np.ones(3)) == 14
    assert compiled(np.array([0.0, 1.0, 3.0]), np.ones(3)) == 21
    assert "nothing was compiled" in compiled.explain()


@pytest.mark.usefixtures("wrong_squares")
def test_each_way_of_verifying() -> None:
    small, large = np.array([0.0, 0.5]), np.array([3.0, 4.0])

    def square(a):  # type: ignore[no-untyped-def]
        return np.square(a)

    never = ow.compile_numpy(verify="never", mode="compiled")(square)
    assert never(large)[0] == 10
    first = ow.compile_numpy(verify="first", mode="compiled")(square)
    first(small)
    assert first(large)[0] == 10  # values of the first call did not show it
    always = ow.compile_numpy(verify="always", mode="compiled")(square)
    always(small)
    with pytest.raises(CompileError, match="something else than NumPy"):
        always(large)
    with pytest.raises(ContractError, match=r"verify must be one of .*, got 'sometimes'"):
        ow.compile_numpy(verify="sometimes")(square)  # type: ignore[call-overload]


def writes_twice(a, b):  # type: ignore[no-untyped-def]
    a[1:] *= 2
    b += a
    return a + b


def test_writes_to_tensors_that_numpy_takes_as_copies_go_back() -> None:
    """A tensor with a pending conjugation, as one on a GPU, lies in memory that NumPy does not take."""
    given = torch.tensor([1 + 2j, 3 - 1j, 2j]).conj(), torch.ones(3, dtype=torch.complex64)
    untouched = torch.ones(3, dtype=torch.complex64).conj()
    versions = untouched._version
    arrays = [t.resolve_conj().numpy().copy() for t in given]
    expected = writes_twice(*arrays) + 1
    call = verification.Call(lambda a, b, c: writes_twice(a, b) + c, (*given, untouched), {}, single=False)
    np.testing.assert_allclose(call.in_numpy(), expected)
    for tensor, array in zip(given, arrays, strict=True):
        np.testing.assert_allclose(tensor.resolve_conj().numpy(), array)
    assert untouched._version == versions


@pytest.mark.gpu
def test_writes_to_tensors_on_a_gpu_are_compared_and_stay() -> None:
    compiled = ow.compile_numpy(mode="compiled")(writes_twice)
    for _ in range(3):
        given = torch.arange(3.0, device="cuda"), torch.ones(3, device="cuda")
        arrays = [t.cpu().numpy().copy() for t in given]
        expected = writes_twice(*arrays)
        np.testing.assert_allclose(compiled(*given).cpu().numpy(), expected)
        for tensor, array in zip(given, arrays, strict=True):
            np.testing.assert_allclose(tensor.cpu().numpy(), array)


@pytest.mark.usefixtures("wrong_squares")
def test_another_graph_is_compared_too() -> None:
    """A value that torch.compile guards changes; what it compiles then has not been compared."""

    def square(a, flag):  # type: ignore[no-untyped-def]
        return np.square(a) if flag.on else a + 1

    class Flag:
        on = False

    flag, a = Flag(), np.array([3.0, 4.0])
    compiled = ow.compile_numpy(mode="compiled")(square)
    for _ in range(3):
        compiled(a, flag)
    flag.on = True
    with pytest.raises(CompileError, match="something else than NumPy"):
        compiled(a, flag)


def test_a_global_that_changes_is_compared_in_a_short_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ow.compile_numpy(mode="compiled")(adds_the_global)
    a = np.arange(3.0)
    for _ in range(3):
        assert compiled(a)[0] == 1
    monkeypatch.setitem(globals(), "ADDED", 2)
    assert compiled(a)[0] == 2
    monkeypatch.setitem(globals(), "ADDED", 3.5)
    assert compiled(a)[0] == 3.5


ADDED = 1


def adds_the_global(a):  # type: ignore[no-untyped-def]
    return a + ADDED


def test_effects_happen_once() -> None:
    calls: list[int] = []

    class Counter:
        def __init__(self) -> None:
            self.total = np.zeros(2)

        @ow.compile_numpy
        def add(self, x):  # type: ignore[no-untyped-def]
            self.total += x
            return self.total * 2

    counter = Counter()
    for i in range(1, 4):
        assert counter.add(np.ones(2))[0] == 2 * i
        assert counter.total[0] == i
    assert calls == []


def test_an_error_of_the_function_is_its_own() -> None:
    def refuses(a):  # type: ignore[no-untyped-def]
        raise ValueError(f"{a.shape[0]} is too short")

    compiled = ow.compile_numpy(refuses)
    with pytest.raises(ValueError, match="2 is too short"):
        compiled(np.ones(2))
    with pytest.raises(IndexError, match="out of bounds"):
        ow.compile_numpy(lambda a: a[np.array([0, 9])])(np.ones(3))


def test_a_loop_that_would_be_written_out_is_refused_with_a_remedy() -> None:
    def steps(a):  # type: ignore[no-untyped-def]
        for _ in range(400):
            a = a * 0.5 + 1
        return a

    with pytest.raises(CompileError, match=r'(?s)more than \d+ steps in one graph.*compiler="numba"'):
        ow.compile_numpy(steps)(np.ones(3))


# -- which way calls go --------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the times that are measured, in NumPy and compiled."""

    def set_times(numpys: float, ours: float) -> None:
        times = {"NumPy": numpys}
        monkeypatch.setattr(
            "opwright.backends.numpy.compile_numpy.times_of",
            lambda call, ways: {**dict.fromkeys(ways, ours), **times},
        )

    return set_times


def test_calls_go_to_numpy_where_it_is_faster_for_each_size(clock: Any) -> None:
    seen: list[bool] = []

    def f(a):  # type: ignore[no-untyped-def]
        seen.append(torch.compiler.is_compiling())
        return a * 2

    compiled = ow.compile_numpy(lambda a: a * 2)
    clock(1e-6, 2e-6)
    assert compiled(np.ones(4))[0] == 2
    assert compiled.choices[-1].chosen == NUMPY
    clock(2e-3, 1e-3)
    assert compiled(np.ones(4000))[0] == 2
    assert compiled.choices[-1].chosen == "torch.compile"
    compilations = len(compiled.compilations)
    for _ in range(3):
        compiled(np.ones(4))
        compiled(np.ones(4000))
    assert len(compiled.choices) == 2
    assert len(compiled.compilations) == compilations
    text = compiled.explain()
    assert "(a: float64[4])  torch.compile 2 µs, NumPy 1 µs: calls of this size go to NumPy" in text
    assert "torch.compile 1 ms, NumPy 2 ms: calls of this size go to torch.compile" in text


def test_a_small_advantage_is_not_enough() -> None:
    choices = Choices()
    times = itertools.count()
    for numpys, ours, chosen in ((1.0, 0.95, NUMPY), (1.0, 0.85, "torch.compile"), (1.0, 1.2, NUMPY)):
        form = Form("f", next(times))
        assert choices.choose(form, "", {"torch.compile": ours, NUMPY: numpys}).chosen == chosen


def test_measuring_undoes_effects(clock: Any) -> None:
    def add(a):  # type: ignore[no-untyped-def]
        a += 1
        return a.sum()

    a = np.zeros(3)
    assert ow.compile_numpy(add)(a) == 3
    assert a.tolist() == [1, 1, 1]


class Turns:
    """A clock that ways move on by what they take, and the order in which they are called."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.now, self.seconds, self.called = 0.0, seconds, [""]

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.called.append("")  # a turn begins

    def call(self, name: str, *args: Any) -> None:
        before = next((n for n in reversed(self.called) if n != name), "")  # "": its threads have come to rest
        self.called.append(name)
        self.now += self.seconds[name] * (2 if before else 1)

    def measured(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
        monkeypatch.setattr(verification, "time", self)
        # A partial function, since what functions hold is put back after each call.
        call = verification.Call(functools.partial(self.call, "NumPy"), (np.ones(3),), {}, single=False)
        return verification.times_of(call, {"numba": functools.partial(self.call, "numba")})


@pytest.mark.parametrize("seconds", [1e-6, 0.02, 0.05, 0.4])
def test_ways_are_measured_in_turns_of_several_calls_and_none_beside_the_threads_of_another(seconds, monkeypatch):
    turns = Turns({"NumPy": seconds, "numba": 1.1 * seconds})
    times = turns.measured(monkeypatch)
    assert times == pytest.approx(turns.seconds)
    per_turn = [len(list(group)) for name, group in itertools.groupby(turns.called) if name]
    assert min(per_turn) >= (3 if seconds < 0.1 else 1)


def test_ways_whose_times_are_close_are_measured_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {}
    for other in (0.01, 0.011, 0.1):
        turns = Turns({"NumPy": 0.01, "numba": other})
        turns.measured(monkeypatch)
        counts[other] = turns.called.count("NumPy")
    assert counts[0.01] >= 10
    assert counts[0.011] >= 10
    assert counts[0.1] <= verification._FEWEST_ROUNDS * verification._MOST_CALLS < counts[0.01]


def test_quick_keys_are_for_plain_arguments() -> None:
    a = np.ones(3)
    assert quick_key((a, 2, 0.5)) == quick_key((a + 1, 3, 1.5))
    assert quick_key((a,)) != quick_key((a.astype(np.float32),))
    assert quick_key(([a],)) is None
    assert quick_key((True,)) is None


# -- Numba -----------------------------------------------------------------------------------------------------------


def smooth(a, n):  # type: ignore[no-untyped-def]
    for _ in range(n):
        for i in range(1, a.shape[0] - 1):
            a[i] = half(a[i - 1] + a[i + 1])
    return a.sum()


def half(x):  # type: ignore[no-untyped-def]
    return x * 0.5


@pytest.mark.slow  # Numba's first compilation takes some seconds
def test_numba_compiles_loops_and_the_functions_that_they_call() -> None:
    pytest.importorskip("numba")
    compiled = ow.compile_numpy(compiler="numba", mode="compiled")(smooth)
    for seed in range(3):
        ours = np.random.default_rng(seed).random(50)
        numpys = ours.copy()
        came, expected = compiled(ours, 400), smooth(numpys, 400)
        assert type(came) is np.float64
        assert came == pytest.approx(expected)
        np.testing.assert_allclose(ours, numpys)
    assert [c.reason for c in compiled.compilations] == ["by Numba"]
    auto = ow.compile_numpy(compiler="auto", mode="compiled")(smooth)
    auto(np.random.default_rng(0).random(50), 400)
    assert auto.choices[-1].chosen == "numba"
    assert "not by torch.compile: cannot be compiled" in auto.explain()
    with pytest.raises(IndexError):
        ow.compile_numpy(compiler="numba", mode="compiled")(lambda a, i: a[i])(np.ones(3), 7)


def test_without_numba_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwright.backends.numba_jit.jit.has_numba", lambda: False)
    with pytest.raises(CompileError, match=r"(?s)Numba is not installed.*pip install 'opwright\[numba\]'"):
        ow.compile_numpy(compiler="numba")(smooth)(np.ones(3), 1)


# -- integers that torch.compile keeps open, and forms that are compiled later ----------------------------------------


def below(a, n):
    return (np.sqrt(a + 0.5) * (a < n)).sum()


def test_integers_beyond_an_arrays_dtype_are_compared_as_in_numpy(quick):
    for kind in (np.uint8, np.int8, np.int32):
        compiled = ow.compile_numpy(mode="compiled")(below)
        a = np.array([0, 1, 100, np.iinfo(kind).max], kind)
        for n in (5, 7, -3, 300, 2**31, 90):
            assert compiled(a, n) == pytest.approx(below(a, n))


@pytest.mark.parametrize("statement", ["a + n", "np.maximum(a, n)", "np.clip(a, 0, n)", "a // n", "a << n"])
def test_integers_that_a_dtype_does_not_hold_are_numpys_error_in_every_call(quick, statement):
    function = eval(f"lambda a, n: {statement}", {"np": np})
    compiled = ow.compile_numpy(mode="compiled")(function)
    a = np.array([1, 2, 3], np.uint8)
    for n in (1, 2, 3):
        assert compiled(a, n).tolist() == function(a, n).tolist()
    for n in (-1, 300) * 3:
        # NumPy clips at 300, where the two steps that stand for it do not go.
        with pytest.raises(CompileError if "clip" in statement and n > 0 else OverflowError):
            compiled(a, n)
    assert compiled(a, 4).tolist() == function(a, 4).tolist()


def test_results_of_forms_that_are_finished_in_different_ways_are_each_numpys(quick):
    def total(x, n):
        return np.zeros(()) if n == 0 else x.sum()

    compiled = ow.compile_numpy(mode="compiled")(total)
    x = np.arange(4.0)
    for n in (0, 0, 1, 1, 0, 0, 1, 1):
        assert type(compiled(x, n)) is type(total(x, n))


def test_a_form_that_was_refuted_is_never_taken_without_a_comparison(quick, monkeypatch):
    from opwright.contract.numpy import ufuncs

    def scaled(x, n):
        return x * (2 if n < 5 else 3)

    wrong = {**ufuncs.UFUNCS, "multiply": lambda a, b: a * (b + (b == 3))}
    monkeypatch.setattr(ufuncs, "UFUNCS", wrong)
    compiled = ow.compile_numpy(mode="compiled")(scaled)
    x = np.arange(4.0)
    for n in (1, 1, 2):
        assert compiled(x, n).tolist() == scaled(x, n).tolist()
    for _ in range(3):
        with pytest.raises(CompileError, match="something else than NumPy"):
            compiled(x, 7)
