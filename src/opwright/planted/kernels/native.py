"""A kernel in C++, with the faults that only a compiled language has."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.planted.catalogue import correct, planted

__all__ = ["ROWS", "scale"]


@ow.op("selftest_native::scale")
def scale(x: Float32[Tensor, "*n"], a: float) -> Float32[Tensor, "*n"]:
    return a * x


# By the value of the macro FAULT.
_FAULTS = {
    1: ("strides are ignored", "values"),
    2: ("the scalar is cut to an integer", "values"),
    3: ("a tail of less than 4 is not written", "values"),
    4: ("one element too many is written", "memory"),
    5: ("one element too many is read", "protected memory"),
    6: ("one call in forty is wrong", "repeated calls"),
    7: ("memory is never given back", "repeated calls"),
    8: ("an index of 16 bits", "values"),
    9: ("the argument is written where it is contiguous", "inputs unchanged"),
}
_RIGHT = {0: "one loop", -1: "scratch memory and threads", -2: "from the end"}


def _attach(fault: int) -> str:
    name = f"fault_{fault}" if fault > 0 else f"right_{-fault}"
    scale.cpp(Path(__file__).with_name("native.cpp"), entry="scale", name=name, options=[f"-DFAULT={fault}"])
    return name


ROWS = [
    *(planted(scale, _attach(fault), check, defect=f"C++: {words}") for fault, (words, check) in _FAULTS.items()),
    *(correct(scale, _attach(fault), defect=f"C++: {words}") for fault, words in _RIGHT.items()),
]
