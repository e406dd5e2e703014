"""How the size of an axis shows a constant: as itself, or as an expression of it, such as the number of its pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opwright.contract.shapes.dims import evaluate

__all__ = ["Place", "Shown"]

# The argument and the axis that show a constant, and the size as an expression of it if it is another number. (Records
# have no type for a tuple with two lengths.)
Place = tuple[Any, ...]

_LARGEST = 1 << 40
# Of the constants that one size stands for, so many are told apart; they are taken in turn from size to size.
_MOST_PER_SIZE, _STEP = 64, 7


@dataclass(frozen=True)
class Shown:
    """A constant, and the size that shows it.

    Attributes:
        name: the constant.
        text: the size as an expression of the constant, which does not decrease with it.
    """

    name: str
    text: str

    @classmethod
    def at(cls, name: str, place: Place) -> Shown:
        return cls(name, place[2] if len(place) == 3 else name)

    @property
    def is_itself(self) -> bool:
        return self.text == self.name

    @property
    def dim(self) -> str:
        """The name of the size in a contract."""
        return self.name if self.is_itself else f"{self.name}_size"

    def place(self, i: int, axis: int) -> Place:
        return (i, axis) if self.is_itself else (i, axis, self.text)

    def size(self, value: int) -> int:
        """The size that shows a value."""
        return value if self.is_itself else int(evaluate(self.text, {self.name: value}))

    def value(self, size: int, usual: int) -> int | None:
        """The value that a size shows; None if there is none. Where a size stands for several values, ``usual`` is
        taken if it is one of them, and else a fixed one for each size: now the least, now one between."""
        if self.is_itself:
            return size
        if self.size(usual) == size:
            return usual
        low, high = 0, 1  # size(low) < size <= size(high)
        while self.size(high) < size and high < _LARGEST:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.size(middle) < size else (low, middle)
        several = [high + more for more in range(_MOST_PER_SIZE) if self.size(high + more) == size]
        return several[_STEP * size % len(several)] if several else None
