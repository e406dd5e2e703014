"""Confines a process: it writes into some folders only, opens no network, and signals only its own descendants.

Linux's Landlock does this without privileges (https://docs.kernel.org/userspace-api/landlock.html). It needs three
system calls. They are made here, because the packages that wrap them have one release each, or pre-releases only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opwright.errors import CheckError

__all__ = ["Sandbox", "confine", "sandbox_of_this_system"]

# The same on all processors.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # a flag: only the version is asked for
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2), which Landlock wants first
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of unshare(2)
# Rights to write, by the version that has them first: files, folders and nodes; moves to another folder; shorter files.
_WRITES = {1: 0b1_1111_1111_0010, 2: 1 << 13, 3: 1 << 14}
_OF_FILES = 1 << 1 | 1 << 14  # a file that is no folder can be written, and made shorter
_WITH_TCP, _TCP = 4, 0b11  # bind and connect
_WITH_SCOPES, _SCOPES = 6, 0b11  # abstract sockets and signals of other processes


@dataclass(frozen=True)
class Sandbox:
    """What this system offers.

    Attributes:
        version: of Landlock; 0 without it.
    """

    version: int

    @property
    def words(self) -> str:
        """What is in force for a confined process; why nothing is."""
        if not self.version:
            return "no sandbox: this system has no Landlock (Linux 5.13 or later, switched on)"
        tcp = "no TCP connections" if self.version >= _WITH_TCP else "no limit on the network"
        network = "no network" if _may_leave_the_network() else tcp
        signals = ", no signals" if self.version >= _WITH_SCOPES else ""
        return f"sandbox: writes into scratch folders and caches only, {network}{signals}"


@functools.cache
def sandbox_of_this_system() -> Sandbox:
    """Asks the kernel."""
    with contextlib.suppress(OSError, AttributeError):
        return Sandbox(_call(_CREATE_RULESET, None, 0, _VERSION))
    return Sandbox(0)


def confine(writable: Iterable[str | Path]) -> None:
    """Confine this process and its future children, for good.

    Args:
        writable: folders below which they may write, besides a process's own files and devices that programs need;
            those that do not exist are left out.

    Raises:
        CheckError: the system refuses it.
    """
    version = sandbox_of_this_system().version
    try:
        _leave_the_network()
        ruleset = _ruleset(version)
        for path in dict.fromkeys(map(os.path.realpath, (*writable, *_needed()))):
            if os.path.exists(path):
                rights = _writes_of(version)
                _allow(ruleset, path, rights if os.path.isdir(path) else rights & _OF_FILES)
        if _c().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        _call(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    except OSError as error:
        raise CheckError(
            f"the sandbox must be entered before a candidate runs, got {error}", fix="pass --sandbox off"
        ) from error


def _needed() -> list[str]:
    """What every program may write: its own entry in /proc, shared memory, and devices. GPUs are among these, and disks
    are not, which root might write."""
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "shm")]
    return ["/proc/self", *devices, *glob.glob("/dev/nvidia*")]


def _writes_of(version: int) -> int:
    return sum(rights for since, rights in _WRITES.items() if since <= version)


def _ruleset(version: int) -> int:
    attributes = [_writes_of(version)]
    attributes += [_TCP] if version >= _WITH_TCP else []
    attributes += [_SCOPES] if version >= _WITH_SCOPES else []
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    return _call(_CREATE_RULESET, packed, len(packed), 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


@functools.cache
def _may_leave_the_network() -> bool:
    """Whether a process gets a network of its own, which has nothing in it: only with privileges, as user namespaces
    would hide who owns files; and a container may refuse it."""
    tried = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({_NEW_NETWORK}) != 0)"
    return os.geteuid() == 0 and subprocess.run([sys.executable, "-S", "-c", tried], check=False).returncode == 0


def _leave_the_network() -> None:
    _c().unshare(_NEW_NETWORK)  # if that is refused, Landlock's limits remain


def _call(number: int, *arguments: int | bytes | None) -> int:
    result = int(_c().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@functools.cache
def _c() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
