"""kernelsim's own surroundings: the system's C++ compiler, and a cache in the user's cache folder.

Environment variables that it reads: ``CXX``, ``KERNELSIM_CACHE_DIR`` and ``XDG_CACHE_HOME``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsim.errors import CompileError
from kernelsim.host import Compiler, Key, KeyParts
from kernelsim.triton_sim import internals

__all__ = ["OwnHost", "own_host"]

# Variables that change what g++ reads or makes of it.
_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")
_TIME_LIMIT_S = 900.0  # a template that does not end is an error, not a hang
_ERROR = re.compile(r"(?m)^\S[^\n]*?:\d+(?::\d+)?: (?:fatal )?error\b(?:.|\n(?!\S))*")
_MOST_ERRORS, _MOST_LINES = 3, 6
_RECORD = "read.json"  # beside what was built: the files that its build has read

ReadFiles = dict[str, str]  # the files that a build has read, with the digests of their contents


@functools.cache
def own_host() -> OwnHost:
    """The host that is used if none is passed."""
    return OwnHost(_folder())


def _folder() -> Path:
    chosen = os.environ.get("KERNELSIM_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "kernelsim"


@dataclass(frozen=True)
class _Compiler:
    path: str
    version: str


class OwnHost:
    """A host with the system's compiler, whose cache is the folder ``root``.

    Args:
        notify: gets messages about what takes long; by default they are logged as ``kernelsim``.
    """

    def __init__(self, root: Path, notify: Callable[[str], None] | None = None) -> None:
        self.root = root
        self.notify = notify or _logger().info
        self.system = f"{platform.system()} {platform.machine()}"

    @functools.cached_property
    def compiler(self) -> _Compiler | None:
        for candidate in (os.environ.get("CXX"), "g++", "c++"):
            path = shutil.which(candidate) if candidate else None
            if path is None:
                continue
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                command = [path, "--version"]
                printed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
                if printed.strip():
                    return _Compiler(path, printed.strip().splitlines()[0])
        return None

    @functools.cached_property
    def processor(self) -> str:
        try:
            info = Path("/proc/cpuinfo").read_text()
        except OSError:
            return ""
        flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
        return flags[1] if flags else ""

    def calling(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def cores(self) -> int:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def triton_name(self, key: str) -> Any | None:
        return internals.named(key)

    def key_parts(self, compiler: Compiler, options: Sequence[str]) -> KeyParts:
        status = os.stat(compiler.path)
        variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
        return (
            ("compiler", f"{os.path.realpath(compiler.path)} {status.st_size} {status.st_mtime_ns} {compiler.version}"),
            ("environment", "\0".join(variables)),
            ("options", "\0".join(options)),
            ("working folder", str(Path.cwd()) if options else ""),  # an option may name a relative path
        )

    def run(
        self,
        command: Sequence[str],
        what: str,
        *,
        target: str = "",
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False,
                timeout=_TIME_LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"{what}: {Path(command[0]).name} did not end within {_TIME_LIMIT_S:g} s and was stopped",
                fix="look for a template or a loop that the compiler unfolds without end",
            ) from None
        log = done.stderr + done.stdout
        if done.returncode == 0:
            return log
        log = log.replace(f"{folder}/", "")
        errors = ["\n".join(found[0].splitlines()[:_MOST_LINES]) for found in _ERROR.finditer(log)]
        shown = "\n".join(errors[:_MOST_ERRORS]) or log.strip()[-2000:] or "the compiler printed nothing"
        aim = f" for {target}" if target else ""
        raise CompileError(
            f"{what} does not compile{aim}\n{shown}", log=log, fix="the whole output is in this exception's .log"
        )

    def watch(self, compiler: Compiler) -> _Watch:
        return _Watch()

    # --- the cache ---

    def get_or_build(
        self, key: Key, build: Callable[[Path], Any], *, on_build: Callable[[], None] | None = None
    ) -> Path:
        digest = hashlib.sha256(json.dumps([key.name, key.parts]).encode()).hexdigest()[:20]
        place = self._root / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', key.name)[:80]}-{digest}"
        if _is_valid(place):
            return place
        with _locked(self._root / f".{digest}.lock"):
            if _is_valid(place):  # built by another process meanwhile
                return place
            if on_build is not None:
                on_build()
            scratch = Path(tempfile.mkdtemp(dir=self._root, prefix=".build-"))
            try:
                read = build(scratch)
                (scratch / _RECORD).write_text(json.dumps(read or {}))
                if place.exists():  # a file that it has read is another now
                    place.rename(Path(tempfile.mkdtemp(dir=self._root, prefix=".old-")) / "old")
                scratch.rename(place)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
                for old in self._root.glob(".old-*"):
                    shutil.rmtree(old, ignore_errors=True)
            return place

    @functools.cached_property
    def _root(self) -> Path:
        """The cache's folder. A temporary one, if others may write it: what is loaded from it runs as the user."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.root.stat()
            if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(self.root, os.W_OK):
                return self.root
        except OSError:
            pass
        self.notify(f"the cache must be a folder that only you can write, got {self.root}; a temporary one replaces it")
        self._temporary = tempfile.TemporaryDirectory(prefix="kernelsim-")
        return Path(self._temporary.name)


def _is_valid(place: Path) -> bool:
    """Whether something was built there, from files that are as they were."""
    try:
        read: ReadFiles = json.loads((place / _RECORD).read_bytes())
        return all(_digest(file) == digest for file, digest in read.items())
    except (OSError, ValueError):
        return False


def _digest(file: str) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


class _Watch:
    """gcc lists what each of its runs includes in the file that SUNPRO_DEPENDENCIES names."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kernelsim-inputs")  # removed with this object
        self._report = Path(self._folder.name) / "included.d"
        self.environment: Mapping[str, str] = {**os.environ, "SUNPRO_DEPENDENCIES": str(self._report)}
        self.compile_flags: list[str] = []
        self.link_flags: list[str] = []

    def included(self) -> list[str]:
        if not self._report.is_file():
            return []
        rules = self._report.read_text(errors="replace").replace("\\\n", " ").splitlines()
        names = (name for rule in rules for name in re.findall(r"(?:\\.|[^\s\\])+", rule.partition(": ")[2]))
        return [name for name in map(functools.partial(re.sub, r"\\(.)", r"\1"), names) if os.path.isabs(name)]

    def read_files(
        self,
        flags: Sequence[str],
        *,
        base: Path,
        built_in: Path,
        installed: Sequence[Path],
        folder: Path | None = None,
        others: Iterable[Path] = (),
        texts: Iterable[str] = (),
        linked: bool = True,
    ) -> ReadFiles:
        if not self._report.is_file():  # a compiler that makes no report: nothing is known, so it is built each time
            return {str(self._report): ""}
        made = tuple(f"{place}{os.sep}" for place in (built_in, *installed))
        read = {*self.included(), *map(str, others)}
        return {name: _digest(name) for name in sorted(read) if not name.startswith(made) and os.path.isfile(name)}


def _logger() -> logging.Logger:
    """The ``kernelsim`` logger. It writes to stderr unless the application has added a handler."""
    logger = logging.getLogger("kernelsim")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("kernelsim: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger
