"""C++ of simulated host functions: control flow, templates, lambdas, vectors and macros mean what they mean in C++."""

from __future__ import annotations

import math

import pytest
import torch

from opwright.backends.cuda.host.part import HostPart
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import CudaSource
from opwright.errors import NotSimulatedError

pytestmark = pytest.mark.compiler

BEFORE = """
#define CHECKED(call)                                  \\
  do {                                                 \\
    cudaError_t err = (call);                          \\
    if (err != cudaSuccess) {                          \\
      fprintf(stderr, "%s\\n", cudaGetErrorString(err)); \\
      exit(1);                                         \\
    }                                                  \\
  } while (0)
#define TWICE(x) ((x) + (x))
using half_of_cuda = __half;
typedef long long wide;
__global__ void nothing() {}
template <int N> int times(int x, int more = 1) { return x * N + more; }
template <typename T> double rounded(double x) { T y = static_cast<T>(x); return y; }
static std::vector<int64_t> grown(std::vector<int64_t> v) { v.push_back(9); return v; }
"""


def result(body: str, *arguments: object, parameters: str = "int n", returns: str = "double") -> object:
    text = f"{BEFORE}{returns} f({parameters}) {{ {body} }}"
    return HostPart(CudaModule(CudaSource(text))).function("f")(*arguments)


