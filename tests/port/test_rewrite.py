"""What ATen's names become, and what is named as having no counterpart."""

from __future__ import annotations

import pytest

from opwright.backends.simulation import syntax_tree
from opwright.port.kinds import Kinds, of_type
from opwright.port.rewrite import Rewriter, Rewritten

HEAD = """#include <torch/extension.h>
at::Tensor f(at::Tensor x, c10::optional<at::Tensor> o, std::vector<at::Tensor> v, int n) {
"""


def rewritten(body: str, head: str = HEAD) -> tuple[str, Rewritten]:
    root = syntax_tree(f"{head}{body}\n}}\n")
    writer = Rewriter(Kinds(root), {})
    return writer.text(root), writer.result


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("auto y = x.contiguous();", "auto y = opwright::contiguous(x);"),
        ("auto p = x.data_ptr<float>();", "auto p = x.mutable_data_ptr<float>();"),
        ("auto p = x.data_ptr<const float>();", "auto p = x.const_data_ptr<float>();"),
        ("return x.size(0) + x.dim();", "return x.size(0) + x.dim();"),
        ("x.dtype() == at::kHalf;", "x.scalar_type() == torch::headeronly::ScalarType::Half;"),
        ("auto y = x[n].sum(0).sigmoid();", "opwright::aten::sigmoid(opwright::aten::sum(opwright::at(x, n), 0))"),
        ("x[0] = x[1];", "opwright::write(opwright::at(x, 0), opwright::at(x, 1));"),
        ("auto y = v[0].sum() + v.size();", "auto y = opwright::aten::sum(v[0]) + v.size();"),
        ("return o.value().clone();", "return opwright::aten::clone(o.value());"),
        ("return std::get<0>(x.min(0)).t();", "return opwright::aten::t(std::get<0>(opwright::aten::min(x, 0)));"),
        ("auto [a, b] = x.max(0); return b.neg();", "return opwright::aten::neg(b);"),
        ("for (auto& t : v) t.zero_();", "for (auto& t : v) opwright::aten::zero_(t);"),
        ("TORCH_CHECK(n > 0, \"at::Tensor\");", "STD_TORCH_CHECK(n > 0, \"at::Tensor\");"),
        ("int64_t k = x.item<int64_t>();", "int64_t k = opwright::item<int64_t>(x);"),
        ("float k = x[0].item().toFloat();", "float k = opwright::item<float>(opwright::at(x, 0));"),
        ("auto a = x.accessor<float, 2>();", "auto a = opwright::accessor<float, 2>(x);"),
        (
            "AT_DISPATCH_FLOATING_TYPES_AND(at::kHalf, x.scalar_type(), \"f\", [&] { g<scalar_t>(n, n); });",
            'THO_DISPATCH_V2(x.scalar_type(), "f", AT_WRAP(([&] { g<scalar_t>(n, n); })), '
            "AT_EXPAND(AT_FLOATING_TYPES), torch::headeronly::ScalarType::Half);",
        ),
        (
            "at::cuda::OptionalCUDAGuard guard(device_of(x)); auto s = at::cuda::getCurrentCUDAStream().stream();",
            "opwright::DeviceGuard guard(opwright::device_of(x)); auto s = opwright::current_cuda_stream();",
        ),
        ("k<<<1, n>>>(x.data_ptr<float>());", "k<<<1, n>>>(x.mutable_data_ptr<float>());"),
        (
            "using A = at::PackedTensorAccessor32<float, 2, at::RestrictPtrTraits>;",
            "using A = torch::headeronly::HeaderOnlyGenericPackedTensorAccessor<float, 2, "
            "torch::headeronly::RestrictPtrTraits, int32_t>;",
        ),
    ],
)  # fmt: skip
def test_a_statement_becomes(before: str, after: str) -> None:
    text, result = rewritten(before)
    assert after in text, text
    assert not result.remaining


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("auto m = torch::nn::Linear(2, 3);", "torch::nn::Linear has no counterpart"),
        ("return x.norm();", "cannot pass Scalar"),
        ("return x.grad();", "Tensor::grad has no counterpart"),
        ("torch::autograd::increment_version(x);", "mark the argument ow.mutated"),
        ("TORCH_WARN(n, \"slow\");", "TORCH_WARN has no counterpart"),
        ("auto k = x.item();", "opwright::item<double>"),
        ("return torch::indexing::Slice();", "torch::indexing::Slice has no counterpart"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_named_with_its_line(statement: str, named: str) -> None:
    text, result = rewritten(f"\n{statement}")
    assert [line for line, what in result.remaining if named in what] == [4], result.remaining
    assert statement in text


@pytest.mark.parametrize(
    "statement",
    [
        "std::vector<int> w; w.size(); w.data(); w.clear();",
        "struct { int min(int); int dim(); } other; other.min(0);",
        "std::string s = \"torch::nn at::Tensor\"; // torch::nn::Linear",
        "torch::stable::Tensor y; y.dim(); torch::headeronly::ScalarType t;",
        "std::array<float, 3> w; w[0] = w[1];",
    ],
)  # fmt: skip
def test_what_is_not_atens_stays_as_it_is(statement: str) -> None:
    text, result = rewritten(statement)
    assert statement in text
    assert not result.remaining


def test_names_in_the_bodies_of_macros_are_replaced() -> None:
    head = '#define CHECK(x) AT_ASSERTM(x.type().is_cuda(), #x " at::x")\n#define FAIL() AT_ERROR("no")\nvoid f() {'
    text, result = rewritten("", head)
    assert 'STD_TORCH_CHECK(x.is_cuda(), #x " at::x")' in text
    assert 'STD_TORCH_CHECK(false, "no")' in text
    assert not result.remaining


def test_a_dispatch_macro_of_the_file_itself_is_no_problem() -> None:
    root = syntax_tree("void f(at::Tensor x) { AT_DISPATCH_DEGREES(2, [&] { int a, b; }); }")
    own, foreign = Rewriter(Kinds(root), {}, {"AT_DISPATCH_DEGREES"}), Rewriter(Kinds(root), {})
    own.text(root), foreign.text(root)
    assert not own.result.remaining
    assert "AT_DISPATCH_DEGREES has no counterpart" in foreign.result.remaining[0][1]


def test_using_namespace_opens_names() -> None:
    text, result = rewritten("Tensor y = zeros({1}, kFloat); return y;", "using namespace at;\nTensor f(Tensor x) {\n")
    assert text.startswith("using torch::stable::Tensor;")
    assert "Tensor y = opwright::aten::zeros({1}, torch::headeronly::ScalarType::Float);" in text
    assert not result.remaining


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("const at::Tensor &", "tensor"), ("torch::Tensor", "tensor"), ("std::vector<at::Tensor>", "tensors"),
        ("at::TensorList", "tensors"), ("c10::optional<at::Tensor>", "optional"), ("at::TensorOptions", "options"),
        ("std::tuple<at::Tensor, at::Tensor>", "tuple"), ("at::TensorAccessor<float, 2>", ""), ("MyTensor", ""),
        ("std::vector<int64_t>", ""), ("std::vector<std::vector<at::Tensor>>", ""),
    ],
)  # fmt: skip
def test_the_kind_of_a_type(written: str, kind: str) -> None:
    assert of_type(written) == kind
