"""Host functions on ``torch::stable::Tensor`` in C++ and CUDA: compares their declarations without a compiler, and
writes the binding that makes them callable from Python."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.base import KernelSpec
from opwright.backends.c_text import blank_out, closing_bracket, split_commas
from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest
from opwright.contract.signature import Argument, Kind
from opwright.errors import KernelError, SignatureMismatchError

__all__ = [
    "BINDING",
    "INCLUDE",
    "TARGET_VERSION",
    "TEMPLATES",
    "binding_text",
    "compare_declaration",
    "native_schema",
    "unique_name",
]

TEMPLATES = Path(__file__).parent / "templates"
# The include folder of <opwright/tensor.h>.
INCLUDE = Path(__file__).parent / "include"
BINDING = TEMPLATES / "stable_binding.cpp"
# torch 2.10's stable ABI: libraries built against it also run on every later torch.
TARGET_VERSION = "0x020a000000000000"


@dataclass(frozen=True)
class _CppType:
    """The C++ type of an argument, and other spellings of it."""

    spelling: str
    others: frozenset[str] = frozenset()

    def matches(self, bare: str) -> bool:
        return bare == _bare(self.spelling) or bare in self.others


_INT_LISTS = frozenset({"HeaderOnlyArrayRef<int64_t>", "IntHeaderOnlyArrayRef"})
_SCALARS: dict[str, _CppType] = {
    "int": _CppType("int64_t"),
    "float": _CppType("double"),
    "bool": _CppType("bool"),
    "str": _CppType("std::string", frozenset({"string_view"})),
    "dtype": _CppType("torch::headeronly::ScalarType"),
    "device": _CppType("torch::stable::Device"),
    "list[int]": _CppType("std::vector<int64_t>", _INT_LISTS),
    "list[float]": _CppType("std::vector<double>", frozenset({"HeaderOnlyArrayRef<double>"})),
    "list[bool]": _CppType("std::vector<bool>", frozenset({"HeaderOnlyArrayRef<bool>"})),
}
# Types that a declaration may use by mistake. Any other may be an alias, and is left to the compiler.
_KNOWN = frozenset(
    {"float", "int", "long", "short", "unsigned", "size_t", "int32_t", "uint64_t", "char", "void", "auto"}
    | {_bare_name for t in _SCALARS.values() for _bare_name in (t.spelling.split("::")[-1], *t.others)}
    | {"Tensor", "optional<Tensor>", "vector<Tensor>"}
)


def _expected_type(argument: Argument) -> _CppType:
    if argument.kind is Kind.TENSOR_LIST:
        return _CppType("std::vector<torch::stable::Tensor>", frozenset({"HeaderOnlyArrayRef<Tensor>"}))
    if argument.kind is Kind.TENSOR:
        inner = _CppType("torch::stable::Tensor")
    else:
        plain = str(argument.schema_type).replace("collections.abc.Sequence", "list").replace("torch.", "")
        key = next((k for k in ("list[int]", "list[float]", "list[bool]") if k in plain), None)
        key = key or next(k for k in ("int", "float", "bool", "str", "dtype", "device") if k in plain)
        inner = _SCALARS[key]
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


def declaration(contract: Contract, entry: str) -> str:
    """The host function that a kernel's source must define, as C++."""
    parameters = []
    for argument in contract.signature.arguments:
        spelling = _expected_type(argument).spelling
        by_reference = argument.is_tensor or "<" in spelling or "string" in spelling
        parameters.append(f"const {spelling}& {argument.name}" if by_reference else f"{spelling} {argument.name}")
    return f"{_return_type(contract)} {entry}({', '.join(parameters)})"


def _return_type(contract: Contract) -> str:
    tensor = "torch::stable::Tensor"
    if not contract.signature.returns:
        return "void"
    if not contract.signature.returns_tuple:
        return tensor
    return f"std::tuple<{', '.join([tensor] * len(contract.signature.returns))}>"


def compare_declaration(spec: KernelSpec, contract: Contract) -> None:
    """Refuse a source whose host function is missing, or has other parameters than the operator.

    Refused are certain mistakes only: a wrong number of parameters, a known type that differs (``float`` where the
    schema's float is ``double``), the operator's names in another order.

    Raises:
        KernelError: no such function in the file.
        SignatureMismatchError: names the parameter, and gives the declaration to write.
    """
    assert isinstance(spec.source, Path)  # native kernels are files
    code = blank_out(spec.source.read_text())
    fix = f"declare it as {declaration(contract, spec.entry)}"
    found = list(_definitions(code, spec.entry))
    if not found:
        raise KernelError(f"{contract.qualname}: {spec.source.name} has no function {spec.entry!r}", fix=fix)
    returned, parameters = found[-1]
    where = f"{contract.qualname}: {spec.entry}() in {spec.source.name}"
    arguments = contract.signature.arguments
    if len(parameters) != len(arguments):
        raise SignatureMismatchError(
            f"{where} takes {len(parameters)} parameters, but the operator takes {len(arguments)}", fix=fix
        )
    names = [name for _, name in parameters]
    expected_names = [a.name for a in arguments]
    if names != expected_names and sorted(names) == sorted(expected_names):
        raise SignatureMismatchError(
            f"{where} takes ({', '.join(names)}), but the operator takes ({', '.join(expected_names)})",
            fix=fix,
        )
    for argument, (written, _) in zip(arguments, parameters, strict=True):
        expected, bare = _expected_type(argument), _bare(written)
        if not expected.matches(bare) and (bare in _KNOWN or "*" in bare):
            raise SignatureMismatchError(
                f"{where}: parameter {argument.name!r} is {written!r}, but the operator passes {expected.spelling!r}",
                fix=fix,
            )
    if _bare(returned) != _bare(_return_type(contract)) and _bare(returned) in _KNOWN:
        raise SignatureMismatchError(
            f"{where} returns {returned!r}, but the operator returns {_return_type(contract)!r}", fix=fix
        )


def _definitions(code: str, entry: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The return type and (type, name) of the parameters of each definition of a free function."""
    for match in re.finditer(rf"([\w:<>,&\s]+?)[\s&]\b{re.escape(entry)}\s*\(", code):
        end = closing_bracket(code, match.end() - 1)
        if end is None or not re.match(r"\s*(noexcept\s*)?\{", code[end + 1 :]):
            continue
        returned = re.split(r"[;}\n]\s*", match.group(1).strip())[-1]
        returned = re.sub(r"\b(static|inline|extern)\b", "", returned).strip()
        yield returned, [_split_parameter(p) for p in split_commas(code[match.end() : end])]


def _split_parameter(text: str) -> tuple[str, str]:
    text = text.split("=")[0].strip()
    match = re.fullmatch(r"(.*[\s&>*])(\w+)", text, re.DOTALL)
    return (match.group(1).strip(), match.group(2)) if match else (text, "")


def unique_name(contract: Contract, key: str) -> str:
    """The name of the private operator that one artifact registers; it changes with the source."""
    return f"{contract.namespace}_{contract.name}_{digest(key)}"


def binding_text(spec: KernelSpec, contract: Contract, unique: str, template: Path = BINDING) -> str:
    """The C++ text of the binding."""
    schema = unique + native_schema(contract)
    return string.Template(template.read_text()).substitute(
        kernel=spec.name,
        qualname=contract.qualname,
        entry=spec.entry,
        source=spec.source,
        schema=schema.replace('"', '\\"'),
        unique=unique,
    )


def native_schema(contract: Contract) -> str:
    """The operator's schema for a compiled kernel, which always takes integers: SymInt is for tracing."""
    return contract.schema.replace("SymInt", "int")
