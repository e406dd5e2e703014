"""Idioms of NumPy code: compiled, each is the same as NumPy on two calls, or refused with a message and a remedy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import opwright as ow
from opwright.backends.numpy import tracing
from opwright.contract.numpy.comparison import copied, difference
from opwright.errors import OpwrightError
from tests.backends.numpy.idioms import IDIOMS
from tests.sampled import sampled

SAME = [name for name, idiom in IDIOMS.items() if idiom.expected == "same"]
# Inductor finds nothing left to compute, and returns the argument itself.
OPTIMISED_AWAY = ("dtype_attribute", "triangles")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run traced graphs in Python."""
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: graph)


def outcome(function: Any, arguments: tuple[Any, ...]) -> Any:
    """A call's result and arguments afterwards, or the exception that it raised."""
    try:
        return function(*arguments), copied(list(arguments))
    except OpwrightError:
        raise
    except Exception as error:
        return error


def what_differs(name: str, **options: Any) -> str:
    """What is different on two calls of an idiom with other values; "" if nothing is.

    The result of the first call is NumPy's own, after a comparison. The second call is compiled code alone.
    """
    idiom = IDIOMS[name]
    compiled = ow.compile_numpy(mode="compiled", **options)(idiom.function)
    for call in (0, 1):
        arguments = idiom.arguments(call)
        with np.errstate(all="ignore"):
            expected = outcome(idiom.function, copy.deepcopy(arguments))
            came = outcome(compiled, arguments)
        if isinstance(expected, Exception) or isinstance(came, Exception):
            if type(expected) is not type(came):
                return f"call {call}: {came!r}, NumPy {expected!r}"
        elif found := difference(list(expected), list(came)):
            return f"call {call}: {found}"
    return ""


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IDIOMS)
def test_it_is_the_same_as_numpy_or_refused(name: str) -> None:
    if IDIOMS[name].expected == "same":
        assert what_differs(name) == ""
        return
    with pytest.raises(OpwrightError) as refused:
        what_differs(name)
    assert refused.value.fix, "a refusal says what to write instead"
    assert name in refused.value.message


@pytest.mark.slow  # generates code for each
@pytest.mark.compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sampled(SAME, 24, also=OPTIMISED_AWAY))
def test_generated_code_is_the_same_as_numpy(name: str) -> None:
    assert what_differs(name) == ""


def test_a_result_has_its_own_memory_where_nothing_is_left_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "generate", lambda graph, inputs: lambda *values: [values[0]])
    compiled = ow.compile_numpy(mode="compiled")(lambda a: a + 0)
    for _ in range(3):
        a = np.ones(3)
        assert not np.shares_memory(compiled(a), a)


@pytest.mark.usefixtures("quick")
def test_the_comparison_of_this_file_finds_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a graph that gives something else, the second call, and without verification the first, differ."""

    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *values: [r + 1 if isinstance(r, torch.Tensor) else r for r in graph(*values)]

    monkeypatch.setattr(tracing, "generate", wrong)
    assert "call 0" in what_differs("reversed_and_read", verify="never")
