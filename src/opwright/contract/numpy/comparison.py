"""Compares what a call gave with what NumPy gave: values, dtypes, shapes, classes, and whose memory results share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

__all__ = ["Outcome", "copied", "difference", "is_foreign_array", "tolerance_of", "values_differ"]

# Relative to the largest finite value of an array: sums in another order differ by this much at most.
_TOLERANCE = {"float16": 2e-2, "float32": 2e-4, "float64": 1e-9, "complex64": 2e-4, "complex128": 1e-9}


def tolerance_of(values: Sequence[Any]) -> float:
    """The tolerance for results of arrays and tensors: of the coarsest float among them."""
    names = [str(getattr(value, "dtype", "")).removeprefix("torch.") for value in values]
    return max((_TOLERANCE.get(name, 0.0) for name in names), default=0.0)


@dataclass
class Outcome:
    """The results of one call, copied, and what is known of their memory.

    Attributes:
        result: the result, with copies of its arrays.
        shared: for each array of the result, which of the watched arrays it shares memory with, and where it begins.
        together: which arrays of the result share memory with one another, as pairs of their positions.
    """

    result: Any
    shared: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    together: list[tuple[int, int]] = field(default_factory=list)

    @staticmethod
    def of(result: Any, watched: Sequence[Any]) -> Outcome:
        arrays = _arrays(result)
        shared = [
            tuple(
                (i, array.__array_interface__["data"][0])
                for i, other in enumerate(watched)
                if np.may_share_memory(array, other) and _shares(array, other)
            )
            for array in arrays
        ]
        pairs = [
            (i, j)
            for i in range(len(arrays))
            for j in range(i)
            if np.may_share_memory(arrays[i], arrays[j]) and _shares(arrays[i], arrays[j])
        ]
        return Outcome(copied(result), shared, pairs)

    def with_own_memory(self, expected: Outcome) -> tuple[Outcome, frozenset[int]]:
        """This outcome with copies of the arrays that lie in a watched array's memory here alone, and their ids."""
        arrays = _arrays(self.result)
        each = zip(expected.shared, self.shared, strict=False)
        borrowed = [i for i, (theirs, own) in enumerate(each) if own and not theirs]
        shared = [() if i in borrowed else one for i, one in enumerate(self.shared)]
        together = [pair for pair in self.together if not {*pair} & {*borrowed}]
        return Outcome(self.result, shared, together), frozenset(id(arrays[i]) for i in borrowed)


def is_foreign_array(value: Any) -> bool:
    """Whether this is an array of another library than NumPy and torch, which lends its memory."""
    return not isinstance(value, np.ndarray | np.generic | torch.Tensor | type) and hasattr(value, "__dlpack__")


def _shares(a: Any, b: Any) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=1000))  # type: ignore[arg-type]  # any number is allowed
    except np.exceptions.TooHardError:
        return True  # their extents overlap


def _arrays(value: Any) -> list[Any]:
    return [leaf for leaf in _leaves(value) if isinstance(leaf, np.ndarray)]


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]


def copied(value: Any) -> Any:
    """The same nest with copies of its arrays; tensors become arrays."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().resolve_conj().resolve_neg().numpy().copy()
    if isinstance(value, np.ndarray) or is_foreign_array(value):
        return np.array(value if isinstance(value, np.ndarray) else np.from_dlpack(value))
    if isinstance(value, tuple):
        items = [copied(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is list:
        return [copied(item) for item in value]
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return value


def difference(
    expected: Any,
    came: Any,
    *,
    single: bool = False,
    classes: bool = True,
    where: str = "the result",
    coarsest: float = 0.0,
) -> str:
    """What is different, as a sentence; "" if nothing is.

    Args:
        single: NumPy's double-precision results may be single, as with ``default_float_dtype="float32"``.
        classes: arrays and NumPy's numbers must be of the same class.
        coarsest: the tolerance of the coarsest floats that the results come from, as ``tolerance_of`` gives it.
    """
    if isinstance(expected, list | tuple):
        same_class = type(expected) is type(came)
        if not same_class or len(expected) != len(came):
            return f"{where} is {_described(came)}, NumPy's {_described(expected)}"
        items = enumerate(zip(expected, came, strict=True))
        found = (
            difference(e, c, single=single, classes=classes, coarsest=coarsest, where=f"{where}[{i}]")
            for i, (e, c) in items
        )
        return next(filter(None, found), "")
    if isinstance(expected, dict):
        if type(came) is not type(expected) or list(came) != list(expected):
            return f"{where} is {_described(came)}, NumPy's {_described(expected)}"
        found = (
            difference(expected[k], came[k], single=single, classes=classes, coarsest=coarsest, where=f"{where}[{k!r}]")
            for k in expected
        )
        return next(filter(None, found), "")
    if isinstance(expected, np.ndarray | np.generic) or isinstance(came, np.ndarray | np.generic):
        return _array_difference(expected, came, single, classes, where, coarsest)
    if type(expected) is not type(came):
        return f"{where} is {_described(came)}, NumPy's {_described(expected)}"
    if isinstance(expected, float | complex):
        return values_differ(np.asarray(expected), np.asarray(came), where)
    same = expected is came or (isinstance(expected, _COMPARABLE) and expected == came)
    return "" if same else f"{where} is {came!r}, NumPy's {expected!r}"


_COMPARABLE = (str, bytes, int, bool, range, slice, set, frozenset, np.dtype)


def _array_difference(expected: Any, came: Any, single: bool, classes: bool, where: str, coarsest: float) -> str:
    numbers = (np.ndarray, np.generic, bool, int, float, complex)
    if not isinstance(expected, numbers) or not isinstance(came, numbers):
        return f"{where} is {_described(came)}, NumPy's {_described(expected)}"
    if classes and isinstance(expected, np.ndarray) != isinstance(came, np.ndarray):
        return f"{where} is {_described(came)}, NumPy's {_described(expected)}"
    e, c = np.asarray(expected), np.asarray(came)
    if single and e.dtype.name in _SINGLE and c.dtype.name == _SINGLE[e.dtype.name]:
        e = e.astype(c.dtype)
    if e.dtype != c.dtype or e.shape != c.shape:
        return f"{where} is {_described(came)}, NumPy's {_described(expected)}"
    return values_differ(e, c, where, coarsest)


_SINGLE = {"float64": "float32", "complex128": "complex64"}


def values_differ(expected: Any, came: Any, where: str, coarsest: float = 0.0) -> str:
    """The first value that differs by more than sums in another order do; integers and booleans must be equal."""
    if expected.dtype.kind not in "fc":
        wrong = expected != came
    else:
        tolerance = max(_TOLERANCE.get(expected.dtype.name, 1e-9), coarsest)
        finite = np.isfinite(expected)
        with np.errstate(all="ignore"):
            scale = np.max(np.abs(expected), where=finite, initial=0.0)
            near = np.abs(came - expected) <= tolerance * (np.abs(expected) + min(scale, 1e300))
        same = (came == expected) | (np.isnan(came) & np.isnan(expected))
        wrong = ~np.where(finite & np.isfinite(came), near, same)
    if not np.any(wrong):
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f"{where}{list(at)}" if at else where
    return f"{place} is {came[at]}, NumPy's {expected[at]}"


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    if isinstance(value, np.generic):
        return f"the number {value!r}"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"
