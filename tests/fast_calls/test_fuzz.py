"""Drawn programs give the same with fast calls, without them, and as operators of ``custom_op``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fast_calls.mutants import MUTANTS, Mutant, is_noticed, mutated_source
from tests.fast_calls.programs import Program, Step, draw_program
from tests.fast_calls.shrink import script, shrink
from tests.warm import run_module

pytestmark = pytest.mark.compiler
# The rarest needs a launcher, its arguments and a change of both to be drawn together.
_PROGRAMS_FOR_A_MUTANT = 2000

# Mutants that a few programs notice.
_SAMPLE = ("the dispatcher's kernels are not compared",)


def assert_no_difference(programs: int, seed: int) -> None:
    done = run_module(
        "tests.fast_calls.fuzz", "--programs", programs, "--seed", seed, "--stop", 3, "--shrink", 1, timeout=1700
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_sample_of_programs_has_no_difference():
    assert_no_difference(60, seed=0)


@pytest.mark.slow  # many programs, and five times as many on request
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("programs", [300, pytest.param(1500, marks=pytest.mark.exhaustive)])
def test_many_programs_have_no_difference(programs: int):
    assert_no_difference(programs, seed=1_000_000)


def test_a_seed_has_one_program():
    assert draw_program(7) == draw_program(7)
    assert draw_program(7) != draw_program(8)


def test_a_smaller_program_keeps_what_the_difference_needs():
    steps = tuple(Step(f"call(f.op, lambda i: pack(x[{i}])", ("repeats=2", "thread=True")) for i in range(20))
    program = Program(0, "A = 1\n\nB = 2\n\nC = 3", (), steps)

    def differs(candidate: Program) -> bool:
        texts = [step.text for step in candidate.steps]
        return any("x[3]" in text and "repeats" in text for text in texts) and "B = 2" in candidate.source

    smaller = shrink(program, differs)
    assert [step.text for step in smaller.steps] == ["call(f.op, lambda i: pack(x[3]), repeats=2)"]
    assert smaller.source == "B = 2"
    assert "call(f.op, lambda i: pack(x[3]), repeats=2)" in script(smaller, "a difference")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_of_the_code_as_it_is(mutant: Mutant, tmp_path: Path):
    assert mutant.new in (mutated_source(mutant, tmp_path) / "opwright" / mutant.file).read_text()


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, marks=pytest.mark.slow if m.name in _SAMPLE else pytest.mark.exhaustive) for m in MUTANTS],
    ids=lambda mutant: mutant.name,
)  # the extension is compiled, and the fuzzer runs, for each
def test_the_fuzzer_notices_a_mutant(mutant: Mutant):
    assert is_noticed(mutant, _PROGRAMS_FOR_A_MUTANT)
