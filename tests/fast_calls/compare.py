"""Runs a program in its forms, and finds the first difference of what they gave."""

from __future__ import annotations

import pprint
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.fast_calls.custom_op import in_common
from tests.fast_calls.forms import CUSTOM, FAST, SLOW, Form, recordings_that_differed
from tests.fast_calls.programs import Program
from tests.fast_calls.records import Bits
from tests.fast_calls.world import World

__all__ = ["Comparison", "Difference", "compare"]


@dataclass(frozen=True)
class Difference:
    """Two forms of a program that gave something else.

    Attributes:
        step: its index.
        part: what differs, such as ``call 2: backward``.
        aspect: how it differs: "values", "types", "requires_grad", "raises ArgumentError", …
        values: of the one form and of the other, in words.
    """

    forms: tuple[str, str]
    step: int
    part: str
    aspect: str
    values: tuple[str, str]

    @property
    def kind(self) -> str:
        """What differs and how, without the number of the call."""
        return f"{self.forms[0]}/{self.forms[1]}: {self.part.split(': ')[-1]}: {self.aspect}"

    def __str__(self) -> str:
        return (
            f"step {self.step}, {self.part}\n  {self.forms[0]:9} {self.values[0]}\n  {self.forms[1]:9} {self.values[1]}"
        )


@dataclass(frozen=True)
class Comparison:
    """One program, run in its forms."""

    calls: int
    difference: Difference | None


def compare(program: Program, device: str = "cpu", with_custom_op: bool = True) -> Comparison:
    """Run a program with fast calls, without them, and (as far as it can be expressed) with ``custom_op``."""
    fast, calls = _run(program, FAST, len(program.steps), device)
    if differed := recordings_that_differed():
        values = (f"a verified repetition differed: {', '.join(differed)}", "the same results")
        return Comparison(calls, Difference((FAST.name, FAST.name), -1, "a recording", "differs", values))
    slow, _ = _run(program, SLOW, len(program.steps), device)
    found = _first_difference((FAST, SLOW), fast, slow)
    if found is None and with_custom_op and all(d.portable for d in program.definitions):
        count = next((i for i, step in enumerate(program.steps) if not step.portable), len(program.steps))
        writes = any(definition.mutated for definition in program.definitions)
        custom, _ = _run(program, CUSTOM, count, device)
        found = _first_difference((SLOW, CUSTOM), *in_common(slow[:count], custom, writes))
    return Comparison(calls, found)


def _run(program: Program, form: Form, steps: int, device: str) -> tuple[list[Any], int]:
    world = World(program.source, program.definitions, form, device)
    try:
        for step in program.steps[:steps]:
            world.run(step.text)
    finally:
        world.close()
    return world.records, world.calls


def _first_difference(forms: tuple[Form, Form], ones: Sequence[Any], others: Sequence[Any]) -> Difference | None:
    names = (forms[0].name, forms[1].name)
    for step, (one, other) in enumerate(zip(ones, others, strict=True)):
        if one != other:
            part, values = _differing_part(one, other)
            return Difference(names, step, part, _aspect(names, *values), (_shown(values[0]), _shown(values[1])))
    return None


def _differing_part(ones: Sequence[Any], others: Sequence[Any]) -> tuple[str, tuple[Any, Any]]:
    for number, (one, other) in enumerate(zip(ones, others, strict=False)):
        if one == other:
            continue
        if not (isinstance(one, dict) and isinstance(other, dict)):
            return f"call {number}: the step", (one, other)
        for key in dict.fromkeys((*one, *other)):
            if one.get(key) != other.get(key):
                return f"call {number}: {key}", (one.get(key), other.get(key))
    return "the number of calls", (ones, others)


def _aspect(names: tuple[str, str], one: Any, other: Any) -> str:
    """How two values differ, in a word or two."""
    for name, value, against in ((names[0], one, other), (names[1], other, one)):
        if _raised(value) and value[:2] != (against[:2] if isinstance(against, tuple) else against):
            return f"{name} raises {value[1]}"
    if not isinstance(one, tuple | list) or not isinstance(other, tuple | list):
        return "values" if isinstance(one, Bits) else str(one).partition("=")[0] if "=" in str(one) else "types"
    if len(one) != len(other):
        return "number"
    return next(_aspect(names, *pair) for pair in zip(one, other, strict=True) if pair[0] != pair[1])


def _raised(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and value[0] == "raised"


def _shown(value: Any) -> str:
    return pprint.pformat(value, width=160, compact=True).replace("\n", "\n            ")
