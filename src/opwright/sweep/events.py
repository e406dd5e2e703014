"""The functions that a caller may have called while kernels are checked or measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["QUIET", "Events"]


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Events:
    """What ``ow.check``, ``ow.bench`` and the other long functions call on their way; each does nothing by default.

    Attributes:
        planned: once, with the number of kernels, by ``ow.check``, ``ow.mutate`` and ``ow.selftest``.
        step: with a text about each step, by ``ow.bench`` and ``ow.tune``; ``ow.check`` puts the kernel before it.
        finished: with each verdict, measurement, result, or a text about each mutant, as soon as it is known.
        resumed: at the end, with what was taken from the file of ``resume=``, in words.
    """

    planned: Callable[[int], None] = _nothing
    step: Callable[..., None] = _nothing
    finished: Callable[[Any], None] = _nothing
    resumed: Callable[[str], None] = _nothing


QUIET = Events()
