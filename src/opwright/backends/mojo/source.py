"""Mojo source text: reads a function's declaration, and writes the entry through which it is called.

A kernel is a plain Mojo function with compile-time parameters. The compiled entry is a small file that imports it and
calls it with one set of parameters and pointers of the call's dtypes. So the Mojo compiler compares the function with
the operator's arguments, and one source serves every dtype and every set of parameters.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright.backends.simulation import closing_bracket, outside_brackets, split_commas
from opwright.contract.contract import Contract
from opwright.contract.shapes.dims import VariadicDim
from opwright.contract.signature import Kind, TensorType
from opwright.errors import KernelError, SignatureMismatchError
from opwright.results import Accepted, Probe, Refused

__all__ = [
    "DTYPES", "ENTRY", "Declaration", "Slot", "check_declaration", "cpu_entry_text", "gpu_entry_text", "literal",
    "modules_imported", "read_declaration", "size_condition", "slots_of",
]  # fmt: skip

# The symbol that every artifact exports.
ENTRY = "opwright_entry"
# Mojo's names of the dtypes.
DTYPES: dict[torch.dtype, str] = {
    torch.float64: "DType.float64",
    torch.float32: "DType.float32",
    torch.float16: "DType.float16",
    torch.bfloat16: "DType.bfloat16",
    torch.int64: "DType.int64",
    torch.int32: "DType.int32",
    torch.int16: "DType.int16",
    torch.int8: "DType.int8",
    torch.uint64: "DType.uint64",
    torch.uint32: "DType.uint32",
    torch.uint16: "DType.uint16",
    torch.uint8: "DType.uint8",
    torch.bool: "DType.bool",
}
_SCALARS = {int: "Int64", float: "Float64", bool: "Bool"}


@dataclass(frozen=True)
class Slot:
    """An output or an argument of a kernel: a pointer and one size for each dim, or a number.

    Attributes:
        name: its name in the declaration that error messages suggest.
        tensor: its shape in the contract; None for a number.
        scalar: Mojo's type of a number.
    """

    name: str
    tensor: TensorType | None = None
    scalar: str = ""

    @property
    def sizes(self) -> int:
        """The number of sizes after the pointer."""
        return len(self.tensor.dims) if self.tensor else 0

    def sizes_of(self, shape: Sequence[int]) -> list[int]:
        """The sizes passed for a shape; for ``*n`` and ``...`` the product, as the tensor is contiguous."""
        assert self.tensor is not None  # callers ask for tensors only
        dims = self.tensor.dims
        found, extra = [], len(shape) - len(dims) + 1
        position = 0
        for dim in dims:
            taken = extra if isinstance(dim, VariadicDim) else 1
            product = 1
            for size in shape[position : position + taken]:
                product *= size
            found.append(product)
            position += taken
        return found

    def declared(self) -> list[str]:
        """Its part of a Mojo declaration."""
        if self.tensor is None:
            return [f"{self.name}: {self.scalar}"]
        pointer = f"{self.name}: Pointer[Scalar[dtype], MutAnyOrigin]"
        return [pointer, *(f"{self.name}_{i}: Int64" for i in range(self.sizes))]


def slots_of(contract: Contract, kernel: str) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The outputs and the arguments of an operator as a Mojo kernel takes them.

    Raises:
        KernelError: an argument has a type that Mojo kernels cannot take.
    """
    returns = contract.signature.returns
    names = ["output"] if len(returns) == 1 else [f"output{i}" for i in range(len(returns))]
    outputs = tuple(Slot(n, r.tensor) for n, r in zip(names, returns, strict=True))
    arguments = []
    for argument in contract.signature.arguments:
        plain_tensor = argument.kind is Kind.TENSOR and not argument.optional
        if not plain_tensor and (argument.optional or argument.scalar_type not in _SCALARS):
            raise KernelError(
                f"{contract.qualname}: the Mojo kernel {kernel!r} cannot take the argument {argument.name!r}: "
                "Mojo kernels take tensors, int, float and bool, none of them optional",
                fix="write a Python launcher (op.python) that calls an operator with supported arguments",
            )
        scalar = "" if plain_tensor else _SCALARS[argument.scalar_type]
        arguments.append(Slot(argument.name, argument.tensor, scalar))
    return outputs, tuple(arguments)


@dataclass(frozen=True)
class Declaration:
    """A Mojo function as its source declares it.

    Attributes:
        parameters: the compile-time parameters; those in ``optional`` have a default.
        arguments: the names of the run-time arguments.
    """

    parameters: tuple[str, ...]
    optional: frozenset[str]
    arguments: tuple[str, ...]
    raises: bool
    returns: str


