"""Writes the C++ text that makes a host function callable from Python."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

from opwright.backends.base import KernelSpec
from opwright.backends.native.abi import abi_of
from opwright.backends.native.declaration import compare_declaration, declaration, python_type, return_type
from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest

__all__ = ["binding_text", "joint_binding_text", "native_schema", "unique_name"]


def unique_name(contract: Contract, key: str) -> str:
    """The name of the private operator that one artifact registers; it changes with the source."""
    return f"{contract.namespace}_{contract.name}_{digest(key)}"


def binding_text(
    spec: KernelSpec, contract: Contract, unique: str, *, source: Path | None = None, library: str = "opwright_kernels"
) -> str:
    """The C++ text of the binding.

    Args:
        source: the file to include, if it is not the kernel's own.
        library: the namespace of the private operator.
    """
    abi = abi_of(spec)
    schema = unique + native_schema(contract)
    return string.Template(abi.binding.read_text()).substitute(
        kernel=spec.name,
        qualname=contract.qualname,
        entry=spec.entry,
        pointer=_pointer(spec, contract),
        source=source or spec.source,
        schema=schema.replace('"', '\\"'),
        unique=unique,
        library=library,
        declaration=declaration(contract, "opwright_kernel", abi, by_value=True),  # functions may take references
        result=return_type(contract, abi),
        arguments=", ".join(_converted(contract)),
    )


def joint_binding_text(
    members: Sequence[tuple[KernelSpec, Contract]], unique: Sequence[str], *, source: Path, library: str
) -> str:
    """The C++ text of the bindings of several kernels in one source, which it includes once."""
    texts = [
        binding_text(spec, contract, name, source=source, library=library)
        for (spec, contract), name in zip(members, unique, strict=True)
    ]
    if len(texts) == 1:
        return texts[0]
    parts: list[str] = []
    for name, text in zip(unique, texts, strict=True):
        # What a binding defines is named after it; the function for Python is found by that name.
        named = re.sub(r"\b(opwright_(?:function|kernel|python_function))\b", rf"\1_{name}", text)
        parts.append(named.replace(f'#include "{source}"\n', "") if parts else named)
    return "\n".join(parts)


def native_schema(contract: Contract) -> str:
    """The operator's schema for a compiled kernel, which always takes integers: SymInt is for tracing."""
    return contract.schema.replace("SymInt", "int")


def _pointer(spec: KernelSpec, contract: Contract) -> str:
    """The address of the host function; an overload is selected by its type."""
    found = compare_declaration(spec, contract)
    address = f"&{spec.entry}"
    return f"static_cast<{found.pointer_type}>({address})" if found.is_overloaded else address


def _converted(contract: Contract) -> Iterator[str]:
    """The arguments of the operator as those of a host function that may take other types of numbers."""
    for argument in contract.signature.arguments:
        is_integer = python_type(argument) == "int" and not argument.optional
        yield f"opwright::Integer{{{argument.name}}}" if is_integer else argument.name