COUNT = """
int sum = 0;
switch (n) {
  case 1: sum += 1; break;
  case 2: { sum += 10; }
  case 3: sum += 100; break;
  default: sum = -1;
}
return sum;
"""


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (2, 110), (3, 100), (7, -1)])
def test_a_switch_goes_on_to_the_next_case(n: int, expected: int) -> None:
    assert result(COUNT, n) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("int s = 0; for (int i = 0; i < n; i++) { if (i == 2) continue; if (i == 5) break; s += i; } return s;", 8),
        ("int i = 7; for (int i = 0; i < n; ++i) {} return i;", 7),
        ("int s = 0; do { s++; } while (s < n); return s;", 10),
        ("int s = 5; do s++; while (s < 3); return s;", 6),
        ("int s = 0; while (true) { if (++s > n) break; } return s;", 11),
        ("int s = 0; while (s < 4) { switch (s) { case 0: s += 2; break; default: s++; } } return s;", 4),
        ("int s = 0; int t = s++ + 5; return t * 10 + s;", 51),
        ("int s = 0; int t = ++s + 5; return t * 10 + s;", 61),
    ],
)
def test_loops_end_and_go_on_as_they_say(body: str, expected: int) -> None:
    assert result(body, 10) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return times<3>(n);", 31),
        ("constexpr int K = 4; return times<K>(n, 0);", 40),
        ("return rounded<float>(0.1) == 0.1;", False),
        ("return rounded<double>(0.1) == 0.1;", True),
        ("return rounded<half_of_cuda>(2049.0);", 2048.0),
        ("using T = float; return rounded<T>(0.1) == 0.1;", False),
        ("wide m = n; return TWICE(m * 0.25);", 5.0),
        ("CHECKED(cudaDeviceSynchronize()); return n;", 10),
        ("return std::numeric_limits<float>::max() > 1e38 && -std::numeric_limits<float>::infinity() < 0;", True),
        ("auto twice = [&](int k) { n = n + k; return n * 2; }; int a = twice(1); return a + n;", 33),
        ("std::vector<int64_t> v = {n}; auto f = [=]() { return v[0]; }; v[0] = 3; return f();", 10),
        ("auto held = [=](int k) { return n + k; }; n = 100; return held(1);", 11),
        ("auto [a, b] = std::make_tuple(n, 3); return a * b;", 30),
    ],
)
def test_templates_lambdas_and_macros(body: str, expected: float) -> None:
    assert result(body, 10) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("std::vector<int64_t> v; v.push_back(n); auto w = v; w[0] = 3; return v[0] * 10 + w[0];", 103),
        ("std::vector<int64_t> v = {1}, w; w = v; w[0] = 5; return v[0] * 10 + w[0];", 15),
        ("std::vector<int64_t> v(3, 2); auto& w = v; w[1] = 5; return v[0] + v[1] + v.size();", 10),
        ("std::vector<int64_t> v = {1, 2, 3}; v.erase(v.begin() + 1); return v[1] * 10 + v.size();", 32),
        ("std::vector<int64_t> v = {1, 2}; v.insert(v.end(), 7); return v[2];", 7),
        ("std::vector<int64_t> v = {1}; auto w = grown(v); return v.size() * 10 + w.size();", 12),
        ("dim3 grid(2, 3); grid.x = n; grid.y += 1; return grid.x * 100 + grid.y * 10 + grid.z;", 1041),
    ],
)
def test_vectors_are_copied_and_references_are_not(body: str, expected: int) -> None:
    assert result(body, 10) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("int m = 3; int& r = m; r = 5; return m;", "an assignment through a reference"),
        ("auto f = [&]() { return n; }; { int n = 3; return f(); }", "hides another one beside a lambda"),
        (
            "auto f = [&]() { return n; }; auto g = [=]() { return n; }; { int n = 3; return f(); }",
            "hides another one beside a lambda",
        ),
        ("auto f = [n, &f2]() { return n; }; return f();", "a lambda that captures n, &f2"),
        ("return times(n);", "the template times without all of its arguments"),
        ("std::vector<int64_t> v = {1}; v[0] = 2.5; return v[0];", "an assignment to this element"),
        ("std::vector<int64_t> v = {1}; v[1] = 2; return v[0];", "an assignment to this element"),
        ("const float x = 3; return x.y;", "the field y"),
        ("auto& [a, b] = std::make_tuple(n, 3); return a;", "a binding by reference"),
        ("auto x = torch::zeros({n}); return x.data_ptr<float>()[0];", r"data_ptr<float>\(\)\[0\] \("),
        ("auto x = torch::zeros({n}); auto y = torch::zeros_like(x, x.options()); return n;", "zeros_like"),
        ("return n.size(0);", "n.size"),
        (
            "auto x = torch::zeros({n}); C10_CUDA_CHECK(cudaMemcpy(x.data_ptr(), x.data_ptr(), 4)); return n;",
            "cudaMemcpy",
        ),
        ("return n == Mode::Half;", "'Half' is not known"),
        ("return n == Half;", "'Half' is not known"),
        ("#ifdef A\nreturn n;\n#endif\n return 1;", "a preproc ifdef"),
        ("goto end; end: return n;", "a goto statement"),
    ],
)
def test_what_would_be_a_guess_is_refused(body: str, message: str) -> None:
    with pytest.raises(NotSimulatedError, match=message):
        result(body, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#define A 1\ndouble f(double x) { return A; }\n#undef A\n#define A 2\n", "A, which has several definitions"),
        (
            "namespace a { using T = float; }\nnamespace b { using T = double; }\n"
            "double f(double x) { T y = x; return y; }",
            "a variable of type T",
        ),
        (
            "namespace a { const int N = 1; }\nnamespace b { const int N = 2; }\ndouble f(double x) { return N; }",
            "'N' is",
        ),
        ("#define A(x) } x {\ndouble f(double x) { A(x); return x; }", "the macro A"),
    ],
)
def test_names_with_two_meanings_are_refused(text: str, message: str) -> None:
    with pytest.raises(NotSimulatedError, match=message):
        HostPart(CudaModule(CudaSource(f"__global__ void nothing() {{}}\n{text}"))).function("f")(0.1)


def test_an_index_that_a_vector_does_not_have_is_an_error() -> None:
    for index in ("-1", "2"):
        with pytest.raises(RuntimeError, match="index") as caught:
            result(f"std::vector<int64_t> v = {{1, 2}}; return v[{index} + 0 * n];", 1)
        assert not isinstance(caught.value, NotSimulatedError)


