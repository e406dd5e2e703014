"""Where a daemon listens. The name of the folder holds all that a process reads when it starts, so that a command takes
no daemon of another environment, another interpreter, or of sources that have changed since."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import resource
import shutil
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opwright.file_trust import why_untrusted
from opwright.machine import cache_dir

__all__ = [
    "LOG", "MESSAGE_BYTES", "all_folders", "connect", "folder_of", "leave", "listen", "make", "parts", "process_of",
    "read_about", "root",
]  # fmt: skip

LOG, _ABOUT, _SOCKET = "log.txt", "about.json", "socket"
# The most that a request may hold: an environment and arguments.
MESSAGE_BYTES = 1 << 17
# Variables that differ from one terminal or folder to the next, and that no import reads.
_OF_A_TERMINAL = frozenset({
    "_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "TERM", "COLORTERM", "TERM_SESSION_ID", "WINDOWID", "GPG_TTY",
    "SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "TMUX", "TMUX_PANE", "STY", "WINDOW", "XDG_SESSION_ID", "PS1",
    "NO_COLOR",
})  # fmt: skip
_PREFIXES_OF_TERMINALS = ("GNOME_TERMINAL_", "ITERM_", "KITTY_", "VSCODE_", "WEZTERM_", "TERM_PROGRAM")


def parts(environment: Mapping[str, str]) -> dict[str, str]:
    """What a new process would read, each part as a digest: variables, the interpreter, sources, packages, limits."""
    variables = {
        f"${name}": value
        for name, value in environment.items()
        if name not in _OF_A_TERMINAL and not name.startswith(_PREFIXES_OF_TERMINALS)
    }
    others = {
        # By any of its names: "python" and "python3.11" are one.
        "the interpreter": [sys.prefix, os.path.realpath(sys.executable), sys.version, list(sys.flags)],
        "opwright's sources": list(_stamps_of_sources()),
        "installed packages": list(_stamps_of_packages()),
        "limits": [_limits(), sorted(os.sched_getaffinity(0)), os.geteuid(), os.getegid()],
    }
    return {name: _digest(value) for name, value in {**variables, **others}.items()}


def folder_of(found: Mapping[str, str]) -> Path:
    """The folder of the daemon whose environment has these parts."""
    return root() / _digest(sorted(found.items()))


def all_folders() -> list[Path]:
    """The folders of all daemons of this cache, and of some that have ended."""
    return sorted(f for f in root().iterdir() if f.is_dir()) if root().is_dir() else []


def make(folder: Path, about: dict[str, Any]) -> None:
    """Make the folder of a daemon that is to start, with what it is told."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(folder / _ABOUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(about, file)


def read_about(folder: Path) -> dict[str, Any]:
    """What the daemon of a folder was told."""
    return dict(json.loads((folder / _ABOUT).read_text()))


def leave(folder: Path) -> None:
    """Remove a folder: nobody listens there any more."""
    shutil.rmtree(folder, ignore_errors=True)


def listen(folder: Path) -> socket.socket:
    """Listen in a new folder, or in one that a daemon has left."""
    with _short(folder) as name:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(name)
        listener.listen(64)
    return listener


def connect(folder: Path) -> socket.socket | None:
    """A connection to the daemon of a folder; None if there is none, or one that another user may have started."""
    if any(why_untrusted(path) for path in (folder.parent.parent, folder.parent, folder)):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short(folder) as name:
            connection.connect(name)
        if _credentials(connection)[1] == os.geteuid():
            return connection
    except OSError:  # nobody listens
        pass
    connection.close()
    return None


def process_of(connection: socket.socket) -> int:
    """The process that listens at the other side."""
    return _credentials(connection)[0]


def _credentials(connection: socket.socket) -> tuple[int, ...]:
    """The process, user and group of the other side."""
    format = "3i"
    return struct.unpack(format, connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(format)))


def root() -> Path:
    """The folder with those of all daemons."""
    return cache_dir() / ".daemons"


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A name of the socket in a folder that is as short as a socket's name must be."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET}"
    finally:
        os.close(descriptor)


def _stamps_of_sources() -> Iterator[tuple[str, int, int]]:
    opwright = Path(__file__).resolve().parents[2]
    both = opwright, opwright.parent / "kernelsim"
    for folder, _, files in itertools.chain(*map(os.walk, both)):
        for file in files:
            if file.endswith(".py"):
                found = os.stat(os.path.join(folder, file))
                yield os.path.join(folder, file), found.st_mtime_ns, found.st_size


def _stamps_of_packages() -> Iterator[tuple[str, int]]:
    """The folders of packages, each with when something was last installed there."""
    for path in sys.path:
        if path.endswith(("site-packages", "dist-packages")) and os.path.isdir(path):
            yield path, os.stat(path).st_mtime_ns


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:20]
