"""NVRTC in a process of its own: some sources crash it, and then it must not take Python down.

The process starts with the first compilation and ends with this one. A process that was forked from this one starts
another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.backends.cuda import nvrtc_child

__all__ = ["NvrtcDiedError", "NvrtcResult", "run_nvrtc"]


class NvrtcDiedError(Exception):
    """The process ended while it compiled; the message says how."""


@dataclass(frozen=True)
class NvrtcResult:
    """The result of one compilation. Of one that failed, only the log and the status are known.

    Attributes:
        status: NVRTC's own word for it.
        symbols: the symbol of each expression that was asked for.
    """

    succeeded: bool
    status: str
    log: str
    cubin: bytes = b""
    ptx: str = ""
    symbols: dict[str, str] = field(default_factory=dict)


def run_nvrtc(
    text: str, name: str, headers: Mapping[str, str], flags: Sequence[str], expressions: Sequence[str]
) -> NvrtcResult:
    """Compile a text.

    Args:
        name: of the source, in messages.
        headers: texts that can be included by these names, besides files.
        expressions: names of kernels, or instances of templates.

    Raises:
        NvrtcDiedError: NVRTC crashed. The next call starts it again.
    """
    request = {
        "text": text, "name": name, "headers": dict(headers), "flags": list(flags), "expressions": list(expressions),
        "folder": os.getcwd(),
    }  # fmt: skip
    return NvrtcResult(**_compiler().answer(request))


class _Compiler:
    """The running process, and the process that started it."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", str(Path(nvrtc_child.__file__))]
        self.owner = os.getpid()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lock = threading.Lock()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.lock:
            answer = None
            with contextlib.suppress(BrokenPipeError):
                nvrtc_child.write(self.process.stdin, request)  # type: ignore[arg-type]
                answer = nvrtc_child.read(self.process.stdout)  # type: ignore[arg-type]
            if answer is None:
                raise NvrtcDiedError(_ending(self.process.wait()))
            return dict(answer)

    @property
    def usable(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None


_current: list[_Compiler] = []  # at most one
_starting = threading.Lock()


def _compiler() -> _Compiler:
    with _starting:
        if not _current or not _current[0].usable:
            _current[:] = [_Compiler()]
        return _current[0]


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"
