"""The two ways in which a host function gets its tensors: torch's stable ABI, and ATen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opwright.backends.base import KernelSpec

__all__ = ["ABIS", "ATEN", "INCLUDE", "STABLE", "TARGET_VERSION", "TEMPLATES", "Abi", "abi_of"]

TEMPLATES = Path(__file__).parent / "templates"
# The include folder of <opwright/tensor.h>.
INCLUDE = Path(__file__).parent / "include"
# torch 2.10's stable ABI: libraries built against it also run on every later torch.
TARGET_VERSION = "0x020a000000000000"


@dataclass(frozen=True)
class Abi:
    """What a host function declares, and what its binding is made from.

    Attributes:
        tensor: the type of a tensor.
        types: the types of the other arguments, by the name of their type in Python.
        others: types that a function may declare instead, without namespaces, by the same names.
        binding: the template of the text that registers the function.
        others_returned: types that a function may return in place of a tuple.
    """

    name: str
    tensor: str
    types: Mapping[str, str]
    others: Mapping[str, frozenset[str]]
    binding: Path
    others_returned: frozenset[str] = frozenset()
    cpp_standard: str = "c++17"


def _lists(**elements: str) -> dict[str, frozenset[str]]:
    """The views of arrays that take the place of vectors."""
    return {
        f"list[{python}]": frozenset({f"HeaderOnlyArrayRef<{cpp}>", f"ArrayRef<{cpp}>"})
        for python, cpp in elements.items()
    }


_PLAIN = {"int": "int64_t", "float": "double", "bool": "bool", "str": "std::string"}
_VECTORS = {
    "list[int]": "std::vector<int64_t>",
    "list[float]": "std::vector<double>",
    "list[bool]": "std::vector<bool>",
}
_VIEWS = _lists(int="int64_t", float="double", bool="bool", Tensor="Tensor")

STABLE = Abi(
    "stable",
    "torch::stable::Tensor",
    {**_PLAIN, **_VECTORS, "dtype": "torch::headeronly::ScalarType", "device": "torch::stable::Device"},
    {**_VIEWS, "list[int]": _VIEWS["list[int]"] | {"IntHeaderOnlyArrayRef"}, "str": frozenset({"string_view"})},
    TEMPLATES / "stable_binding.cpp",
)
# Its binding converts numbers, so that functions may take float, int and others.
ATEN = Abi(
    "aten",
    "at::Tensor",
    {**_PLAIN, **_VECTORS, "dtype": "at::ScalarType", "device": "at::Device"},
    {
        **_VIEWS,
        "list[int]": _VIEWS["list[int]"] | {"IntArrayRef", "IntList"},
        "list[Tensor]": _VIEWS["list[Tensor]"] | {"TensorList", "ITensorListRef"},
        "str": frozenset({"string_view"}),
        "int": frozenset(
            {"int", "long", "short", "unsigned", "unsignedint", "size_t", "int32_t", "uint32_t", "uint64_t"}
        ),
        "float": frozenset({"float"}),
    },
    TEMPLATES / "aten_binding.cpp",
    frozenset({"vector<Tensor>", "tensor_list", "variable_list"}),
    "c++20",
)
ABIS = {abi.name: abi for abi in (STABLE, ATEN)}


def abi_of(spec: KernelSpec) -> Abi:
    """The ABI that a kernel in a file was attached with."""
    return ABIS[spec.options.get("abi", STABLE.name)]
