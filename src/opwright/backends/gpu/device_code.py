"""The result of compiling any GPU language: a device binary with its kernels and their parameters.

CUDA C++ is compiled with NVRTC, Mojo with its own compiler. The launcher (``launcher``) needs nothing else to check
the arguments of a launch and to launch.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright.backends import simulation
from opwright.backends.simulation import Parameter, ParameterKind

__all__ = [
    "DeviceCode",
    "EntryPoint",
    "Parameter",
    "ParameterKind",
    "Resources",
    "demangle",
    "dtypes_of_elements",
    "entries_in_ptx",
    "typed_parameter",
    "typed_parameters",
    "variables_in_ptx",
]


@dataclass(frozen=True)
class Resources:
    """The registers and bytes that one thread or block of a kernel uses.

    Attributes:
        dynamic_shared: bytes that a launch adds; None where only the launch knows.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int
    dynamic_shared: int | None = None


@dataclass(frozen=True)
class EntryPoint:
    """One kernel of a binary: its symbol, its name as a user writes it, and its parameters.

    Attributes:
        cooperative: whether it waits for its whole grid, whose blocks then have to run at once.
    """

    symbol: str
    name: str
    parameters: tuple[Parameter, ...]
    resources: Resources | None = None
    cooperative: bool = False


@dataclass(frozen=True)
class DeviceCode:
    """A device binary on disk: a cubin, or PTX that the driver compiles. ``ptx`` is the text behind either."""

    file: Path
    arch: str
    entries: tuple[EntryPoint, ...]
    ptx: Path | None = None

    def entry(self, name: str) -> EntryPoint | None:
        """The kernel with this name in its source, or with this symbol."""
        return next((e for e in self.entries if name in (e.name, e.symbol)), None)


@functools.cache
def _demangler() -> Any:
    # torch has loaded it already.
    function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    return function


def demangle(symbol: str) -> str:
    """The C++ declaration of a symbol of the Itanium ABI; any other symbol is returned as it is."""
    status = ctypes.c_int()
    found = _demangler()(symbol.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not found:
        return symbol
    text = ctypes.string_at(found).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text


_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)")
_PTX_VARIABLE = re.compile(
    r"^(?:\.(?:visible|weak|common)\s+)?\.(?:global|const)\s+(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+\d+\s+)?\.[a-z](\d+)\s+([\w$]+)(?:\[(\d+)\])?\s*[=;]",
    re.MULTILINE,
)
_PTX_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)[^,\[]*?(?:\[(\d+)\])?\s*(?:,|$)")


def entries_in_ptx(ptx: str) -> tuple[EntryPoint, ...]:
    """The kernels of a PTX text, with the sizes and kinds of PTX, in which pointers are ``u64``."""
    found, cooperative = [], _cooperative_functions(ptx)
    for symbol, declared in _PTX_ENTRY.findall(ptx):
        parameters = tuple(
            _ptx_parameter(kind, int(count) if count else None)
            for _, kind, count in _PTX_PARAMETER.findall(declared.strip())
        )
        found.append(EntryPoint(symbol, symbol, parameters, cooperative=symbol in cooperative))
    return tuple(found)


# The registers in which the driver passes the workspace of a cooperative launch.
_GRID_WORKSPACE = "%envreg"
_PTX_FUNCTION = re.compile(
    r"^\s*(?:\.(?:visible|weak)\s+)?\.(?:entry|func)\b(?:\s*\([^)]*\))?\s+([\w$]+)", re.MULTILINE
)


def _cooperative_functions(ptx: str) -> set[str]:
    """The functions of a PTX text that have a barrier of the grid, or call one that has."""
    if _GRID_WORKSPACE not in ptx:
        return set()
    parts = _PTX_FUNCTION.split(ptx)[1:]
    bodies = dict(zip(parts[::2], parts[1::2], strict=True))
    found = {name for name, body in bodies.items() if _GRID_WORKSPACE in body}
    while more := {name for name, body in bodies.items() if found.intersection(re.findall(r"[\w$]+", body))} - found:
        found |= more
    return found


def _ptx_parameter(kind: str, count: int | None) -> Parameter:
    letter, bits = kind[0], int(kind[1:])
    if count is not None:
        return Parameter("struct", count * bits // 8, f".{kind}[{count}]")
    kinds: dict[str, ParameterKind] = {"f": "floating", "s": "integer"}
    return Parameter(kinds.get(letter, "unsigned"), bits // 8, f".{kind}")


def typed_parameters(entry: EntryPoint, types: Sequence[str]) -> tuple[Parameter, ...]:
    """The parameters with their C++ types: which are pointers, their element types and alignments.

    Args:
        types: the parameters' types as a demangler writes them, such as ``float const*``.
    """
    assert len(types) == len(entry.parameters), f"{entry.symbol} has {len(entry.parameters)} parameters, not {types}"
    return tuple(typed_parameter(name.strip(), p.size, p.kind) for name, p in zip(types, entry.parameters, strict=True))


def typed_parameter(name: str, size: int, unknown_kind: ParameterKind) -> Parameter:
    """A parameter from its C++ type. ``unknown_kind`` is for a type that is not in the table, such as an enum."""
    typed = simulation.typed_parameter(name, size, unknown_kind)
    return dataclasses.replace(typed, dtypes=tuple(getattr(torch, dtype) for dtype in typed.dtypes))


def dtypes_of_elements(type_name: str) -> tuple[torch.dtype, ...]:
    """The dtypes of a tensor with elements of a C++ type, such as ``float`` or ``float4``; empty if any would do."""
    return tuple(getattr(torch, dtype) for dtype in simulation.dtypes_of_elements(type_name))


def variables_in_ptx(ptx: str) -> dict[str, int]:
    """The variables of a PTX text in global and constant memory, with their sizes in bytes."""
    found = {}
    for bits, symbol, count in _PTX_VARIABLE.findall(ptx):
        found[symbol] = int(bits) // 8 * (int(count) if count else 1)
    return found