def test_a_static_variable_keeps_its_value() -> None:
    """What a function keeps between calls is kept here, too: stale results are found."""
    body = "static int calls = 0; static torch::Tensor first; calls++; if (calls == 1) first = x.clone(); return first;"
    text = f"{BEFORE}torch::Tensor f(torch::Tensor x) {{ {body} }} int g() {{ static int n = 3; n *= 2; return n; }}"
    part = HostPart(CudaModule(CudaSource(text)))
    f, g = part.function("f"), part.function("g")
    assert [f(torch.tensor([value])).item() for value in (1.0, 2.0, 3.0)] == [1, 1, 1]
    assert [g(), g(), part.function("g")()] == [6, 12, 24]
    count = "template <int N> int counted() { static int n = 0; n += N; return n; }"
    text = f"{BEFORE}{count} int h() {{ return counted<1>() * 10 + counted<2>(); }}"
    grid = "int grid(int n) { static dim3 blocks(n, 2); return blocks.x * 10 + blocks.y; }"
    g = HostPart(CudaModule(CudaSource(f"{BEFORE}{grid}"))).function("grid")
    assert [g(3), g(7)] == [32, 32]
    h = HostPart(CudaModule(CudaSource(text))).function("h")
    assert [h(), h()] == [12, 24]
    sizes = "int64_t sizes(int n) { static std::vector<int64_t> v; v.push_back(n); return v.size(); }"
    g = HostPart(CudaModule(CudaSource(f"{BEFORE}{sizes}"))).function("sizes")
    assert [g(1), g(1), g(1)] == [1, 2, 3]


KERNELS = """
template <int N> __global__ void add(const float* x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + N;
}
__global__ void negate(const float* x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = -x[i];
}
template <int N> void launch(const float* x, float* out, int n) {
  auto kernel = add<N>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024);
  const dim3 grid(std::max<int64_t>(1, (n + 63) / 64));
  kernel<<<grid, 64>>>(x, out, n);
}
torch::Tensor f(torch::Tensor x, int64_t which) {
  auto out = torch::empty_like(x);
  auto from = x.data_ptr<float>();
  float* to = out.data_ptr<float>();
  const int n = x.numel();
  auto run = [&](auto kernel, int threads) { kernel<<<(n + threads - 1) / threads, threads>>>(from, to, n); };
  switch (which) {
    case 0: launch<2>(from, to, n); break;
    case 1: launch<5>(from, to, n); break;
    case 2: run(negate, 32); break;
    case 3: run(add<7>, 32); break;
    default: TORCH_CHECK(false, "no such kernel");
  }
  return out;
}
"""


@pytest.mark.parametrize(("which", "expected"), [(0, 102.0), (1, 105.0), (2, -100.0), (3, 107.0)])
def test_kernels_are_values_and_template_arguments(which: int, expected: float) -> None:
    f = HostPart(CudaModule(CudaSource(KERNELS))).function("f")
    assert f(torch.full((70,), 100.0), which).unique().item() == expected
    with pytest.raises(RuntimeError, match="no such kernel"):
        f(torch.ones(3), 9)


def test_a_template_that_is_launched_without_its_arguments_is_refused() -> None:
    for old, new in (("run(add<7>, 32)", "run(add, 32)"), ("auto kernel = add<N>", "auto kernel = add")):
        f = HostPart(CudaModule(CudaSource(KERNELS.replace(old, new)))).function("f")
        with pytest.raises(NotSimulatedError, match="a launch of kernel"):
            f(torch.ones(3), 3 if "run" in old else 0)


def test_tensors_are_converted_filled_and_chosen_from() -> None:
    body = """
      auto y = x.to(torch::kFloat64).select(0, 1);
      C10_CUDA_CHECK(cudaMemsetAsync(x.data_ptr<float>(), 0, 2 * sizeof(float), at::cuda::getCurrentCUDAStream()));
      TORCH_CHECK(x.to(x.device()).sum().item<float>() > 0);
      return y;
    """
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    found = result(body, x, parameters="torch::Tensor x", returns="torch::Tensor")
    assert isinstance(found, torch.Tensor)
    assert found.dtype is torch.float64
    assert found.tolist() == [4, 5, 6]
    assert x.tolist() == [[0, 0, 3], [4, 5, 6]]
    with pytest.raises(RuntimeError, match="400 bytes are used, of 24"):
        result(body.replace("2 * sizeof", "100 * sizeof"), x, parameters="torch::Tensor x", returns="torch::Tensor")
    columns = torch.zeros(3, 4, dtype=torch.uint8).t()
    body = "cudaMemset(x.data_ptr(), -1, 5); return x.scalar_type() == at::ScalarType::Byte;"
    assert result(body, columns, parameters="torch::Tensor x", returns="bool")
    assert columns.t().flatten().tolist() == [255] * 5 + [0] * 7
    assert math.isinf(result("return std::numeric_limits<double>::infinity();", 1))  # type: ignore[arg-type]
