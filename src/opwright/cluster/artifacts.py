"""Brings artifacts of other machines to the processes of this one, in a thread of Ray's worker."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from opwright.cache import pack, unpack
from opwright.cluster.artifact_store import LEASE_S

__all__ = ["Artifacts", "serve_artifacts"]

_VARIABLE, _PREFIX = "OPWRIGHT_SUPPLIER", "opwright-supplier-"
_SECONDS_TO_ANSWER, _SECONDS_BETWEEN_QUESTIONS = 60.0, 0.2


def serve_artifacts(store: Any) -> None:
    """Answer the processes of this worker from now on, once for each; ``store`` is the actor of ``ArtifactStore``."""
    if os.environ.get(_VARIABLE, "").endswith(f"-{os.getpid()}"):
        return
    _remove_leftovers()
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")  # nobody else may write into it
    address = os.path.join(folder, f"socket-{os.getpid()}")
    Artifacts(store).listen(address)
    os.environ[_VARIABLE] = address


def _remove_leftovers() -> None:
    """Remove the folders of workers that have ended; Ray ends most of its workers without notice."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            worker = int(folder.name.removeprefix(_PREFIX).partition("-")[0])
            if folder.stat().st_uid == os.geteuid() and not Path(f"/proc/{worker}").exists():
                shutil.rmtree(folder)


class Artifacts:
    """The artifacts of the cluster, as far as this machine asks for them."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def listen(self, address: str) -> None:
        """Answer at a socket, in threads that end with the process."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(address)
        os.chmod(address, 0o600)
        server.listen()
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """One artifact. If the cluster fails, the process builds it as if it were alone."""
        who = secrets.token_hex(8)
        with connection, contextlib.suppress(Exception), connection.makefile("rb") as lines:
            asked = json.loads(lines.readline())
            key, root = asked["want"], Path(asked["root"])
            is_builder = True
            try:
                is_builder = self._bring(key, root, who)
            finally:
                connection.sendall(b".")
            if is_builder:
                self._wait_for_build(connection, key, who)

    def _bring(self, key: str, root: Path, who: str) -> bool:
        """Put what there is into the cache. Returns whether there is nothing, and the process builds."""
        known = [path.name for path in root.iterdir() if path.name.startswith(key)]
        while True:
            new, wait = self._ask(self._store.want.remote(key, who, known))
            if not wait:
                break
            time.sleep(_SECONDS_BETWEEN_QUESTIONS)
        for name, ref in new.items():
            unpack(self._ask(ref), name, root)
        return not new

    def _wait_for_build(self, connection: socket.socket, key: str, who: str) -> None:
        """Until the process has built it, or its connection has ended; the cluster is told that it goes on."""
        connection.settimeout(LEASE_S / 3)
        received, built = b"", ""
        with contextlib.suppress(OSError, ValueError, LookupError):
            while not received.endswith(b"\n"):
                try:
                    data = connection.recv(4096)
                except TimeoutError:
                    self._store.builds.remote(key, who)
                    continue
                if not data:
                    break
                received += data
            built = json.loads(received)["built"] if received else ""
        folder = Path(built)
        self._ask(self._store.ends.remote(key, who, folder.name if built else "", pack(folder) if built else b""))
        with contextlib.suppress(OSError):
            connection.sendall(b".")

    def _ask(self, ref: Any) -> Any:
        import ray

        return ray.get(ref, timeout=_SECONDS_TO_ANSWER)
