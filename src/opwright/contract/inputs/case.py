"""A test case: a short text that stands for one call's arguments."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from opwright.contract.dtypes import short

__all__ = [
    "BOUNDS", "CONFIDENT", "DYADIC", "HUGE", "LARGE_INTEGERS", "MASKED", "MOST_LISTS", "OF_TENSORS", "PEAK_TARGETS",
    "RUNS", "SCALARS", "SCALAR_BOUNDS", "SMALL", "VALUES", "WIDE", "Case", "Size", "is_as_long", "longest_of",
    "own_size_name", "show_size",
]  # fmt: skip

# The length of lists of tensors, except in a few cases.
MOST_LISTS = 3

Size = int | tuple[int, ...]

# Which values numbers without stated values have in a case; drawn, if it does not say.
SCALARS = ("default", "zero", "negative", "large", "hundreds")
# Which values floating tensors without stated values have in a case; from a normal distribution, if it does not say.
CONFIDENT, DYADIC, SMALL = "confident", "dyadic", "small"
VALUES = ("large", CONFIDENT, "shifted", "inf", "nan", "tiny", DYADIC, "low", SMALL)
# The same of integer tensors, where integers are computed from integers: past the integers of float32, and up to near
# the largest of their dtype.
LARGE_INTEGERS, WIDE = "large_integers", "wide"
# Bounds of ranges that are stated, among other values; and for numbers, which of them.
BOUNDS = "bounds"
SCALAR_BOUNDS = ("lowest", "highest")
# Runs of equal values in masks and other tensors of a few values, and whole rows of one.
RUNS = "runs"
# Scores of a model that is sure, and places of the largest ones among integers that are places in them.
PEAK_TARGETS = "peak_targets"
# Of float16 only: numbers whose squares float16 does not have.
HUGE = "huge"
# What is masked, as in scores before a softmax: -inf.
MASKED = "masked"
# All that ``values`` of a case may be.
OF_TENSORS = (*VALUES, HUGE, MASKED, LARGE_INTEGERS, WIDE, BOUNDS, RUNS, PEAK_TARGETS)


@dataclass(frozen=True)
class Case:
    """One call's inputs. ``sizes`` gives each dim (a tuple for ``*name``), ``dtypes`` each dtype class.

    The dims ``_`` of one axis are called ``_0``, ``_1``, …; one of them has another size under ``own_size_name``.
    """

    sizes: tuple[tuple[str, Size], ...]
    dtypes: tuple[tuple[str, torch.dtype], ...]
    layout: str = "contiguous"
    absent: bool = False
    # The one optional argument that is absent, if only one is.
    without: str = ""
    sample: int | None = None
    # The length of every list of tensors.
    lists: int = MOST_LISTS
    # One of SCALARS (or SCALAR_BOUNDS) and one of OF_TENSORS, or empty.
    scalars: str = ""
    values: str = ""
    # The number of processes in each process group.
    ranks: int = 1
    # The values of options, such as flags, by name; the others are drawn.
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        parts = [] if self.sample is None else [f"sample={self.sample}"]
        parts += [f"{name}={show_size(size)}" for name, size in self.sizes]
        if len(self.dtypes) == 1:
            parts.append(f"dtype={short(self.dtypes[0][1])}")
        else:
            parts += [f"{name}={short(dtype)}" for name, dtype in self.dtypes]
        parts.append(f"layout={self.layout}")
        parts += [f"lists={self.lists}"] * (self.lists != MOST_LISTS)
        parts += [f"scalars={self.scalars}"] * bool(self.scalars) + [f"values={self.values}"] * bool(self.values)
        parts += [f"ranks={self.ranks}"] * (self.ranks != 1)
        parts += [f"absent={self.without}"] * bool(self.without)
        parts += [f"{name}={value}" for name, value in self.options]
        return " ".join(parts + ["optional=absent"] * self.absent)

    def has(self, argument: str, *, is_optional: bool) -> bool:
        """Whether an argument is there."""
        return not (is_optional and (self.absent or self.without == argument))

    @property
    def dtype(self) -> torch.dtype | None:
        """The floating dtype if there is one, else the first."""
        found = [d for _, d in self.dtypes]
        return next((d for d in found if d.is_floating_point or d.is_complex), found[0] if found else None)

    @property
    def branch(self) -> tuple[object, ...]:
        """Which optional arguments are absent, and the options that are chosen."""
        return self.absent, self.without, self.options

    @property
    def is_plain(self) -> bool:
        """Whether numbers and tensors have ordinary values."""
        return not self.values and self.scalars in ("", "default")

    def with_size(self, name: str, size: Size) -> Case:
        """The same case with another size of one dim."""
        return dataclasses.replace(self, sizes=tuple({**dict(self.sizes), name: size}.items()))


def is_as_long(case: Case, other: Case) -> bool:
    """Whether the longest dim of another case is at least as long in this one."""
    lengths = {name: longest_of(size) for name, size in other.sizes}
    name = max(lengths, key=lengths.__getitem__, default="")
    return name != "" and longest_of(dict(case.sizes).get(name, 0)) >= lengths[name]


def own_size_name(argument: str, axis: int) -> str:
    """The name under which a case gives one argument's ``_`` another size than the same axis of others has."""
    return f"{argument}[{axis}]"


def longest_of(size: Size) -> int:
    """The size, or the longest of several axes (0 if there are none)."""
    return max(size, default=0) if isinstance(size, tuple) else size


def show_size(size: Size) -> str:
    return ("x".join(map(str, size)) or "-") if isinstance(size, tuple) else str(size)
