"""Kernels in C++, from source to result."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.backends import get_backend
from opwright.backends.build_tools import build_tools
from opwright.errors import CompileError, KernelError, KernelRefusedError, SignatureMismatchError
from opwright.machine import this_machine
from opwright.results import Accepted, Refused

HEAD = """
#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <optional>
#include <string>
#include <tuple>
#include <vector>
using torch::stable::Tensor;
"""
SCALE = (
    HEAD
    + """
#ifndef FACTOR
#define FACTOR 2
#endif
Tensor scale(const Tensor& x, double a) {
  Tensor out = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i)
    out.mutable_data_ptr<float>()[i] = x.const_data_ptr<float>()[i] * static_cast<float>(a) * FACTOR;
  return out;
}
"""
)


def scale(namespace: str) -> ow.Op:
    @ow.op(f"{namespace}::scale")
    def scale(x: Float[Tensor, " n"], a: float = 1.0) -> Float[Tensor, " n"]:
        return x * a

    return scale


def attach(op: ow.Op, folder: Path, text: str = SCALE, file: str = "scale.cpp", **options: Any) -> Any:
    (folder / file).write_text(text)
    return op.cpp(folder / file, name="native", **options)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The build tools' messages to the user: a line for each compilation."""
    output: list[str] = []
    tools = dataclasses.replace(build_tools(), notify=output.append)
    monkeypatch.setattr("opwright.runtime.kernel.build_tools", lambda: tools)
    return output


@pytest.mark.compiler
def test_a_kernel_is_built_on_first_use_and_runs(tmp_path: Path, namespace: str, messages: list[str]) -> None:
    op = scale(namespace)
    attach(op, tmp_path)
    assert not messages, "nothing is compiled when a kernel is attached"
    assert op(torch.ones(3), 3.0).tolist() == [6] * 3
    assert op.overload(torch.ones(3), 4.0).tolist() == [8] * 3
    assert op.kernels["native"](torch.ones(3)).tolist() == [2] * 3
    assert len(messages) == 1
    assert f"compiling scale.cpp for {namespace}::scale with" in messages[0]


@pytest.mark.slow
@pytest.mark.compiler
def test_a_source_that_registers_the_operator_itself_stays_behind_its_checks(
    tmp_path: Path, namespace: str, messages: list[str]
) -> None:
    text = f"""{HEAD}#include <torch/csrc/stable/library.h>
namespace own {{
template <class T>
auto scaled(const Tensor& x, double a) -> Tensor {{
  Tensor out = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) out.mutable_data_ptr<T>()[i] = x.const_data_ptr<T>()[i] * a;
  return out;
}}
}}
STABLE_TORCH_LIBRARY({namespace}, m) {{ m.def("scale(Tensor x, float a=1.0) -> Tensor"); }}
STABLE_TORCH_LIBRARY_IMPL({namespace}, CPU, m) {{ m.impl("scale", TORCH_BOX(&own::scaled<float>)); }}
"""
    op = scale(namespace)
    kernel = attach(op, tmp_path, text, entry="own::scaled<float>")
    assert kernel(torch.ones(3), 3.0).tolist() == [3] * 3
    assert op.overload(torch.ones(3), 4.0).tolist() == [4] * 3
    with pytest.raises(ow.errors.ArgumentError):
        op.overload(torch.ones(3, 3), 4.0)
    assert [m.split(" is left out")[0] for m in messages[1:]] == [
        f"scale.cpp:18: STABLE_TORCH_LIBRARY({namespace}, m)",
        f"scale.cpp:19: STABLE_TORCH_LIBRARY_IMPL({namespace}, CPU, m)",
    ]


TWO = f"""{HEAD}
#include <torch/csrc/stable/ops.h>
static int calls = 0;  // of the whole file
Tensor once(const Tensor& x, double a) {{ return torch::stable::full(x.sizes(), ++calls); }}
Tensor again(const Tensor& x, double a) {{ return torch::stable::full(x.sizes(), ++calls + a); }}
using Alias = std::pair<double, double>;  // only the compiler sees that this is no double
Tensor wrong(const Tensor& x, Alias a) {{ return x; }}
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_operators_of_one_file_are_compiled_once(tmp_path: Path, namespace: str, messages: list[str]) -> None:
    first, second, third = (scale(f"{namespace}_{i}") for i in range(3))
    kernels = [attach(op, tmp_path, TWO, entry=entry) for op, entry in ((first, "once"), (second, "again"))]
    others = [attach(third, tmp_path, TWO, entry="again", options=["-DOTHER"])]
    x = torch.zeros(1)
    assert [kernels[0](x).item(), kernels[1](x).item(), kernels[0](x).item()] == [1, 3, 3]
    assert [first(x).item(), first(x).item(), second(x, 0.5).item(), second(x, 0.5).item()] == [4, 5, 6.5, 7.5]
    assert len(messages) == 1
    assert f"for {namespace}_0::scale, {namespace}_1::scale with" in messages[0]
    assert others[0](x).item() == 2  # with other options, another build
    assert len(messages) == 2


@pytest.mark.compiler
@pytest.mark.slow  # compiles three times
def test_a_wrong_operator_does_not_keep_others_of_its_file_from_being_built(
    tmp_path: Path, namespace: str, messages: list[str]
) -> None:
    good, wrong = (scale(f"{namespace}_{i}") for i in range(2))
    kernel, broken = attach(good, tmp_path, TWO, entry="once"), attach(wrong, tmp_path, TWO, entry="wrong")
    assert kernel(torch.zeros(1)).item() == 1
    with pytest.raises(CompileError, match=f"{namespace}_1::scale"):
        broken(torch.zeros(1))
    assert kernel(torch.zeros(1)).item() == 2


@pytest.mark.compiler
@pytest.mark.slow  # two processes
def test_a_second_process_does_not_compile(tmp_path: Path, run_python: Any, namespace: str) -> None:
    (tmp_path / "scale.cpp").write_text(SCALE)
    script = f"""
