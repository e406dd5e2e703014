"""A test case: a short text that stands for one call's arguments."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from opwright.contract.dtypes import short

__all__ = [
    "BOUNDS", "EIGHTHS", "MILLIONS", "MOST_LISTS", "OF_TENSORS", "RUNS", "SCALARS", "SCALAR_BOUNDS", "SMALL", "TARGETS",
    "VALUES", "WIDE", "Case", "Size", "show_size",
]  # fmt: skip

# The length of lists of tensors, except in a few cases.
MOST_LISTS = 3

Size = int | tuple[int, ...]

# Which values numbers without stated values have in a case; drawn, if it does not say.
SCALARS = ("default", "zero", "negative", "large", "hundreds")
# Which values floating tensors without stated values have in a case; from a normal distribution, if it does not say.
EIGHTHS, SMALL = "eighths", "small"
VALUES = ("large", "confident", "shifted", "inf", "nan", "tiny", EIGHTHS, "low", SMALL)
# The same of integer tensors, where integers are computed from integers: past the integers of float32, and up to near
# the largest of their dtype.
MILLIONS, WIDE = "millions", "wide"
# Bounds of ranges that are stated, among other values; and for numbers, which of them.
BOUNDS = "bounds"
SCALAR_BOUNDS = ("lowest", "highest")
# Runs of equal values in masks and other tensors of a few values, and whole rows of one.
RUNS = "runs"
# Scores of a model that is sure, and places of the largest ones among integers that are places in them.
TARGETS = "targets"
# All that ``values`` of a case may be.
OF_TENSORS = (*VALUES, MILLIONS, WIDE, BOUNDS, RUNS, TARGETS)


@dataclass(frozen=True)
class Case:
    """One call's inputs. ``sizes`` gives each dim (a tuple for ``*name``), ``dtypes`` each dtype class."""

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
    def is_plain(self) -> bool:
        """Whether numbers and tensors have ordinary values."""
        return not self.values and self.scalars in ("", "default")

    def with_size(self, name: str, size: Size) -> Case:
        """The same case with another size of one dim."""
        return dataclasses.replace(self, sizes=tuple((n, size if n == name else s) for n, s in self.sizes))


def show_size(size: Size) -> str:
    return ("x".join(map(str, size)) or "-") if isinstance(size, tuple) else str(size)
