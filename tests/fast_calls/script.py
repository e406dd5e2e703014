"""Runs a program that the fuzzer has printed."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fast_calls.compare import compare
from tests.fast_calls.forms import Definition, prepare
from tests.fast_calls.programs import Program, Step

__all__ = ["run"]


def run(source: str, definitions: Sequence[Definition], steps: Sequence[str], device: str = "cpu") -> None:
    """Print the first difference of the program's forms."""
    prepare(device != "cpu")
    program = Program(-1, source, tuple(definitions), tuple(Step(f"{text[:-1]}" if text.startswith("call(") else text)
                                                            for text in steps))  # fmt: skip
    print(compare(program, device).difference or "no difference")
