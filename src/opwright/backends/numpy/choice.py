"""Which way calls of a NumPy function go: compiled, or NumPy itself. Times of the first calls decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from opwright import tree
from opwright.backends.numpy.finishing import Finishing
from opwright.contract.dtypes import short, zeros_in
from opwright.contract.numpy.comparison import is_foreign_array

__all__ = [
    "NUMPY", "SMALL", "Choices", "Form", "MeasuredWays", "QuickWay", "form_of", "is_small", "quick_key", "shown",
]  # fmt: skip

NUMPY = "NumPy"
# Products of two integers below this fit into 64 bits. Calls with larger arguments are of other forms.
SMALL = 1 << 31
_MOST_KEYS = 4096
_CLEARLY = 0.9


@dataclass(frozen=True)
class MeasuredWays:
    """What was measured for arguments of some size.

    Attributes:
        arguments: those of the call that was measured.
        seconds: the time of one call, by the way it went: NumPy, torch.compile, numba.
        chosen: the way of calls of about this size.
    """

    arguments: str
    seconds: dict[str, float]
    chosen: str

    def __str__(self) -> str:
        times = ", ".join(f"{way} {_readable(seconds)}" for way, seconds in self.seconds.items())
        return f"({self.arguments})  {times}: calls of this size go to {self.chosen}"


def _readable(seconds: float) -> str:
    unit, factor = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{seconds * factor:.3g} {unit}"


@dataclass(frozen=True)
class Form:
    """What calls have in common. ``kind`` decides what is compiled, ``sizes`` roughly how long it takes."""

    kind: Any
    sizes: Any


class QuickWay(NamedTuple):
    """The way of calls with the same types, dtypes and shapes."""

    way: str
    finishing: Finishing | None


class Choices:
    """The way of each form of call, once it was measured."""

    def __init__(self) -> None:
        self.made: list[MeasuredWays] = []
        self._ways: dict[Form, str] = {}
        self._quick: dict[Any, QuickWay] = {}

    def way(self, form: Form) -> str | None:
        """The way that was chosen."""
        return self._ways.get(form)

    def quick_way(self, key: Any) -> QuickWay | None:
        """The way that was remembered for exactly these shapes."""
        return self._quick.get(key)

    def remember(self, key: Any, way: str, finishing: Finishing | None = None) -> None:
        """Remember the way of calls with exactly these shapes, and what is to be changed in its results."""
        if key is not None:
            if len(self._quick) >= _MOST_KEYS:
                self._quick.clear()
            self._quick[key] = QuickWay(way, finishing)

    def forget_quick_ways(self) -> None:
        """Let the next call of each shape be looked at anew."""
        self._quick.clear()

    def send_to_numpy(self, form: Form) -> None:
        """Let NumPy run calls of this form."""
        self._ways[form] = NUMPY
        self._quick.clear()

    def choose(self, form: Form, arguments: str, seconds: dict[str, float]) -> MeasuredWays:
        """Choose the fastest way; NumPy unless another is clearly faster, since times vary."""
        chosen = min(seconds, key=lambda way: seconds[way] * (_CLEARLY if way == NUMPY else 1.0))
        choice = MeasuredWays(arguments, seconds, chosen)
        self.made.append(choice)
        self._ways[form] = chosen
        return choice


def quick_key(args: Sequence[Any]) -> Any:
    """Types, dtypes and shapes of plain arrays and numbers; None if there are other arguments."""
    key: list[Any] = []
    for value in args:
        kind = type(value)
        if kind is np.ndarray:
            key += (value.dtype, value.shape)
        elif kind is int:
            key.append(kind if -SMALL < value < SMALL else "large")
        elif kind is float:
            key.append(kind if value else (kind, zeros_in(value)))
        else:
            return None
    return tuple(key)


def is_small(value: Any) -> bool:
    """Whether an argument is no integer of :data:`SMALL` or more, no array of so many elements or so long."""
    if isinstance(value, np.ndarray):
        return value.size < SMALL and max(value.shape, default=0) < SMALL
    return not isinstance(value, int | np.integer) or bool(-SMALL < value < SMALL)


def form_of(like: Any, leaves: Sequence[Any]) -> tuple[Form, bool]:
    """The form of a call, and whether its arguments are arrays and no tensors."""
    kinds: list[Any] = []
    sizes: list[int] = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            # Loops over no elements leave what was there before: Python's numbers, where others leave NumPy's.
            kinds.append((leaf.dtype, leaf.ndim, leaf.flags.c_contiguous, is_small(leaf), leaf.size == 0))
            sizes.append(leaf.size.bit_length() // 2)
        elif isinstance(leaf, torch.Tensor):
            kinds.append((leaf.dtype, leaf.device, leaf.requires_grad, leaf.dim()))
        else:
            is_number = isinstance(leaf, int | float | np.generic)
            kinds.append((type(leaf), is_small(leaf)) if is_number else _hashable(leaf))
    on_arrays = not any(isinstance(leaf, torch.Tensor) or is_foreign_array(leaf) for leaf in leaves)
    return Form((tree.form(like), tuple(kinds)), tuple(sizes)), on_arrays


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return type(value)
    return value


def shown(value: Any) -> str:
    """An argument in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, torch.Tensor):
        return f"{short(value.dtype)}{list(value.shape)}" + ("" if value.is_cpu else f" on {value.device}")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in value.items()) + "}"
    text = repr(value)
    return text if len(text) < 40 else type(value).__name__
