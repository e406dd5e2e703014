"""Makes a program that has a difference smaller: fewer steps, options and functions, the same kind of difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.fast_calls.programs import Program

__all__ = ["script", "shrink"]

Item = TypeVar("Item")


def shrink(program: Program, differs: Callable[[Program], bool], most_attempts: int = 150) -> Program:
    """A smaller program for which ``differs`` still holds.

    Args:
        differs: whether a program has the difference. It holds for ``program``.
        most_attempts: after so many programs, the smallest one so far is returned.
    """
    attempts = 0

    def still(smaller: Program) -> bool:
        nonlocal attempts
        attempts += 1
        return attempts <= most_attempts and differs(smaller)

    for make in (_with_fewer_steps, _with_fewer_options, _with_fewer_functions):
        program = make(program, still)
    return program


def _with_fewer_steps(program: Program, still: Callable[[Program], bool]) -> Program:
    steps = _fewest(program.steps, lambda steps: still(replace(program, steps=tuple(steps))))
    return replace(program, steps=tuple(steps))


def _with_fewer_options(program: Program, still: Callable[[Program], bool]) -> Program:
    for i, step in enumerate(program.steps):
        for option in step.options:
            options = tuple(o for o in program.steps[i].options if o != option)
            steps = list(program.steps)
            steps[i] = replace(steps[i], options=options)
            smaller = replace(program, steps=tuple(steps))
            if still(smaller):
                program = smaller
    return program


def _with_fewer_functions(program: Program, still: Callable[[Program], bool]) -> Program:
    blocks = program.source.split("\n\n")

    def joined(some: Sequence[str]) -> Program:
        return replace(program, source="\n\n".join(some))

    return joined(_fewest(blocks, lambda some: still(joined(some))))


def _fewest(items: Sequence[Item], still: Callable[[Sequence[Item]], bool]) -> Sequence[Item]:
    """Some of the items for which ``still`` holds, and none of which can be left out alone."""
    size = len(items) // 2
    while size:
        start = 0
        while start < len(items):
            fewer = [*items[:start], *items[start + size :]]
            if fewer and still(fewer):
                items = fewer
            else:
                start += size
        size //= 2
    return items


def script(program: Program, difference: str) -> str:
    """A program as a script that says whether its forms differ."""
    return "\n".join(_script_lines(program, difference))


def _script_lines(program: Program, difference: str) -> Iterator[str]:
    yield f'"""Seed {program.seed}. To run it from the repository: PYTHONPATH=src:. python FILE"""'
    yield "from tests.fast_calls.forms import Definition"
    yield "from tests.fast_calls.script import run"
    yield f"\nMODULE = '''\n{program.source.strip()}\n'''"
    yield f"OPERATORS = {list(program.definitions)}"
    yield "STEPS = ["
    for step in program.steps:
        yield f"    {step.text!r},"
    yield "]"
    yield "run(MODULE, OPERATORS, STEPS)"
    for line in difference.splitlines():
        yield f"# {line}"
