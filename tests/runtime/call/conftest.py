"""Tests of calls run twice: with the native guards and call slots, and in Python as before they are built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opwright.backends.build_tools import build_tools
from opwright.runtime.call import native_guards


@pytest.fixture(autouse=True, params=[pytest.param("native", marks=pytest.mark.compiler), "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "native":
        native_guards.guarded_calls.load(build_tools())
        loaded = native_guards.guarded_calls.loaded
        assert loaded is not None
        for cls, owner in native_guards._classes:
            loaded.take_calls_of(cls, owner)
        yield request.param
        return
    monkeypatch.setattr(native_guards.guarded_calls, "loaded", None)
    monkeypatch.setattr(native_guards.guarded_calls, "_is_settled", True)
    for cls, _ in native_guards._classes:
        had = "__call__" in vars(cls)
        cls.__call__ = cls.__call__  # Python sets the class's slot again
        if not had:
            del cls.__call__
    yield request.param
