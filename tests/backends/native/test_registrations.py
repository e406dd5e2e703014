"""Registrations that sources end with: found, compared with the operator, and left out of what is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from jaxtyping import Float
from torch import Tensor

from opwright.backends.native.registrations import (
    compare_schemas,
    implementations,
    registrations,
    without_registrations,
)
from opwright.contract.definition.define import make_contract
from opwright.errors import SignatureMismatchError

SOURCE = """\
#include <torch/csrc/stable/library.h>
// STABLE_TORCH_LIBRARY(comment, m) { m.def("f() -> ()"); }
#define MY_LIBRARY TORCH_LIBRARY(macro, m) { }
const char* text = "TORCH_LIBRARY(literal, m) { }";
Tensor saxpy_cpu(Tensor x, Tensor y, double a) { return x; }
STABLE_TORCH_LIBRARY(
    demo, m) {
  // a } brace
  m.def("saxpy(Tensor x, Tensor y, "
        "float a) -> Tensor");
  m.def("other() -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(demo, CPU, m) { m.impl("saxpy", TORCH_BOX(&saxpy_cpu)); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("saxpy", &my::saxpy_cpu, "doc"); }
int after = 1;
"""


def saxpy(x: Float[Tensor, " n"], y: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
    return a * x + y


def test_blocks_are_found_by_their_line_and_nothing_that_only_names_them() -> None:
    assert [(block.title, block.line) for block in registrations(SOURCE)] == [
        ("STABLE_TORCH_LIBRARY( demo, m)", 6),
        ("STABLE_TORCH_LIBRARY_IMPL(demo, CPU, m)", 13),
        ("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)", 14),
    ]


def test_the_source_without_them_has_the_same_lines() -> None:
    text = without_registrations(SOURCE, Path("kernel.cpp"))
    first, *lines = text.splitlines()
    assert first == '#line 1 "kernel.cpp"'
    assert lines[14] == "int after = 1;"
    assert "".join(lines[5:14]).strip() == ""
    assert lines[:5] == SOURCE.splitlines()[:5]
    assert without_registrations("int x;", Path("kernel.cpp")) == "int x;"


def test_the_functions_that_implement_an_operator() -> None:
    assert implementations(SOURCE, "saxpy") == ["saxpy_cpu", "my::saxpy_cpu"]
    assert implementations(SOURCE, "other") == []


def compare(schema: str) -> None:
    contract = make_contract("demo::saxpy", saxpy, globals())
    compare_schemas(f'int x;\nTORCH_LIBRARY(theirs, m) {{\n  m.def("{schema}");\n}}', Path("k.cpp"), contract)


@pytest.mark.parametrize(
    "schema",
    [
        "saxpy(Tensor x, Tensor y, float a) -> Tensor",
        "demo::saxpy(Tensor self, Tensor other, float alpha=1.0) -> Tensor out",
        "saxpy2(Tensor x) -> Tensor",
        "saxpy",  # no schema: torch infers it
        "saxpy(what torch cannot read) ->",
    ],
)
def test_the_same_schema_is_taken_over(schema: str) -> None:
    compare(schema)  # raises nothing


@pytest.mark.parametrize(
    "schema",
    [
        "saxpy(Tensor x, Tensor y, int a) -> Tensor",
        "saxpy(Tensor x, Tensor y) -> Tensor",
        "saxpy(Tensor x, Tensor(a!) y, float a) -> Tensor",
        "saxpy(Tensor x, Tensor y, float a) -> (Tensor, Tensor)",
        "saxpy(Tensor x, Tensor? y, float a) -> Tensor",
    ],
)
def test_another_schema_is_refused(schema: str) -> None:
    with pytest.raises(SignatureMismatchError, match=r"demo::saxpy: k.cpp:2 registers saxpy\(") as error:
        compare(schema)
    assert error.value.message.endswith("but the operator is saxpy(Tensor x, Tensor y, float a) -> Tensor")
