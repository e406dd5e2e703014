"""Targets: the engines of this process, and the names of targets."""

from __future__ import annotations

import pytest

from opwright import target
from opwright.target import Engine, Target, engines_here, targets_here, use_engine


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_of_check", [])
    for name in ("TRITON_INTERPRET", "OPWRIGHT_CUDA_SIMULATOR"):
        monkeypatch.delenv(name, raising=False)
    target._of_environment.cache_clear()
    monkeypatch.setattr(target, "_of_environment", target._of_environment.__wrapped__)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("true", True), ("0", False), ("", False), (None, False)])
@pytest.mark.parametrize(
    ("name", "engine"),
    [("TRITON_INTERPRET", Engine.INTERPRETER), ("OPWRIGHT_CUDA_SIMULATOR", Engine.SIMULATOR)],
)
def test_a_variable_switches_an_engine_on(name, engine, value, expected, monkeypatch):
    if value is not None:
        monkeypatch.setenv(name, value)
    assert engines_here() == ((engine,) if expected else ())


def test_a_kernel_is_native_where_it_can_be_and_triton_kernels_are_interpreted_first(monkeypatch):
    monkeypatch.setenv("OPWRIGHT_CUDA_SIMULATOR", "1")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert [t.engine for t in targets_here("cpu")] == [Engine.NATIVE, Engine.INTERPRETER, Engine.SIMULATOR]
    assert targets_here("cuda") == [Target("cuda")]


@pytest.mark.parametrize("engine", Engine)
def test_the_engine_of_a_check_is_the_only_one_whatever_variables_say(engine, monkeypatch):
    monkeypatch.setenv("OPWRIGHT_CUDA_SIMULATOR", "1")
    use_engine(Engine.SIMULATOR)  # of an earlier job
    use_engine(engine)
    assert engines_here() == (() if engine is Engine.NATIVE else (engine,))


@pytest.mark.parametrize("name", ["cpu", "cuda", "cpu-sim"])
def test_a_target_has_its_name(name):
    assert str(Target.named(name)) == name
