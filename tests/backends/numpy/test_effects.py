"""What a call does besides its result is NumPy's, happens once, or is refused."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opwright as ow
from opwright.backends.numpy import effects, tracing
from opwright.backends.numpy.effects import unknown_effect
from opwright.errors import CompileError

TABLE = np.zeros(2)
NUMBERS = {"n": 0}
LIST = [0]
SET: set[int] = set()
QUEUE: collections.deque[int] = collections.deque()


class Counter:
    """An object with a count of each kind."""

    total = 0

    def __init__(self) -> None:
        self.n = 0
        self.history: list[int] = []
        self.sum = np.zeros(2)
        self.last = np.float64(0)

    @property
    def next(self) -> int:
        self.n += 1
        return self.n


COUNTER = Counter()


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("n",)


SLOTTED = Slotted()
SLOTTED.n = 0


def rebinds(a):  # type: ignore[no-untyped-def]
    global TABLE
    TABLE = TABLE + a
    return a + 1


def counts_in_a_class(a):  # type: ignore[no-untyped-def]
    Counter.total += 1
    return a + 1


def counts_without_a_graph(a):  # type: ignore[no-untyped-def]
    Counter.total += 1
    return a


def counts_in_an_object(a):  # type: ignore[no-untyped-def]
    COUNTER.n += 1
    return a + 1


def counts_in_a_property(a):  # type: ignore[no-untyped-def]
    return a + COUNTER.next


def counts_in_slots(a):  # type: ignore[no-untyped-def]
    SLOTTED.n += 1
    return a + 1


def sets_an_attribute(a):  # type: ignore[no-untyped-def]
    COUNTER.n = COUNTER.n + 1
    return a + 1


def stores_a_number(a):  # type: ignore[no-untyped-def]
    COUNTER.last += a.sum()
    return a + 1


def appends(a):  # type: ignore[no-untyped-def]
    COUNTER.history.append(1)
    return a + 1


def counts_in_a_dictionary(a):  # type: ignore[no-untyped-def]
    NUMBERS["n"] += 1
    return a + 1


def counts_in_a_list(a):  # type: ignore[no-untyped-def]
    LIST[0] += 1
    return a + 1


def adds_to_a_set(a):  # type: ignore[no-untyped-def]
    SET.add(len(SET))
    return a + 1


def appends_to_a_deque(a):  # type: ignore[no-untyped-def]
    QUEUE.append(1)
    return a + 1


def counts_in_a_default(a, counted=[0]):  # type: ignore[no-untyped-def]  # noqa: B006
    counted[0] += 1
    return a + 1


def counts_in_a_function(a):  # type: ignore[no-untyped-def]
    counts_in_a_function.n += 1
    return a + 1


counts_in_a_function.n = 0  # type: ignore[attr-defined]


def in_a_helper(a):  # type: ignore[no-untyped-def]
    return appends(a) * 2


STATE: dict[Any, Callable[[], Any]] = {
    rebinds: lambda: TABLE[0],
    counts_in_a_class: lambda: Counter.total,
    counts_without_a_graph: lambda: Counter.total,
    counts_in_an_object: lambda: COUNTER.n,
    counts_in_a_property: lambda: COUNTER.n,
    counts_in_slots: lambda: SLOTTED.n,
    sets_an_attribute: lambda: COUNTER.n,
    stores_a_number: lambda: COUNTER.last / 2,
    appends: lambda: len(COUNTER.history),
    counts_in_a_dictionary: lambda: NUMBERS["n"],
    counts_in_a_list: lambda: LIST[0],
    adds_to_a_set: lambda: len(SET),
    appends_to_a_deque: lambda: len(QUEUE),
    counts_in_a_default: lambda: counts_in_a_default.__defaults__[0][0],  # type: ignore[index]
    counts_in_a_function: lambda: counts_in_a_function.n,  # type: ignore[attr-defined]
    in_a_helper: lambda: len(COUNTER.history),
}


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run traced graphs in Python."""
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: graph)


pytestmark = pytest.mark.usefixtures("_quick")


