"""Words and operators that are replaced by others, in Python and in C++ alike."""

from __future__ import annotations

import contextlib

__all__ = ["ARITHMETIC", "BITWISE", "BOUNDS", "FUNCTIONS", "LOGIC", "number_edits"]

# A comparison at a bound: it takes one index too many or too few, or is the other way round.
BOUNDS = {"<": ("<=", ">="), "<=": ("<",), ">": (">=", "<="), ">=": (">",), "==": ("!=",), "!=": ("==",)}
ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "+", "//": "+", "**": "*", "@": "+"}
BITWISE = {"&": "|", "|": "&", "^": "&", "<<": ">>", ">>": "<<"}
LOGIC = {"and": "or", "or": "and", "&&": "||", "||": "&&"}
# Functions by their last name. A precise function and its fast form are not exchanged: rounding allows both.
FUNCTIONS = {
    "max": "min", "maximum": "minimum", "amax": "amin", "argmax": "argmin", "fmax": "fmin", "fmaxf": "fminf",
    "floor": "ceil", "floorf": "ceilf", "sin": "cos", "sinf": "cosf", "any": "all", "exp": "exp2", "expf": "exp2f",
    "log": "log2", "logf": "log2f", "cumsum": "cumprod", "sum": "prod", "zeros": "ones", "zeros_like": "ones_like",
    "atomic_max": "atomic_min", "atomicMax": "atomicMin",
}  # fmt: skip
FUNCTIONS |= {new: old for old, new in FUNCTIONS.items() if new not in ("prod", "ones", "ones_like", "cumprod")}


def number_edits(literal: str) -> list[str]:
    """A number and its neighbours: an integer one more and one less, a float another by far."""
    digits = literal.rstrip("uUlL" if literal.lower().startswith("0x") else "fFlLuUhH")
    suffix = literal[len(digits) :]
    with contextlib.suppress(ValueError):
        value = int(digits.replace("'", ""), 0)
        return [f"{value + 1}{suffix}", *([f"{value - 1}{suffix}"] * (value > 0))]
    with contextlib.suppress(ValueError):  # a complex number, or a form of another language
        zero = float(digits) == 0
        return [f"1.0{suffix}"] if zero else [f"0.0{suffix}", f"({digits}{suffix} * 2)"]
    return []
