"""The declaration of a native host function, read and compared without a compiler; the generated binding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from opwright.backends.base import KernelSpec
from opwright.backends.native.binding import binding_text
from opwright.backends.native.declaration import compare_declaration, declaration
from opwright.contract.contract import Contract
from opwright.contract.definition.define import make_contract
from opwright.errors import KernelError, SignatureMismatchError

GOLDEN = Path(__file__).parent / "golden"


def everything(
    x: Float[Tensor, "*n"],
    xs: list[Float[Tensor, "*n"]],
    i: int,
    a: float,
    b: bool,
    s: str,
    sizes: list[int],
    dt: torch.dtype,
    o: Float[Tensor, "*n"] | None = None,
    *,
    k: int | None = None,
    mode: str = "a",
) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
    return x, x


def saxpy(x: Float[Tensor, " n"], y: Float[Tensor, " n"], a: float) -> Float[Tensor, " n"]:
    return a * x + y


def spec_of(contract: Contract, source: Path, entry: str | None = None) -> KernelSpec:
    return KernelSpec("k", "cpp", source, entry or contract.name, ("cpu",))


def compare(tmp_path: Path, text: str, function: Any = saxpy) -> str:
    """The binding of a source, once its declaration was compared."""
    contract = make_contract(f"demo::{function.__name__}", function, globals())
    source = tmp_path / "saxpy.cpp"
    source.write_text(text)
    compare_declaration(spec_of(contract, source), contract)
    return binding_text(spec_of(contract, source), contract, "unique")


def test_the_declaration_is_what_a_person_should_write() -> None:
    contract = make_contract("demo::everything", everything, globals())
    assert declaration(contract, "everything") == (
        "std::tuple<torch::stable::Tensor, torch::stable::Tensor> everything("
        "const torch::stable::Tensor& x, const std::vector<torch::stable::Tensor>& xs, int64_t i, double a, bool b, "
        "const std::string& s, const std::vector<int64_t>& sizes, torch::headeronly::ScalarType dt, "
        "const std::optional<torch::stable::Tensor>& o, const std::optional<int64_t>& k, const std::string& mode)"
    )


@pytest.mark.parametrize("function", [saxpy, everything])
def test_the_generated_binding_is_the_golden_one(function: Any, tmp_path: Path) -> None:
    contract = make_contract(f"demo::{function.__name__}", function, globals())
    source = tmp_path / "kernel.cpp"
    source.write_text(declaration(contract, contract.name) + " {}")
    text = binding_text(spec_of(contract, source), contract, unique=f"demo_{function.__name__}_0123")
    text = text.replace(str(tmp_path), "/somewhere")
    golden = GOLDEN / f"{function.__name__}.binding.cpp"
    assert text == golden.read_text(), f"if the change is meant, write the new text to {golden}"


@pytest.mark.parametrize(
    "text",
    [
        "Tensor saxpy(Tensor x, Tensor y, double a) { return x; }",
        "torch::stable::Tensor saxpy(const torch::stable::Tensor& x, const Tensor &y, const double a) { return x; }",
        "static inline Tensor\nsaxpy(\n Tensor x, // first\n Tensor y, /* (b) { */\n double a\n) {\n return x;\n}",
        "Tensor saxpy(Tensor x, Tensor y, double a);\nTensor saxpy(Tensor x, Tensor y, double a) { return x; }",
        "template <class T> void saxpy_(T* x) {}\nTensor saxpy(Tensor x, Tensor y, double a) noexcept { return x; }",
        "Tensor other() { return saxpy(1); }\nTensor saxpy(Array x, Array y, real a) { return x; }",
        "Tensor saxpy(Tensor p, Tensor q, double r) { return p; }",
        "auto saxpy(Tensor x, Tensor y, double a) -> Tensor { return x; }",
        "auto saxpy(Tensor x, Tensor y, double a) noexcept -> torch::stable::Tensor\n{ return x; }",
        "[[nodiscard]] Tensor saxpy(Tensor x, Tensor y, double a) { return x; }",
        "namespace { Tensor saxpy(Tensor x, Tensor y, double a) { return x; } }",
        "inline namespace v1 {\nTensor saxpy(Tensor x, Tensor y, double a) { return x; }\n}",
    ],
)
def test_declarations_that_fit_are_accepted(text: str, tmp_path: Path) -> None:
    assert "= &saxpy;" in compare(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("Tensor saxpy(Tensor x, Tensor y) { return x; }", "must take 3 parameters, got 2"),
        ("Tensor saxpy(Tensor x, Tensor y, double a, int64_t n) { return x; }", "must take 3 parameters, got 4"),
        ("Tensor saxpy(Tensor x, Tensor y, float a) { return x; }", "parameter 'a' must be 'double', got 'float'"),
        ("Tensor saxpy(Tensor x, Tensor y, int64_t a) { return x; }", "'a' must be 'double', got 'int64_t'"),
        ("Tensor saxpy(Tensor x, float* y, double a) { return x; }", "must be 'torch::stable::Tensor', got 'float*'"),
        ("Tensor saxpy(Tensor y, Tensor x, double a) { return x; }", "must take (x, y, a), got (y, x, a"),
        ("void saxpy(Tensor x, Tensor y, double a) { }", "must return 'torch::stable::Tensor', got 'void'"),
    ],
)  # fmt: skip
def test_declarations_that_differ_are_refused_with_the_one_to_write(
    text: str, expected_message: str, tmp_path: Path
) -> None:
    with pytest.raises(SignatureMismatchError) as error:
        compare(tmp_path, text)
    assert expected_message in error.value.message
    assert error.value.message.startswith("demo::saxpy: saxpy() in saxpy.cpp")
    assert "declare it as torch::stable::Tensor saxpy(const torch::stable::Tensor& x" in error.value.fix


@pytest.mark.parametrize("text", ["", "// Tensor saxpy(Tensor x, Tensor y, double a) {}", "Tensor saxpy2(Tensor x) {}"])
def test_a_missing_function_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"saxpy.cpp must define the function 'saxpy', got none") as error:
        compare(tmp_path, text)
    assert "declare it as" in error.value.fix


def test_the_other_spellings_of_a_type_are_known(tmp_path: Path) -> None:
    text = (
        "std::tuple<Tensor, Tensor> everything(const Tensor x, std::vector<Tensor> xs, int64_t i, double a, bool b, "
        "std::string_view s, torch::headeronly::HeaderOnlyArrayRef<int64_t> sizes, ScalarType dt, "
        "std::optional<Tensor> o, std::optional<int64_t> k, std::string mode) { }"
    )
    assert "= &everything;" in compare(tmp_path, text, everything)


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("namespace my { Tensor saxpy(Tensor x, Tensor y, double a) { return x; } }", "my::saxpy"),
        ("namespace my::own {\nauto f(Tensor x, Tensor y, double a) -> Tensor { return x; }\n}", "my::own::f"),
        ("namespace my { Tensor f(Tensor, Tensor, double); }\nTensor my::f(Tensor x, Tensor y, double a) {}", "my::f"),
        ("struct Run { static Tensor f(Tensor x, Tensor y, double a) {} };", "Run::f"),
        ("template <typename T, int n = 4>\nTensor f(Tensor x, Tensor y, double a) { return x; }", "f<float, 8>"),
    ],
)
def test_functions_in_namespaces_and_instances_of_templates(text: str, entry: str, tmp_path: Path) -> None:
    contract = make_contract("demo::saxpy", saxpy, globals())
    source = tmp_path / "saxpy.cpp"
    source.write_text(text)
    spec = spec_of(contract, source, entry)
    compare_declaration(spec, contract)
    assert f"= &{entry};" in binding_text(spec, contract, "unique")


@pytest.mark.parametrize(
    ("text", "entry", "message", "fix"),
    [
        ("namespace my { Tensor saxpy(Tensor x, Tensor y, double a) {} }", "saxpy", "got my::saxpy in line 1", "my::"),
        ("template <class T>\nTensor saxpy(Tensor x, Tensor y, double a) {}", "saxpy", ":2, got ", "<float>"),
        ("Tensor saxpy(Tensor x, Tensor y, double a) {}", "my::saxpy", "got saxpy in line 1", "entry='saxpy'"),
        (
            'Tensor on_cpu(Tensor x, Tensor y, double a) {}\nSTABLE_TORCH_LIBRARY_IMPL(demo, CPU, m) {\n'
            '  m.impl("saxpy", TORCH_BOX(&on_cpu));\n}',
            "saxpy", "got on_cpu, which it registers as saxpy", "entry='on_cpu'",
        ),
    ],
)  # fmt: skip
def test_what_to_name_instead(text: str, entry: str, message: str, fix: str, tmp_path: Path) -> None:
    contract = make_contract("demo::saxpy", saxpy, globals())
    source = tmp_path / "saxpy.cpp"
    source.write_text(text)
    with pytest.raises(KernelError) as error:
        compare_declaration(spec_of(contract, source, entry), contract)
    assert message in error.value.message
    assert fix in error.value.fix


def test_of_overloads_the_one_that_fits_is_taken(tmp_path: Path) -> None:
    text = "Tensor saxpy(Tensor x, Tensor y, float a) {}\nTensor saxpy(Tensor x, Tensor y, double a) {}"
    assert "= static_cast<Tensor (*)(Tensor, Tensor, double)>(&saxpy);" in compare(tmp_path, text)
