"""Asks the worker of a cluster, in another process of this machine, for artifacts that other machines have built.

One connection is one artifact: ``{"want": key, "root": folder}``; the answer is a line when the artifact is in the
folder, or when it is this process's turn to build it. Then ``{"built": folder}``, or the end of the connection.
Whatever goes wrong with it, the artifact is built here.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SocketSupplier"]

# Longer than any build that another machine may be waited for.
_SECONDS = 1800.0


@dataclass(frozen=True)
class SocketSupplier:
    """A ``cache.Supplier`` behind a socket."""

    address: Path

    def bring(self, key: str, root: Path) -> SocketTurn:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_SECONDS)
        with contextlib.suppress(OSError):
            connection.connect(str(self.address))
            connection.sendall(json.dumps({"want": key, "root": str(root)}).encode() + b"\n")
            connection.recv(1)
        return SocketTurn(connection)


@dataclass(frozen=True)
class SocketTurn:
    """A ``cache.Turn``: it lasts as long as the connection."""

    connection: socket.socket

    def over(self, built: Path | None) -> None:
        with self.connection, contextlib.suppress(OSError):
            if built is not None:
                self.connection.sendall(json.dumps({"built": str(built)}).encode() + b"\n")
                self.connection.recv(1)
