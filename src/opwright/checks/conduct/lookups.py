"""Where the user's code looks at frames, at the objects of other code, or into files, from when this is switched on.

Python itself reports this (PEP 578), and a hook cannot be removed. Events of libraries on their own behalf, such as
that of ``logging`` which finds the line of a message, do not count.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from opwright.checks.conduct.user_code import USER, caller_of, owner_of

__all__ = ["FRAMES", "OBJECTS", "Lookup", "Lookups"]

FRAMES, OBJECTS, FILES = "frames", "objects", "files"
_KINDS = {
    "sys._getframe": FRAMES, "sys._current_frames": FRAMES, "sys._current_exceptions": FRAMES, "sys.settrace": FRAMES,
    "sys.setprofile": FRAMES, "gc.get_objects": OBJECTS, "gc.get_referrers": OBJECTS, "gc.get_referents": OBJECTS,
    "open": FILES,
}  # fmt: skip
# Attributes that have a frame.
_OF_FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
# Of the module traceback, the functions that return frames to their caller. Those of inspect all do.
_WALKS = ("walk_tb", "walk_stack")
_MOST = 10_000


@dataclass(frozen=True)
class Lookup:
    """One event: its kind, the function or the file, and the line of the user's code."""

    kind: str
    what: str
    line: str


class Lookups:
    """The events of this process since this object was made."""

    def __init__(self) -> None:
        self.found: dict[Lookup, None] = {}
        self._is_inside = False
        sys.addaudithook(self._hear)

    def opened(self, files: frozenset[str]) -> list[Lookup]:
        """Those in which a file was opened."""
        return [each for each in self.found if each.kind == FILES and each.what in files]

    def of(self, kind: str) -> list[Lookup]:
        return [each for each in self.found if each.kind == kind]

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        kind = _KINDS.get(event, "")
        if event == "object.__getattr__" and arguments[1] in _OF_FRAMES:
            kind, event = FRAMES, str(arguments[1])
        if not kind or self._is_inside or len(self.found) >= _MOST:
            return
        self._is_inside = True
        try:
            frame = inspect.currentframe()
            self._add(kind, event, arguments, frame.f_back if frame is not None else None)
        finally:
            self._is_inside = False

    def _add(self, kind: str, event: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        user = caller_of(frame) if kind == FILES else _receiver(frame)
        if user is None or owner_of(user.f_code.co_filename) != USER:
            return
        what = event
        if kind == FILES:
            if not isinstance(arguments[0], str):
                return
            what = os.path.realpath(arguments[0])
            if what == os.path.realpath(user.f_code.co_filename):  # for the text of a line, as of a warning
                return
        line = f"{Path(user.f_code.co_filename).name}:{user.f_lineno}"
        self.found[Lookup(kind, what, line)] = None


def _receiver(frame: FrameType | None) -> FrameType | None:
    """Who gets what a function returns: its caller, or that of a library's function that hands it on."""
    while frame is not None and _hands_on(frame.f_code.co_filename, frame.f_code.co_name):
        frame = frame.f_back
    return frame


def _hands_on(file: str, function: str) -> bool:
    of_traceback = file == traceback.__file__ and function in _WALKS
    return file == inspect.__file__ or of_traceback