def read_declaration(text: str, entry: str) -> Declaration | None:
    """The declaration of ``def entry[...](...)`` at the top level of a source, without compiling it."""
    code = re.sub(r"#[^\n]*", "", text)
    found = re.search(rf"(?m)^(?:def|fn)[ \t]+{re.escape(entry)}\s*(?=[\[(])", code)
    if found is None:
        return None
    position, parameters = found.end(), ""
    if code[position] == "[":
        end = closing_bracket(code, position) or len(code)
        parameters, position = code[position + 1 : end], end + 1
        position += len(code[position:]) - len(code[position:].lstrip())
    end = closing_bracket(code, position) or len(code)
    effects = code[end + 1 :].partition(":\n")[0]
    declared = [p for p in split_commas(parameters, angles=False) if p.strip("/* ")]
    return Declaration(
        parameters=tuple(_name(p) for p in declared),
        optional=frozenset(_name(p) for p in declared if re.search(r"(?<![=<>!])=(?!=)", outside_brackets(p))),
        arguments=tuple(_name(a) for a in split_commas(code[position + 1 : end], angles=False) if a.strip("/* ")),
        raises=re.search(r"\braises\b", effects) is not None,
        returns=effects.partition("->")[2].strip(),
    )


def _name(declared: str) -> str:
    """``read x: Int64 = 3`` → ``x``."""
    return declared.partition(":")[0].split()[-1].lstrip("*")


def check_declaration(
    declaration: Declaration | None,
    params: Sequence[str],
    contract: Contract,
    where: str,
    entry: str,
    defined: Sequence[str],
    raising: bool,
) -> None:
    """Refuse a kernel that is missing, or whose parameters and arguments differ from those of the operator.

    Args:
        params: the names of the compile-time parameters in ``params=``, besides ``dtype``.
        where: the start of error messages: operator, kernel, file.
        defined: the functions of the file.
        raising: whether the kernel may raise.

    Raises:
        KernelError: no such function, or a compile-time parameter that is misspelt, missing or unknown.
        SignatureMismatchError: its run-time arguments are not the operator's outputs and arguments.
    """
    outputs, arguments = slots_of(contract, where)
    fix = f"declare it as {_suggestion(entry, (*outputs, *arguments), params)}"
    if declaration is None:
        raise KernelError(f"{where} must define the function {entry!r}, got {list(defined)}", fix=fix)
    for name in params:
        if name not in declaration.parameters:
            close = difflib.get_close_matches(name, declaration.parameters, 1)
            raise KernelError(
                f"{where}: params must be compile-time parameters of {entry}, {list(declaration.parameters)}, "
                f"got {name!r}",
                fix=f"write {close[0]!r}" if close else "leave it out, or add it to the source",
            )
    missing = [p for p in declaration.parameters if p not in (*params, "dtype") and p not in declaration.optional]
    if missing:
        raise KernelError(
            f"{where}: params must have the compile-time parameter {missing[0]!r} of {entry}, got {list(params)}",
            fix=f"add it to params={{{missing[0]!r}: ...}}, or give it a default in the source",
        )
    expected = [part.partition(":")[0] for slot in (*outputs, *arguments) for part in slot.declared()]
    if len(declaration.arguments) != len(expected):
        without = [p for slot in arguments for p in slot.declared()]
        left_out = len(declaration.arguments) == len(without)
        raise SignatureMismatchError(
            f"{where}: {entry} must take {len(expected)} arguments ({', '.join(expected)}), got "
            f"{len(declaration.arguments)} ({', '.join(declaration.arguments)})"
            + ("; it seems that the output was left out, which comes first" if left_out else ""),
            fix=fix,
        )
    if declaration.returns not in ("", "None"):
        raise SignatureMismatchError(
            f"{where}: {entry} must return nothing, got {declaration.returns}", fix="write into the output"
        )
    if declaration.raises and not raising:
        raise KernelError(
            f"{where}: {entry} raises, which a GPU kernel cannot", fix="check in when=..., and drop raises"
        )


def _suggestion(entry: str, slots: Sequence[Slot], params: Sequence[str]) -> str:
    parameters = ", ".join(["dtype: DType", *(f"{name}: Int" for name in params)])
    return f"def {entry}[{parameters}]({', '.join(part for slot in slots for part in slot.declared())})"


