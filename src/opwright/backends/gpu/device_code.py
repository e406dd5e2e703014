"""The result of compiling any GPU language: a device binary with its kernels and their parameters.

CUDA C++ is compiled with NVRTC, Mojo with its own compiler. The launcher (``launcher``) needs nothing else to check
the arguments of a launch and to launch.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

__all__ = [
    "DeviceCode",
    "EntryPoint",
    "Parameter",
    "Resources",
    "demangle",
    "dtypes_of_elements",
    "entries_in_ptx",
    "typed_parameter",
    "typed_parameters",
    "variables_in_ptx",
]

ParameterKind = Literal["pointer", "integer", "unsigned", "floating", "bool", "struct"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        kind: what a launch may pass.
        size: bytes.
        type_name: as it is written in C++ (for PTX of another language, PTX's own type).
        dtypes: the dtypes of tensors that may be passed for a pointer; empty if unknown. A ``float4*``
            takes float32.
        alignment: of a pointer, in bytes.
        writes: False for a pointer to const.
    """

    kind: ParameterKind
    size: int
    type_name: str
    dtypes: tuple[torch.dtype, ...] = ()
    alignment: int = 1
    writes: bool = True


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


# C++ type → the kind of its argument, and the dtypes with such elements. Sizes come from PTX.
_TYPES: dict[str, tuple[ParameterKind, tuple[torch.dtype, ...]]] = {
    "float": ("floating", (torch.float32,)),
    "double": ("floating", (torch.float64,)),
    "__half": ("floating", (torch.float16,)),
    "__nv_bfloat16": ("floating", (torch.bfloat16,)),
    "c10::Half": ("struct", (torch.float16,)),
    "c10::BFloat16": ("struct", (torch.bfloat16,)),
    "bool": ("bool", (torch.bool,)),
    "char": ("integer", ()),  # bytes of any dtype
    "signed char": ("integer", (torch.int8,)),
    "short": ("integer", (torch.int16, torch.uint16)),
    "int": ("integer", (torch.int32, torch.uint32)),
    "long": ("integer", (torch.int64, torch.uint64)),
    "long long": ("integer", (torch.int64, torch.uint64)),
    "unsigned char": ("unsigned", (torch.uint8, torch.bool)),
    "unsigned short": ("unsigned", (torch.uint16, torch.int16)),
    "unsigned int": ("unsigned", (torch.uint32, torch.int32)),
    "unsigned long": ("unsigned", (torch.uint64, torch.int64)),
    "unsigned long long": ("unsigned", (torch.uint64, torch.int64)),
    "__half2": ("struct", (torch.float16,)),
    "__nv_bfloat162": ("struct", (torch.bfloat16,)),
    "__nv_fp8_e4m3": ("struct", (torch.float8_e4m3fn,)),
    "__nv_fp8_e5m2": ("struct", (torch.float8_e5m2,)),
}
_PAIRS = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_VECTOR = re.compile(r"(u?)(char|short|int|longlong|long|float|double)([1234])(?:_16a|_32a)?$")


def typed_parameters(entry: EntryPoint, types: Sequence[str]) -> tuple[Parameter, ...]:
    """The parameters with their C++ types: which are pointers, their element types and alignments.

    Args:
        types: the parameters' types as a demangler writes them, such as ``float const*``.
    """
    assert len(types) == len(entry.parameters), f"{entry.symbol} has {len(entry.parameters)} parameters, not {types}"
    return tuple(typed_parameter(name.strip(), p.size, p.kind) for name, p in zip(types, entry.parameters, strict=True))


def typed_parameter(name: str, size: int, unknown_kind: ParameterKind) -> Parameter:
    """A parameter from its C++ type. ``unknown_kind`` is for a type that is not in the table, such as an enum."""
    if name.endswith("*"):
        pointee = name[:-1].strip()
        dtypes, alignment = _element(re.sub(r"\b(const|volatile)\b", "", pointee).strip())
        return Parameter("pointer", size, name, dtypes, alignment, writes="const" not in pointee)
    kind, dtypes = _TYPES.get(_as_demangled(name), (unknown_kind, ()))
    return Parameter(kind, size, name, dtypes)


def _as_demangled(name: str) -> str:
    """g++'s ``long unsigned int`` as a demangler writes it: ``unsigned long``."""
    parts = name.split()
    if len(parts) > 1 and parts[-1] == "int" and parts[0] != "unsigned":
        parts = parts[:-1]
    if "unsigned" in parts:
        parts = ["unsigned", *(p for p in parts if p != "unsigned")]
    return " ".join(parts)


def dtypes_of_elements(type_name: str) -> tuple[torch.dtype, ...]:
    """The dtypes of a tensor with elements of a C++ type, such as ``float`` or ``float4``; empty if any would do."""
    kind, dtypes = _TYPES.get(_as_demangled(type_name), ("struct", ()))
    return dtypes if kind != "struct" or dtypes else _element(type_name)[0]


def variables_in_ptx(ptx: str) -> dict[str, int]:
    """The variables of a PTX text in global and constant memory, with their sizes in bytes."""
    found = {}
    for bits, symbol, count in _PTX_VARIABLE.findall(ptx):
        found[symbol] = int(bits) // 8 * (int(count) if count else 1)
    return found


def _element(pointee: str) -> tuple[tuple[torch.dtype, ...], int]:
    """The dtypes of a tensor for a pointer to such a type, and the alignment of its address in bytes."""
    if vector := _VECTOR.match(pointee):
        unsigned, word, lanes = vector.groups()
        scalar = "long long" if word == "longlong" else word
        dtypes, size = _TYPES[scalar][1], 1 if word == "char" else _TYPES[scalar][1][0].itemsize
        # Three lanes are aligned like one, and nothing more than 16 bytes (CUDA C++ Programming Guide, vector types).
        alignment = size if lanes == "3" else min(16, size * int(lanes))
        if unsigned:
            return (), alignment  # copies of any type: uint4 is the common one for 128 bits
        if lanes == "2" and dtypes[0] in _PAIRS:
            dtypes = (*dtypes, _PAIRS[dtypes[0]])
        return dtypes, alignment
    dtypes = _TYPES.get(_as_demangled(pointee), ("struct", ()))[1]
    if pointee in ("__half2", "__nv_bfloat162"):
        return dtypes, 4
    return dtypes, dtypes[0].itemsize if dtypes else 1
