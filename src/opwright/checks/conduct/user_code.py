"""Whose code runs: the user's, opwright's, or that of a library."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

__all__ = ["LIBRARY", "OPWRIGHT", "USER", "caller_of", "owner_of"]

USER, OPWRIGHT, LIBRARY = "user", "opwright", "library"
_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
# Folders of users are below the interpreter's own only in environments, which have them in site-packages.
_LIBRARIES = tuple(f"{Path(sysconfig.get_path(name))}/" for name in _PATHS)
_SOURCE = Path(__file__).parents[3]
_OWN = (f"{_SOURCE}/opwright/", f"{_SOURCE}/kernelsim/")


@functools.lru_cache(4096)
def owner_of(file: str) -> str:
    """Who wrote a file of code. What is not known to be a library is the user's, also code without a file."""
    if file.startswith(_OWN):
        return OPWRIGHT
    return LIBRARY if file.startswith(("<frozen ", *_LIBRARIES)) else USER


def caller_of(frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from this one outwards, that runs no library's code."""
    return next((f for f in _outwards(frame) if owner_of(f.f_code.co_filename) != LIBRARY), None)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