import torch, opwright as ow
from jaxtyping import Float
from torch import Tensor

@ow.op("{namespace}::scale")
def scale(x: Float[Tensor, "n"], a: float = 1.0) -> Float[Tensor, "n"]:
    return x * a

scale.cpp("scale.cpp")
print(scale(torch.ones(2), 3.0).tolist())
"""
    first, second = run_python(script), run_python(script)
    assert first.stdout == second.stdout == "[6.0, 6.0]\n"
    assert "opwright: compiling scale.cpp" in first.stderr
    assert "compiling" not in second.stderr


@pytest.mark.slow
@pytest.mark.compiler
def test_a_compile_error_shows_file_line_source_and_caret(tmp_path: Path, namespace: str) -> None:
    op = scale(namespace)
    text = HEAD + "Tensor scale(const Tensor& x, double a) {\n  return x.nonsense(a);\n}\n"
    attach(op, tmp_path, text)
    with pytest.raises(CompileError) as error:
        op(torch.ones(3))
    message, line = error.value.message, text[: text.index("return")].count("\n") + 1
    assert message.startswith(f"{namespace}::scale: scale.cpp does not compile\n")
    assert f"scale.cpp:{line}:" in message
    assert "error:" in message
    assert "return x.nonsense(a);" in message
    assert "^" in message
    assert "nonsense" in error.value.log
    with pytest.raises(CompileError):
        op(torch.ones(3))
    (tmp_path / "scale.cpp").write_text(SCALE)
    assert op(torch.ones(3))[0] == 2, "once the file is right, the next call builds it"


@pytest.mark.slow  # g++ compiles torch's headers twice
@pytest.mark.compiler
def test_an_edited_source_is_built_anew(tmp_path: Path, namespace: str, messages: list[str]) -> None:
    op = scale(namespace)
    attach(op, tmp_path)
    assert op(torch.ones(1)).item() == 2
    attach(op, tmp_path, SCALE.replace("* FACTOR", "* FACTOR + 1"))
    assert op(torch.ones(1)).item() == 3
    attach(op, tmp_path)
    assert op(torch.ones(1)).item() == 2
    assert len(messages) == 2, "the first version was still in the cache"


@pytest.mark.slow  # g++ compiles torch's headers twice
@pytest.mark.compiler
def test_an_edited_header_is_built_anew(tmp_path: Path, namespace: str, messages: list[str]) -> None:
    op, text = scale(namespace), SCALE.replace("#ifndef", '#include "factor.h"\n#ifndef')
    for factor in (5, 7):
        (tmp_path / "factor.h").write_text(f"#define FACTOR {factor}\n")
        attach(op, tmp_path, text)
        assert op(torch.ones(1)).item() == factor
    assert len(messages) == 2


@pytest.mark.slow  # g++ compiles torch's headers twice
@pytest.mark.compiler
def test_compiler_options_count(tmp_path: Path, namespace: str, messages: list[str]) -> None:
    op = scale(namespace)
    for options, factor in ((["-DFACTOR=3"], 3), (["-DFACTOR=4"], 4), ([], 2)):
        attach(op, tmp_path, options=options)
        assert op(torch.ones(1)).item() == factor
    assert len(messages) == 3


def test_options_that_are_no_list_are_refused(tmp_path: Path, namespace: str) -> None:
    for wrong in ("-O2", [3]):
        with pytest.raises(KernelError, match="options must be a list of compiler flags, got") as error:
            attach(scale(namespace), tmp_path, options=wrong)
        assert "one string per flag" in error.value.fix


@pytest.mark.slow
@pytest.mark.compiler
def test_a_source_called_binding_is_no_clash(tmp_path: Path, namespace: str) -> None:
    op = scale(namespace)
    attach(op, tmp_path, file="binding.cpp")
    assert op(torch.ones(1)).item() == 2


@pytest.mark.compiler
@pytest.mark.slow
def test_every_kind_of_argument_crosses_into_cpp(tmp_path: Path, namespace: str) -> None:
    @ow.op(f"{namespace}::mixed")
    def mixed(
        x: Float[Tensor, " n"],
        xs: list[Float[Tensor, " n"]],
        i: int,
        b: bool,
        s: str,
        sizes: list[int],
        o: Float[Tensor, " n"] | None = None,
        *,
        k: int | None = None,
        a: float = 0.5,
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "1"]]:
        total = sum(sizes) + i + (100 if b else 0) + len(s) * 1000 + len(xs) * 10000
        total += (k or 0) + (0 if o is None else 100000)
        return x * a, x.new_full((1,), float(total))

    text = (
        HEAD
        + """
