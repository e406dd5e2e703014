"""Sends operators to another machine: by the files they are made of, or by value."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opwright.errors import CheckError
from opwright.file_trust import OTHERS_WRITE
from opwright.machine import this_machine
from opwright.runtime import serialization
from opwright.runtime.op import Op
from opwright.runtime.source_files import source_files
from opwright.runtime.targets import ImportPath, find_import_path, import_operator

__all__ = ["SentOperator", "receive", "send"]


@dataclass(frozen=True)
class SentOperator:
    """An operator in a form that another machine can take.

    Attributes:
        import_path: the module that defines it; None for a notebook's operator.
        files: the contents of the user's files by their absolute paths, kernels' sources and headers included.
        path: ``sys.path``, of which the parts that these files lie in are needed.
        pickle: the operator by value; empty if it cannot be sent so, and ``why_not`` says why.
    """

    import_path: ImportPath | None
    fingerprint: str
    files: dict[str, bytes]
    path: Sequence[str]
    pickle: bytes
    why_not: str


def send(operator: Op) -> SentOperator:
    """An operator in a form that can be sent."""
    pickle, why_not = b"", ""
    try:
        pickle = serialization.dump(operator)
    except Exception as error:  # cloudpickle raises whatever the objects' own reducers do
        why_not = f"{type(error).__name__}: {error}"
    return SentOperator(
        import_path=find_import_path(operator),
        fingerprint=operator._untuned_fingerprint,
        files={str(file): file.read_bytes() for file in source_files(operator)},
        path=tuple(sys.path),
        pickle=pickle,
        why_not=why_not,
    )


def receive(sent: SentOperator) -> Op:
    """The operator on this machine: from its own files where they are the same, else from those that were sent, else
    by value.

    Raises:
        CheckError: there are no such files here, and it cannot be sent by value.
    """
    if sent.import_path is not None:
        # The import of another version would register that one, so files are compared before.
        root = None if _has_same_files(sent.files) else _written(sent.files)
        with contextlib.suppress(Exception):  # the user's module may raise anything here
            found = import_operator(_below(root, sent))
            if found is not None and found._untuned_fingerprint == sent.fingerprint:
                return found
    if not sent.pickle:
        raise CheckError(
            f"this machine cannot import the operator, and it cannot be sent by value: {sent.why_not}",
            fix="install the same version of the operator's package on every machine",
        )
    return serialization.load(sent.pickle)


def _has_same_files(files: dict[str, bytes]) -> bool:
    try:
        return all(Path(name).read_bytes() == content for name, content in files.items())
    except OSError:
        return False


def _written(files: dict[str, bytes]) -> Path:
    """The folder below which the files lie, each at its path; in the cache folder, by a digest of them all."""
    named = b"".join(b"%d:%b%d:%b" % (len(n), n, len(c), c) for n, c in ((k.encode(), v) for k, v in files.items()))
    root = this_machine().cache_dir / "sources" / hashlib.sha256(named).hexdigest()[:20]
    for name, content in files.items():
        file = root / name.lstrip("/")
        if file.is_file() and file.read_bytes() == content:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
        partial.write_bytes(content)
        partial.chmod(partial.stat().st_mode & ~OTHERS_WRITE)
        partial.replace(file)
    return root


def _below(root: Path | None, sent: SentOperator) -> ImportPath:
    """The import path on this machine; ``sys.path`` gets the folders that it needs, before all others."""
    path = sent.import_path
    assert path is not None  # else there is nothing to import
    folders = [f for f in sent.path if f and any(name.startswith(f.rstrip("/") + "/") for name in sent.files)]
    place = functools.partial(_place, root)
    sys.path[:] = list(dict.fromkeys([*map(place, folders), *sys.path, *sent.path]))
    return ImportPath(path.module, None if path.file is None else place(path.file), path.qualname)


def _place(root: Path | None, name: str) -> str:
    return name if root is None else str(root / name.lstrip("/"))
