"""The structures of ``runtime/abi.h`` for ctypes, and the symbols of an ELF file."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "ABI_VERSION",
    "MOST_FINDINGS",
    "CodeRange",
    "GiveStack",
    "RawFinding",
    "RawParameter",
    "Region",
    "Request",
    "SharedVariable",
    "Symbol",
    "TakeStack",
    "read_imports",
    "read_symbols",
]

ABI_VERSION = 7
MOST_FINDINGS = 64

_u32, _u64, _i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64


TakeStack = ctypes.CFUNCTYPE(ctypes.c_void_p)
GiveStack = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class RawFinding(ctypes.Structure):
    """``Finding`` of abi.h."""

    _fields_ = (
        *((name, _u32) for name in ("kind", "space", "access", "size")),
        *((name, _u64) for name in ("address", "pc", "other_pc")),
        ("file", ctypes.c_char_p),
        ("other_file", ctypes.c_char_p),
        ("line", _u32),
        ("other_line", _u32),
        *((name, _u32 * 3) for name in ("block", "thread", "other_block", "other_thread")),
        *((name, _u32) for name in ("other_access", "mask", "missing")),
        ("value", _i64),
        ("owner", _u32 * 3),
        ("has_owner", _u32),
        ("is_suspicion", _u32),
        ("text", ctypes.c_char * 128),
    )


class Region(ctypes.Structure):
    """``Region`` of abi.h."""

    _fields_ = (
        ("begin", _u64),
        ("end", _u64),
        ("kind", _u32),
        ("granule", _u32),
        ("written", ctypes.c_void_p),
        ("inside", ctypes.c_void_p),
        ("read_only", ctypes.c_void_p),
    )


class SharedVariable(ctypes.Structure):
    """``SharedVariable`` of abi.h."""

    _fields_ = (("offset", _u64), ("size", _u64), ("kind", _u32), ("reserved", _u32))


class CodeRange(ctypes.Structure):
    """``CodeRange`` of abi.h."""

    _fields_ = (("offset", _u64), ("size", _u64))


class Request(ctypes.Structure):
    """``Request`` of abi.h."""

    _fields_ = (
        ("grid", _u32 * 3),
        ("block", _u32 * 3),
        ("cluster", _u32 * 3),
        ("declared_cluster", _u32 * 3),
        *((name, _u32) for name in ("dynamic_shared", "workers", "checked", "permuted", "cooperative", "repeatable")),
        ("seed", _u64),
        ("time_limit_s", ctypes.c_double),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("regions", ctypes.POINTER(Region)),
        ("region_count", _u64),
        ("shared", ctypes.POINTER(SharedVariable)),
        ("shared_count", _u64),
        ("code", ctypes.POINTER(CodeRange)),
        ("code_count", _u64),
        ("thread_index_offset", _u64),
        ("findings", RawFinding * MOST_FINDINGS),
        ("finding_count", _u32),
        ("out_of_memory", _u32),
        ("take_stack", TakeStack),
        ("give_stack", GiveStack),
        ("thread_slot", _i64),
    )


class RawParameter(ctypes.Structure):
    """``Parameter`` of abi.h."""

    _fields_ = (("size", _u32), ("kind", _u32), ("type_name", ctypes.c_char_p))


@dataclass(frozen=True)
class Symbol:
    """A symbol of a shared object. ``place`` is an offset in the module, or in its thread-local storage."""

    name: str
    place: int
    size: int
    kind: Literal["variable", "function", "thread_local"]
    writable: bool = False


_KINDS: dict[int, Literal["variable", "function", "thread_local"]] = {1: "variable", 2: "function", 6: "thread_local"}
_SYMBOL_TABLE = 2  # the type of a section
_WRITABLE = 1  # a flag of a section


def read_symbols(file: Path) -> tuple[Symbol, ...]:
    """The variables and functions that a 64-bit little-endian ELF file defines."""
    data = file.read_bytes()
    sections = _sections(data)
    (names_at,) = struct.unpack_from("<H", data, 0x3E)
    # Constants with addresses in them: the loader writes them, and then makes their pages read-only.
    relocated = {i for i, s in enumerate(sections) if data.startswith(b".data.rel.ro", sections[names_at][4] + s[0])}
    found = []
    for name, info, index, value, size in _entries(data, sections):
        kind = _KINDS.get(info & 15)
        if kind is not None and index != 0 and size:
            writable = index < len(sections) and bool(sections[index][2] & _WRITABLE) and index not in relocated
            found.append(Symbol(name, value, size, kind, writable))
    return tuple(found)


def read_imports(file: Path) -> frozenset[str]:
    """The names that a 64-bit little-endian ELF file takes from others, without versions."""
    data = file.read_bytes()
    return frozenset(name.partition("@")[0] for name, _, index, *_ in _entries(data, _sections(data)) if index == 0)


def _sections(data: bytes) -> list[tuple[Any, ...]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    return [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)]


def _entries(data: bytes, sections: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, int, int, int, int]]:
    """Of each entry of the symbol table: its name, kind, section, value and size."""
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index, value, size = struct.unpack_from("<IBBHQQ", data, at)
            yield data[names + name : data.index(b"\0", names + name)].decode(), info, index, value, size
