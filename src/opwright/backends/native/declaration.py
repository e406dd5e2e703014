"""Reads the declarations of host functions in C++ and CUDA without a compiler, and compares them with the operator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opwright.backends.base import KernelSpec
from opwright.backends.native.abi import ATEN, STABLE, Abi, abi_of
from opwright.backends.native.registrations import implementations
from opwright.backends.simulation import closing_bracket, enclosing_scopes, parsed, split_commas
from opwright.contract.contract import Contract
from opwright.contract.signature import Argument, Kind
from opwright.errors import KernelError, SignatureMismatchError

__all__ = ["Definition", "compare_declaration", "declaration", "python_type", "return_type"]


@dataclass(frozen=True)
class Definition:
    """A function that a source defines.

    Attributes:
        name: with its namespaces.
        parameters: the type and name of each, as written.
        line: of its name in the source.
        is_overloaded: whether the source has others with its name.
    """

    name: str
    returned: str
    parameters: tuple[tuple[str, str], ...]
    line: int
    is_template: bool
    is_overloaded: bool = False

    @property
    def pointer_type(self) -> str:
        """The type of a pointer to it, which tells it from its overloads."""
        return f"{self.returned} (*)({', '.join(written for written, _ in self.parameters)})"


@dataclass(frozen=True)
class _CppType:
    """The C++ type of an argument, and other spellings of it."""

    spelling: str
    others: frozenset[str] = frozenset()

    def matches(self, bare: str) -> bool:
        return bare == _bare(self.spelling) or bare in self.others


# Types that a declaration may use by mistake. Any other may be an alias, and is left to the compiler.
_KNOWN = frozenset(
    {"float", "int", "long", "short", "unsigned", "size_t", "int32_t", "uint64_t", "char", "void", "auto"}
    | {name for abi in (STABLE, ATEN) for names in abi.others.values() for name in names}
    | {spelling.split("::")[-1] for abi in (STABLE, ATEN) for spelling in abi.types.values()}
    | {"Tensor", "optional<Tensor>", "vector<Tensor>"}
)


def python_type(argument: Argument) -> str:
    """The type of one argument without optional: ``int``, ``list[float]``, ``dtype``, ``Tensor``, ``list[Tensor]``."""
    if argument.kind is Kind.TENSOR_LIST:
        return "list[Tensor]"
    if argument.kind is Kind.TENSOR:
        return "Tensor"
    plain = str(argument.schema_type).replace("collections.abc.Sequence", "list").replace("torch.", "")
    key = next((k for k in ("list[int]", "list[float]", "list[bool]") if k in plain), None)
    return key or next(k for k in ("int", "float", "bool", "str", "dtype", "device") if k in plain)


def _expected_type(argument: Argument, abi: Abi) -> _CppType:
    python = python_type(argument)
    types = {**abi.types, "Tensor": abi.tensor, "list[Tensor]": f"std::vector<{abi.tensor}>"}
    inner = _CppType(types[python], abi.others.get(python, frozenset()))
    if not argument.optional:
        return inner
    return _CppType(
        f"std::optional<{inner.spelling}>",
        frozenset(f"optional<{o}>" for o in (_bare(inner.spelling), *inner.others)),
    )


def _bare(cpp_type: str) -> str:
    """A type without const, references, namespaces and blanks: ``const torch::stable::Tensor &`` → ``Tensor``."""
    text = re.sub(r"\bconst\b|&", " ", cpp_type)
    text = re.sub(r"(?:\b\w+\s*)?::\s*", lambda m: "", text)
    return re.sub(r"\s+", "", text)


def declaration(contract: Contract, entry: str, abi: Abi = STABLE, *, by_value: bool = False) -> str:
    """The host function that a kernel's source must define, as C++.

    Args:
        by_value: declare no references.
    """
    parameters = []
    for argument in contract.signature.arguments:
        spelling = _expected_type(argument, abi).spelling
        by_reference = not by_value and (argument.is_tensor or "<" in spelling or "string" in spelling)
        parameters.append(f"const {spelling}& {argument.name}" if by_reference else f"{spelling} {argument.name}")
    return f"{return_type(contract, abi)} {entry}({', '.join(parameters)})"


def return_type(contract: Contract, abi: Abi) -> str:
    """What the host function of an operator returns."""
    if not contract.signature.returns:
        return "void"
    if not contract.signature.returns_tuple:
        return abi.tensor
    return f"std::tuple<{', '.join([abi.tensor] * len(contract.signature.returns))}>"


def compare_declaration(spec: KernelSpec, contract: Contract) -> Definition:
    """The host function of a source. Refused are a source without it, and one with other parameters than the operator.

    Refused are certain mistakes only: a wrong number of parameters, a known type that differs (``float`` where the
    schema's float is ``double``), the operator's names in another order. Of overloads, the one that fits is taken.

    Raises:
        KernelError: no such function in the file, or a template without its arguments.
        SignatureMismatchError: names the parameter, and gives the declaration to write.
    """
    assert isinstance(spec.source, Path)  # native kernels are files
    name, _, arguments = spec.entry.partition("<")
    fix = f"declare it as {declaration(contract, spec.entry, abi_of(spec))}"
    text = spec.source.read_text(errors="replace")
    found = _named(spec, contract, list(_definitions(parsed(text).code, name.rpartition("::")[2])), text, fix)
    if not arguments and all(definition.is_template for definition in found):
        raise KernelError(
            f"{contract.qualname}: entry must name an instance of the template in {spec.source.name}:{found[-1].line}, "
            f"got {spec.entry!r}",
            fix=f"name an instance, as in entry='{name}<float>'",
        )
    mistakes = [_mistake(definition, spec, contract) for definition in found]
    if all(mistakes):
        raise SignatureMismatchError(mistakes[-1], fix=fix)
    overloads = {definition.parameters for definition in found}
    return replace(found[mistakes.index("")], is_overloaded=len(overloads) > 1)


def _named(
    spec: KernelSpec, contract: Contract, found: Sequence[Definition], text: str, fix: str
) -> Sequence[Definition]:
    """The definitions whose full name is the entry's."""
    assert isinstance(spec.source, Path)  # native kernels are files
    name = spec.entry.partition("<")[0].removeprefix("::")
    here = [definition for definition in found if definition.name == name]
    if here:
        return here
    where = f"{contract.qualname}: {spec.source.name} must define the function {name!r}"
    if found:
        raise KernelError(
            f"{where}, got {found[-1].name} in line {found[-1].line}", fix=f"pass entry={found[-1].name!r}"
        )
    registered = [function for function in implementations(text, contract.name) if function != name]
    if registered:
        raise KernelError(
            f"{where}, got {registered[0]}, which it registers as {contract.name}",
            fix=f"pass entry={registered[0]!r}",
        )
    raise KernelError(f"{where}, got none of that name", fix=fix)


def _mistake(definition: Definition, spec: KernelSpec, contract: Contract) -> str:
    """What is certainly wrong with a definition; "" if nothing is."""
    assert isinstance(spec.source, Path)  # native kernels are files
    abi, arguments, parameters = abi_of(spec), contract.signature.arguments, definition.parameters
    where = f"{contract.qualname}: {spec.entry}() in {spec.source.name}"
    if len(parameters) != len(arguments):
        return f"{where} must take {len(arguments)} parameters, got {len(parameters)}"
    names, expected_names = [name for _, name in parameters], [a.name for a in arguments]
    if names != expected_names and sorted(names) == sorted(expected_names):
        return f"{where} must take ({', '.join(expected_names)}), got ({', '.join(names)})"
    for argument, (written, _) in zip(arguments, parameters, strict=True):
        expected, bare = _expected_type(argument, abi), _bare(written)
        if not expected.matches(bare) and (bare in _KNOWN or "*" in bare):
            return f"{where}: parameter {argument.name!r} must be {expected.spelling!r}, got {written!r}"
    returned = _bare(definition.returned)
    is_other = returned != _bare(return_type(contract, abi)) and returned not in abi.others_returned
    if is_other and returned in _KNOWN and returned != "auto":
        return f"{where} must return {return_type(contract, abi)!r}, got {definition.returned!r}"
    return ""


_AFTER_PARAMETERS = re.compile(r"\s*(?:noexcept\s*)?(?:->(?P<trailing>[^;{}]+?))?\s*\{")
_TEMPLATE = re.compile(r"\btemplate\s*<")


def _definitions(code: str, name: str) -> Iterator[Definition]:
    """Each definition of a function with this name, in any namespace or class."""
    for match in re.finditer(
        rf"(?P<before>[\w:<>,&\s]+?)[\s&](?P<scope>(?:\w+\s*::\s*)*)\b{re.escape(name)}\s*\(", code
    ):
        end = closing_bracket(code, match.end() - 1)
        after = _AFTER_PARAMETERS.match(code, end + 1) if end is not None else None
        if after is None:
            continue
        before = re.split(r"[;}]\s*", match["before"].strip())[-1]
        is_template = bool(_TEMPLATE.search(before))
        returned = after["trailing"] or _without_template(before)
        scopes = [*enclosing_scopes(code, match.end()), *re.findall(r"\w+", match["scope"])]
        yield Definition(
            "::".join([*filter(None, scopes), name]),
            re.sub(r"\b(static|inline|extern|constexpr)\b", "", returned).strip(),
            tuple(_split_parameter(p) for p in split_commas(code[match.end() : end])),
            code.count("\n", 0, match.end()) + 1,
            is_template,
        )


def _without_template(text: str) -> str:
    """What follows the parameters of a template."""
    found = _TEMPLATE.search(text)
    if found is None:
        return text
    depth = 0
    for position in range(found.end() - 1, len(text)):
        depth += (text[position] == "<") - (text[position] == ">")
        if depth == 0:
            return _without_template(text[position + 1 :])
    return text


def _split_parameter(text: str) -> tuple[str, str]:
    text = text.split("=")[0].strip()
    match = re.fullmatch(r"(.*[\s&>*])(\w+)", text, re.DOTALL)
    return (match.group(1).strip(), match.group(2)) if match else (text, "")
