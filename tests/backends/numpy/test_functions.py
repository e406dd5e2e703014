"""docs/numpy.md lists which of NumPy's functions are right when compiled: a sample is tested here, all on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from opwright.backends.numpy import tracing
from opwright.contract.numpy.names import _INSTEAD, lacking
from tests.backends.numpy import numpy_functions
from tests.backends.numpy.numpy_functions import (
    Finding,
    batches,
    claimed,
    examine,
    examine_generated,
    recorded,
    recorded_versions,
    render,
    versions,
)
from tests.sampled import sampled

same_versions = pytest.mark.skipif(
    recorded_versions() != versions(), reason=f"the page was made with {recorded_versions()}, not {versions()}"
)


def test_the_page_speaks_of_every_function_that_is_claimed() -> None:
    if recorded_versions() == versions():
        assert sorted(recorded()) == sorted(claimed())
    assert len(recorded()) > 250
    assert {status for status, _ in recorded().values()} == {"ok", "fails"}, "nothing differs: it is refused"


@same_versions
@pytest.mark.parametrize("name", claimed()[::12])
def test_a_sample_of_the_functions_is_as_the_page_says(name: str) -> None:
    assert _as_recorded(examine(name))


@pytest.mark.slow  # compiles every function
@pytest.mark.compiler
@same_versions
@pytest.mark.parametrize("names", sampled(batches(), 3), ids=lambda names: f"{names[0]}–{names[-1]}")
def test_functions_with_generated_code_are_as_the_page_says(names: list[str]) -> None:
    assert [f for f in examine_generated(names) if not _as_recorded(f)] == []


def _as_recorded(finding: Finding) -> bool:
    # Messages contain addresses and orders of sets, so only the fact of a failure is compared.
    status, how = recorded()[finding.name]
    return finding.status == status and (status == "fails" or finding.how == how)


def test_a_function_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself finds other values, another dtype, another shape, and an error."""
    generate = lambda graph, inputs: lambda *values: [r.to(torch.int64)[None] for r in graph(*values)]  # noqa: E731
    monkeypatch.setitem(numpy_functions._CALLS, "median", "x")
    with numpy_functions.traced_only():
        assert numpy_functions._examine_call("np.rint(i)") == ("ok", "")
        monkeypatch.setattr(tracing, "generate", generate)
        assert numpy_functions._examine_call("np.rint(i)") == ("differs", "int64, NumPy float64")
        assert numpy_functions._examine_call("np.sum(i)") == ("differs", "shape [1], NumPy []")
    assert examine("allclose").status == "fails"
    assert numpy_functions._compare(np.ones(2), np.zeros(2)) == ("differs", "other values")
    assert numpy_functions._compare((np.ones(2),) * 2, np.ones(2))[0] == "differs"
    assert numpy_functions._compare(3, 4)[0] == "differs"
    assert numpy_functions._compare(np.ones(2), np.ones(2)) == ("ok", "")


@pytest.mark.slow  # Inductor compiles
@pytest.mark.compiler
def test_generated_code_that_is_wrong_is_found_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of functions compiled together: one of them gives another value once code is generated."""
    generate = tracing.generate

    def wrong(graph: Any, inputs: Any) -> Any:
        run = generate(graph, inputs)
        return lambda *values: [r + 1 if r.numel() == 2 else r for r in run(*values)]

    monkeypatch.setitem(numpy_functions._CALLS, "negative", "x[:2]")
    monkeypatch.setattr(tracing, "generate", wrong)
    found = {f.name: f for f in examine_generated(["exp", "negative"])}
    assert found["exp"].status == "ok"
    assert found["negative"].how == "generated code: other values"


def test_the_page_is_rendered_and_read_back() -> None:
    findings = [
        Finding("add", "ok", "", 2),
        Finding("f", "differs", "`f(x|y)`: int64", 1),
        Finding("g", "fails", "no", 1),
    ]
    text = render(findings)
    assert "of 3 functions (4 calls) **1 agree**" in text
    assert "| `f` | differs | `f(x\\|y)`: int64 |" in text


# -- what to write instead ------------------------------------------------------------------------------


def test_what_is_offered_instead_of_a_function_gives_the_same() -> None:
    x = np.array([-1.5, -0.2, 0.0, 0.7, 1.9, 5.0])
    xp, fp = np.array([0.0, 1.0, 2.0]), np.array([3.0, 1.0, 4.0])
    i = np.clip(np.searchsorted(xp, x), 1, len(xp) - 1)
    offered = fp[i - 1] + (fp[i] - fp[i - 1]) * ((np.clip(x, xp[0], xp[-1]) - xp[i - 1]) / (xp[i] - xp[i - 1]))
    np.testing.assert_allclose(offered, np.interp(x, xp, fp))
    np.testing.assert_allclose(np.sign(x) * np.abs(x) ** (1 / 3), np.cbrt(x))
    np.testing.assert_array_equal(np.trunc(x), np.fix(x))
    np.testing.assert_array_equal((x - np.trunc(x), np.trunc(x)), np.modf(x))
    np.testing.assert_allclose(np.sum((fp[1:] + fp[:-1]) / 2 * np.diff(xp)), 4.5)
    for name in ("interp", "cbrt", "fix", "modf", "trapezoid"):
        assert name in _INSTEAD


def test_names_are_found_wherever_they_are_written() -> None:
    from numpy import interp

    def inner(z):  # type: ignore[no-untyped-def]
        return np.vectorize(abs)(z)

    def uses(x):  # type: ignore[no-untyped-def]
        listed = [np.apply_along_axis(sum, 0, v) for v in x]
        return interp(x, x, x) + inner(x) + np.random.rand() + np.ma.masked + np.cbrt(x) + listed

    assert sorted(map(str, lacking(uses))) == [
        "np.apply_along_axis", "np.cbrt", "np.interp", "np.ma.masked", "np.random.rand", "np.vectorize",
    ]  # fmt: skip

    def fine(x):  # type: ignore[no-untyped-def]
        y = np.linalg.norm(x) + np.pi + x[np.newaxis] + np.float32(1)
        return y.astype(np.int64), np.ndarray, np.fft.fft(x)

    assert lacking(fine) == []