std::tuple<Tensor, Tensor> mixed(const Tensor& x, const std::vector<Tensor>& xs, int64_t i, bool b,
    const std::string& s, const std::vector<int64_t>& sizes, const std::optional<Tensor>& o,
    const std::optional<int64_t>& k, double a) {
  Tensor scaled = torch::stable::empty_like(x);
  for (int64_t j = 0; j < x.numel(); ++j)
    scaled.mutable_data_ptr<float>()[j] = x.const_data_ptr<float>()[j] * static_cast<float>(a);
  Tensor one = torch::stable::new_empty(x, {1});
  double total = i + (b ? 100 : 0) + 1000.0 * s.size() + 10000.0 * xs.size() + k.value_or(0) + (o ? 100000 : 0);
  for (auto size : sizes) total += size;
  one.mutable_data_ptr<float>()[0] = total;
  return {scaled, one};
}
"""
    )
    (tmp_path / "mixed.cpp").write_text(text)
    mixed.cpp(tmp_path / "mixed.cpp", name="native")
    x = torch.randn(3)
    for kwargs in ({}, {"k": 7, "a": 2}, {"o": x}, {"o": x, "k": 1}):
        ours = mixed.kernels["native"](x, [x, x], 3, True, "abc", [4, 5], **kwargs)
        torch.testing.assert_close(ours, mixed.contract.reference(_flat(mixed, x, kwargs)))
        torch.testing.assert_close(mixed(x, [x, x], 3, True, "abc", [4, 5], **kwargs), ours)
        through = mixed(x.clone().requires_grad_(), [x, x], 3, True, "abc", [4, 5], **kwargs)
        torch.testing.assert_close([t.detach() for t in through], list(ours))


def _flat(op: ow.Op, x: Tensor, kwargs: dict[str, Any]) -> list[Any]:
    return [x, [x, x], 3, True, "abc", [4, 5], kwargs.get("o"), kwargs.get("k"), float(kwargs.get("a", 0.5))]


def test_without_a_compiler_the_kernel_is_refused_with_the_reason(tmp_path: Path, namespace: str) -> None:
    bare = dataclasses.replace(this_machine(), cxx=None)
    op = scale(namespace)
    attach(op, tmp_path)
    outcome = get_backend("cpp").probe(op.kernels["native"].spec, "cpu", bare)
    assert outcome == Refused("there is no C++ compiler", "install g++ (apt install g++), or set CXX")
    tools = dataclasses.replace(build_tools(), machine=bare)
    with pytest.raises(KernelRefusedError, match="there is no C\\+\\+ compiler"):
        get_backend("cpp").compile(op.kernels["native"].spec, op.contract, tools)


@pytest.mark.compiler
def test_probing_says_where_it_runs(tmp_path: Path, namespace: str) -> None:
    op = scale(namespace)
    attach(op, tmp_path)
    assert isinstance(op.kernels["native"].probe("cpu"), Accepted)
    assert "not for cuda" in str(op.kernels["native"].probe("cuda"))


def test_a_mismatch_is_refused_when_the_kernel_is_attached(tmp_path: Path, namespace: str) -> None:
    op = scale(namespace)
    with pytest.raises(SignatureMismatchError, match="parameter 'a' must be 'double', got 'float'"):
        attach(op, tmp_path, SCALE.replace("double a", "float a"))
    with pytest.raises(KernelError, match="must define the function 'other', got none"):
        attach(op, tmp_path, entry="other")
    assert not op.kernels


@pytest.mark.compiler
def test_the_source_is_kept_beside_what_was_built(tmp_path: Path, namespace: str) -> None:
    op = scale(namespace)
    attach(op, tmp_path)
    artifact = get_backend("cpp").compile(op.kernels["native"].spec, op.contract, build_tools())
    names = {p.name for p in artifact.file.parent.iterdir()}
    assert {"scale.cpp", "scale.binding.cpp", "scale.so"} <= names


@pytest.mark.slow
@pytest.mark.compiler
def test_gradients_and_vmap_work_around_a_native_kernel(tmp_path: Path, namespace: str) -> None:
    op = scale(namespace)
    attach(op, tmp_path)
    x = torch.ones(3, requires_grad=True)
    op(x, 3.0).sum().backward()
    assert x.grad.tolist() == [3] * 3, "the gradient is that of the reference"
    assert torch.vmap(op)(torch.ones(2, 3)).shape == (2, 3)