def literal(value: Any) -> str | None:
    """A compile-time parameter's value as a Mojo literal; None if Mojo has none for it."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, torch.dtype):
        return DTYPES.get(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return None


def size_condition(params: Mapping[str, Any], contract: Contract) -> Callable[..., Probe] | None:
    """The condition on a call of constant parameters named like a dim, which fix its size; None without any."""
    places = {
        str(dim): (i, d)
        for i, argument in enumerate(contract.signature.arguments)
        if argument.tensor is not None and argument.kind is Kind.TENSOR
        for d, dim in enumerate(argument.tensor.dims)
    }
    fixed = {name: value for name, value in params.items() if isinstance(value, int) and name in places}
    if not fixed:
        return None

    def compare(*arguments: Any) -> Probe:
        for name, size in fixed.items():
            argument, dim = places[name]
            actual = arguments[argument].shape[dim]
            if actual != size:
                return Refused(
                    f"it is compiled for {name} = {size}, but {contract.signature.arguments[argument].name!r} has "
                    f"{name} = {actual}",
                    f"give params={{{name!r}: lambda ...: size}}, which compiles for each size, or another kernel",
                )
        return Accepted()

    return compare


@dataclass(frozen=True)
class _Call:
    """The parts of a generated entry that CPU and GPU share."""

    module: str
    entry: str
    parameters: Mapping[str, str]

    def header(self, of: str) -> str:
        return f"# Generated by opwright: the entry of {of}.\nfrom {self.module} import {self.entry} as kernel\n\n\n"

    def invoke(self, arguments: Sequence[str], indent: str) -> str:
        parameters = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        lines = "".join(f"{indent}    {a},\n" for a in arguments)
        return f"{indent}kernel{f'[{parameters}]' if parameters else ''}(\n{lines}{indent})\n"


def cpu_entry_text(
    module: str,
    entry: str,
    parameters: Mapping[str, str],
    slots: Sequence[Slot],
    dtypes: Sequence[torch.dtype],
    raises: bool,
    of: str,
) -> str:
    """The C function of a CPU kernel: it takes ``values`` (addresses and numbers), ``sizes`` and a message buffer.

    It takes two arrays and not one argument for each value, because every argument costs ctypes a tenth of a
    microsecond, and because sizes change more rarely than addresses. It returns 0, or the length of the kernel's error
    message plus one.
    """
    call = _Call(module, entry, parameters)
    arguments, size, remaining = [], 0, iter(dtypes)
    for position, slot in enumerate(slots):
        if slot.tensor is not None:
            pointer = f"Pointer[Scalar[{DTYPES[next(remaining)]}], MutAnyOrigin]"
            arguments.append(f"values.unsafe_bitcast[{pointer}]()[unsafe_offset={position}]")
            arguments += [f"sizes[unsafe_offset={size + i}]" for i in range(slot.sizes)]
            size += slot.sizes
        elif slot.scalar == "Float64":
            arguments.append(f"values.unsafe_bitcast[Float64]()[unsafe_offset={position}]")
        else:
            arguments.append(f"values[unsafe_offset={position}]" + (" != 0" if slot.scalar == "Bool" else ""))
    declared = (
        f'@export("{ENTRY}")\n'
        f"def {ENTRY}(\n"
        "    values: Pointer[Int64, MutAnyOrigin],\n"
        "    sizes: Pointer[Int64, MutAnyOrigin],\n"
        "    message: Pointer[UInt8, MutAnyOrigin],\n"
        "    capacity: Int64,\n"
        ') abi("C") -> Int32:\n'
    )
    if not raises:
        return call.header(of) + declared + call.invoke(arguments, "    ") + "    return 0\n"
    return (
        call.header(of) + declared + "    try:\n" + call.invoke(arguments, " " * 8) + "    except error:\n"
        "        var text = String(error)\n"
        "        var bytes = text.as_bytes()\n"
        "        var count = min(len(bytes), Int(capacity))\n"
        "        for i in range(count):\n"
        "            message[unsafe_offset=i] = bytes[i]\n"
        "        return Int32(count + 1)\n"
        "    return 0\n"
    )


def gpu_entry_text(
    module: str,
    entry: str,
    parameters: Mapping[str, str],
    slots: Sequence[Slot],
    dtypes: Sequence[torch.dtype],
    of: str,
) -> str:
    """The ``.entry`` of a GPU kernel, with an argument for each pointer, size and number."""
    call = _Call(module, entry, parameters)
    declared, arguments, remaining = [], [], iter(dtypes)
    for i, slot in enumerate(slots):
        if slot.tensor is None:
            word = "Float64" if slot.scalar == "Float64" else "Int64"
            declared.append(f"a{i}: {word}")
            arguments.append(f"a{i}" + (" != 0" if slot.scalar == "Bool" else ""))
            continue
        declared.append(f"a{i}: Pointer[Scalar[{DTYPES[next(remaining)]}], MutAnyOrigin]")
        sizes = [f"a{i}_{j}" for j in range(slot.sizes)]
        declared += [f"{s}: Int64" for s in sizes]
        arguments += [f"a{i}", *sizes]
    lines = "".join(f"    {d},\n" for d in declared)
    return call.header(of) + f'@export("{ENTRY}")\ndef {ENTRY}(\n{lines}) abi("C"):\n' + call.invoke(arguments, "    ")


def modules_imported(source: Path) -> list[Path]:
    """The Mojo files beside a source that it imports, directly or indirectly, each once."""
    found: list[Path] = []
    waiting = [source]
    while waiting:
        current = waiting.pop()
        for name in _imported_names(current.read_text()):
            for file in _files_of(current.parent, name):
                if file != source and file not in found:
                    found.append(file)
                    waiting.append(file)
    return sorted(found)


def _imported_names(text: str) -> Iterator[str]:
    for line in re.findall(r"(?m)^\s*from\s+\.?([\w.]+)\s+import\b", text):
        yield line
    for line in re.findall(r"(?m)^\s*import\s+([\w., ]+)", text):
        yield from (part.split()[0] for part in line.split(",") if part.strip())


def _files_of(folder: Path, module: str) -> list[Path]:
    first = module.split(".")[0]
    if (folder / f"{first}.mojo").is_file():
        return [folder / f"{first}.mojo"]
    if (folder / first / "__init__.mojo").is_file():
        return sorted((folder / first).rglob("*.mojo"))
    return []
