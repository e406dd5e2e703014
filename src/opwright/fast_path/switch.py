"""The switch of fast calls: ``OPWRIGHT_FAST_CALLS``, and ``ow.fast_calls(False)``.

With fast calls off, every call of an operator goes through torch's dispatcher, every launcher and every gradient runs
in Python. Nothing else differs.
"""

from __future__ import annotations

import enum
import os
import threading
from contextlib import AbstractContextManager
from types import TracebackType

from opwright.fast_path.extension import FastCalls, fast_calls_extension

__all__ = ["Mode", "extension_in_use", "fast_calls", "mode", "set_mode"]

_VARIABLE = "OPWRIGHT_FAST_CALLS"


class Mode(enum.StrEnum):
    """What ``OPWRIGHT_FAST_CALLS`` asks for."""

    ON = "1"
    OFF = "0"
    VERIFY = "verify"  # each fast call is also made the plain way, and a difference is an error


def _mode_of(text: str) -> Mode:
    """An unknown value switches fast calls off."""
    try:
        return Mode(text)
    except ValueError:
        return Mode.OFF


_mode = _mode_of(os.environ.get(_VARIABLE, Mode.ON))
_blocks = 0  # how many of ow.fast_calls(False) are open
_counted = 0  # how many reasons the extension knows
_lock = threading.RLock()


def mode() -> Mode:
    """The mode of this process."""
    return _mode


def set_mode(text: str) -> None:
    """Replace the mode that the environment gave."""
    global _mode
    _mode = _mode_of(text)
    _tell_the_extension()


def extension_in_use() -> FastCalls | None:
    """The extension, if it is loaded and nothing is switched off; it counts a call otherwise, and is loaded after some
    calls if it has been built."""
    if _mode is Mode.OFF or _blocks:
        return None
    if fast_calls_extension.loaded is None and fast_calls_extension.after_some_calls() is None:
        return None
    _tell_the_extension()
    return fast_calls_extension.loaded


def _tell_the_extension() -> None:
    """Calls of classes make fast calls by themselves with the mode ON only; the mode VERIFY makes them in Python."""
    global _counted
    reasons = _blocks + (_mode is not Mode.ON)
    if fast_calls_extension.loaded is None or reasons == _counted:
        return
    with _lock:
        reasons = _blocks + (_mode is not Mode.ON)
        fast_calls_extension.loaded.count_reason(reasons - _counted)
        _counted = reasons


class fast_calls(AbstractContextManager[None]):
    """Switch fast calls off or on again, in all threads of this process, like ``torch.set_grad_enabled``: for a block
    in a ``with`` statement, else from now on.

    With fast calls off, every call of an operator takes the plain way, through torch's dispatcher. Results do not
    differ. The environment variable ``OPWRIGHT_FAST_CALLS=0`` does the same for a process, and
    ``OPWRIGHT_FAST_CALLS=verify`` makes every fast call both ways and raises ``FastCallError`` at a difference.

    Args:
        enabled: whether calls may be fast.

    >>> import opwright as ow
    >>> with ow.fast_calls(False):
    ...     pass  # calls here go through torch's dispatcher
    """

    def __init__(self, enabled: bool) -> None:
        self._change = _change_blocks(enabled)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _add_blocks(-self._change)


def _change_blocks(enabled: bool) -> int:
    """Open a block, or close all that are open; returns the change of their number."""
    return _add_blocks(-_blocks if enabled else 1)


def _add_blocks(count: int) -> int:
    global _blocks
    with _lock:
        before = _blocks
        _blocks = max(before + count, 0)
        _tell_the_extension()
        return _blocks - before