@pytest.mark.parametrize("function", STATE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("options", [{}, {"mode": "compiled"}, {"allow_breaks": True}], ids=str)
@pytest.mark.filterwarnings("ignore:.*nothing is compiled")
def test_an_effect_outside_of_arrays_is_refused_and_happens_once(
    function: Callable[..., Any], options: dict[str, Any]
) -> None:
    compiled = ow.compile_numpy(**options)(function)
    a = np.ones(2)
    for _ in range(3):
        before = STATE[function]()
        try:
            result = compiled(a)
            assert "allow_breaks" in options
        except CompileError as refused:
            result = refused.result
        assert STATE[function]() == before + 1
        assert np.array_equal(result, [4, 4] if function is in_a_helper else result)


def test_a_variable_of_the_function_around_it_is_refused() -> None:
    n = 0

    def counts(a):  # type: ignore[no-untyped-def]
        nonlocal n
        n += 1
        return a + 1

    with pytest.raises(CompileError, match="a variable of the function around it"):
        ow.compile_numpy(counts)(np.ones(2))
    assert n == 1


def test_what_is_printed_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(a):  # type: ignore[no-untyped-def]
        print("once")
        return a + 1

    with pytest.warns(UserWarning, match="nothing is compiled"):
        ow.compile_numpy(allow_breaks=True)(prints)(np.ones(2))
    with pytest.raises(CompileError):
        ow.compile_numpy(compiler="auto")(prints)(np.ones(2))
    assert capsys.readouterr().out == "once\nonce\n"


@pytest.mark.parametrize("compiler", ["torch", "numba"])
def test_a_number_that_is_drawn_and_not_used_is_found(compiler: Any) -> None:
    def draws_in_vain(a):  # type: ignore[no-untyped-def]
        random.random()
        return a + 1

    random.seed(1)
    random.random()
    second = random.random()
    random.seed(1)
    with pytest.raises(CompileError):
        ow.compile_numpy(compiler=compiler)(draws_in_vain)(np.ones(2))
    assert random.random() == second


def test_numpys_own_stream_is_refused() -> None:
    with pytest.raises(CompileError, match=r"np\.random"):
        ow.compile_numpy(draws)
    np.random.seed(1)
    np.random.rand(3)
    following = np.random.random()
    np.random.seed(1)
    with pytest.raises(CompileError):
        ow.compile_numpy(compiler="numba")(draws)(np.ones(3))
    assert np.random.random() == following


# -- arguments -------------------------------------------------------------------------------------------------------


def rebinds_an_item(d):  # type: ignore[no-untyped-def]
    d["a"] = d["a"] * 2


def swaps(d):  # type: ignore[no-untyped-def]
    d["a"], d["b"] = d["b"], d["a"]


def updates(d):  # type: ignore[no-untyped-def]
    d.update(a=d["a"] + 1)


def counts(d):  # type: ignore[no-untyped-def]
    d["n"] += 1
    return d["a"] * d["n"]


def rebinds_within(d):  # type: ignore[no-untyped-def]
    d["s"]["a"] = d["s"]["a"] * 2


def deletes(d):  # type: ignore[no-untyped-def]
    del d["n"]
    return d["a"] + 1


def sorts_keys(d):  # type: ignore[no-untyped-def]
    d["a"] = d.pop("a")


def rebinds_in_a_list(d):  # type: ignore[no-untyped-def]
    d["l"][0] = d["l"][0] + 1


@pytest.mark.parametrize(
    "function",
    [rebinds_an_item, swaps, updates, counts, rebinds_within, deletes, sorts_keys, rebinds_in_a_list],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("compiler", ["torch", "numba", "auto"])
def test_a_container_that_is_written_is_refused(function: Callable[..., Any], compiler: Any) -> None:
    def make(k: float) -> dict[str, Any]:
        a = np.full(2, k)
        return {"a": a, "b": np.zeros(2), "n": 0, "s": {"a": a * 3}, "l": [a * 4]}

    compiled = ow.compile_numpy(mode="compiled", compiler=compiler)(function)
    for k in range(3):
        ours, expected = make(k + 1.0), make(k + 1.0)
        with pytest.raises(CompileError):
            compiled(ours)
        function(expected)
        assert str(ours) == str(expected)


def test_arrays_in_containers_are_written() -> None:
    @ow.compile_numpy(mode="compiled")
    def step(d, x):  # type: ignore[no-untyped-def]
        d["a"] += x
        d["l"][0][1:] = d["a"][:-1]
        return d["a"] * 2

    for k in range(3):
        d = {"a": np.full(3, float(k)), "l": [np.zeros(3)]}
        a, first = d["a"], d["l"][0]
        result = step(d, np.ones(3))
        assert d["a"] is a
        assert d["l"][0] is first
        assert (a[0], first[1], first[0], result[0]) == (k + 1, k + 1, 0, 2 * k + 2)


def test_storing_the_object_that_is_there_does_not_hide_a_write() -> None:
    @ow.compile_numpy(mode="compiled")
    def stores(d, x):  # type: ignore[no-untyped-def]
        d["a"] = x
        return x + 1

    x = np.ones(2)
    assert stores({"a": x}, x)[0] == 2
    other = {"a": x}
    with pytest.raises(CompileError, match="writes to the dict d"):
        stores(other, np.zeros(2))
    assert other["a"][0] == 0


def test_an_attribute_that_is_written_in_place_stays_the_same_array() -> None:
    class Steps:
        def __init__(self) -> None:
            self.u = np.zeros(2)

        @ow.compile_numpy(mode="compiled")
        def step(self, x):  # type: ignore[no-untyped-def]
            self.u += x
            self.u *= 2
            return self.u

    steps = Steps()
    u = steps.u
    expected = np.zeros(2)
    for _ in range(3):
        result = steps.step(np.ones(2))
        expected = (expected + 1) * 2
        assert result is steps.u is u
        assert np.array_equal(u, expected)


# -- identities ------------------------------------------------------------------------------------------------------


def itself(x, y):  # type: ignore[no-untyped-def]
    x += y
    return x


def both(x, y):  # type: ignore[no-untyped-def]
    x += y
    return y, x, x + 1


def one_twice(x, y):  # type: ignore[no-untyped-def]
    z = x + y
    return [z, {"z": z}]


def as_it_is(x, y):  # type: ignore[no-untyped-def]
    return np.asarray(x), np.real(y), x[...]


@pytest.mark.parametrize("function", [itself, both, one_twice, as_it_is], ids=lambda f: f.__name__)
@pytest.mark.parametrize("compiler", ["torch", "numba"])
def test_objects_of_a_result_are_those_of_numpys(function: Callable[..., Any], compiler: Any) -> None:
    if compiler == "numba" and function in (one_twice, as_it_is):
        pytest.skip("Numba does not compile it")
    compiled = ow.compile_numpy(mode="compiled", compiler=compiler)(function)

    def pattern(call: Callable[..., Any]) -> list[list[bool]]:
        given = np.ones(3), np.ones(3)
        values = _flat(call(*given))
        return [[one is other for other in (*given, *values)] for one in values]

    for _ in range(3):
        assert pattern(compiled) == pattern(function)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return [value]
    return [each for item in (value.values() if isinstance(value, dict) else value) for each in _flat(item)]


def test_which_of_two_arguments_is_returned_is_learned_from_two() -> None:
    @ow.compile_numpy(mode="compiled")
    def second(x, y):  # type: ignore[no-untyped-def]
        x = x + 1
        return y

    same, other = np.ones(2), np.ones(2)
    assert second(same, same) is same
    assert second(same, other) is other
    assert second(same, other) is other
    assert second(same, same) is same


def test_a_container_that_is_returned_is_the_callers() -> None:
    @ow.compile_numpy(mode="compiled")
    def fills(d):  # type: ignore[no-untyped-def]
        d["a"][...] = 1
        return d

    for _ in range(3):
        d = {"a": np.zeros(2)}
        assert fills(d) is d
        assert d["a"][0] == 1


def test_an_array_from_outside_is_not_returned_itself() -> None:
    def table(a):  # type: ignore[no-untyped-def]
        a += 1
        return TABLE

    with pytest.raises(CompileError, match="from outside itself"):
        ow.compile_numpy(table)(np.ones(2))


def test_an_object_of_a_class_of_its_own_is_not_returned() -> None:
    def makes(a):  # type: ignore[no-untyped-def]
        pair = Counter()
        pair.sum = a + 1
        return pair

    with pytest.raises(CompileError):
        ow.compile_numpy(makes)(np.ones(2))


# -- what is known to have no effects --------------------------------------------------------------------------------


def loops(a, n):  # type: ignore[no-untyped-def]
    out = []
    for i in range(n):
        if a[i] > 0:
            out.append(np.sqrt(a[i]) + doubled(a[i]))
    return np.array(out)


def doubled(x):  # type: ignore[no-untyped-def]
    return 2 * x


def opens(a):  # type: ignore[no-untyped-def]
    open("/dev/null").close()
    return a


def saves(a):  # type: ignore[no-untyped-def]
    np.save("/dev/null", a)
    return a


def draws(a):  # type: ignore[no-untyped-def]
    return np.random.rand(3) + a


def test_only_what_is_listed_has_no_effects() -> None:
    assert unknown_effect(loops) == ""
    assert unknown_effect(lambda a: np.linalg.norm(a, axis=0).max()) == ""
    assert unknown_effect(opens) == "uses open"
    assert unknown_effect(saves) == "uses .save"
    assert unknown_effect(draws) == "uses .random"
    assert unknown_effect(rebinds) == "writes the global variable TABLE"
    assert unknown_effect(in_a_helper) == "uses COUNTER"
    assert unknown_effect(len) != ""


def test_an_instruction_that_is_not_listed_and_an_untested_python_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(a):  # type: ignore[no-untyped-def]
        yield a

    assert unknown_effect(waits) != ""
    monkeypatch.setattr(effects, "_KNOWN", effects._KNOWN - {"BINARY_OP"})
    assert unknown_effect(lambda a: a + 1).startswith("does BINARY_OP")
    monkeypatch.setattr(effects, "is_tested_python", lambda: False)
    assert "instructions are not known" in unknown_effect(loops)


def test_in_pieces_a_callable_argument_is_not_called() -> None:
    calls: list[int] = []

    def calls_it(a, g):  # type: ignore[no-untyped-def]
        if a[0] > 0:
            g(a)
        return a + 1

    with pytest.warns(UserWarning, match="whose effects are not known"):
        ow.compile_numpy(allow_breaks=True)(calls_it)(np.ones(2), lambda a: calls.append(1))
    assert calls == [1]
