"""Programs of NumPy statements that Hypothesis draws: compiled, they are the same as NumPy, or refused."""

from __future__ import annotations

import pytest

hypothesis = pytest.importorskip("hypothesis")

from opwright.backends.numpy import tracing  # noqa: E402
from opwright.contract.numpy import functions  # noqa: E402
from tests.backends.numpy.programs import programs, verdict, verdict_of_steps  # noqa: E402

fixed = hypothesis.settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)


@pytest.fixture(scope="module")
def quick() -> object:
    """Run traced graphs in Python."""
    generate, tracing.generate = tracing.generate, lambda graph, inputs: graph
    yield
    tracing.generate = generate


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore")
def test_compiled_programs_are_the_same_or_refused() -> None:
    @hypothesis.settings(fixed, max_examples=15)
    @hypothesis.given(programs())
    def run(program: str) -> None:
        assert not verdict(program).startswith("silently"), program

    run()


@pytest.mark.filterwarnings("ignore")
def test_steps_on_tensors_are_the_same_or_refused() -> None:
    """As references run in autograd and vmap, without any comparison."""

    @hypothesis.settings(fixed, max_examples=150)
    @hypothesis.given(programs())
    def run(program: str) -> None:
        assert not verdict_of_steps(program).startswith("silently"), program

    run()


def test_a_program_that_is_different_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "def program(v, w, k, u, m):\n    x = v.flatten()\n    x[0] = 9\n    return x + 0, v.sum()\n"
    assert verdict_of_steps(program) == "same"
    monkeypatch.setitem(functions._SPECIAL, "method flatten", lambda run, args, keywords: args[0].reshape(-1))
    assert verdict_of_steps(program).startswith("silently different")
