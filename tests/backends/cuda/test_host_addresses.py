"""Functions that a simulated host function calls with addresses of its variables."""

from __future__ import annotations

import pytest
import torch

from opwright.backends.cuda.host.part import HostPart
from opwright.backends.cuda.module import CudaModule
from opwright.backends.simulation import CudaSource
from opwright.errors import NotSimulatedError

pytestmark = pytest.mark.compiler


def function(text: str, name: str = "f"):
    return HostPart(CudaModule(CudaSource(f"__global__ void nothing() {{}}\n{text}"))).function(name)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("int d = 7; cudaGetDevice(&d); return d;", 0),
        ("int n; cudaError_t e = cudaGetDeviceCount(&n); return n * 10 + e;", 10),
        ("int sms = 0; cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0); return sms;", 132),
        ("cudaDeviceProp prop; cudaGetDeviceProperties(&prop, 0); return prop.multiProcessorCount;", 132),
        ("return at::cuda::getCurrentDeviceProperties()->maxThreadsPerBlock;", 1024),
        ("const auto* p = at::cuda::getDeviceProperties(0); return p->warpSize;", 32),
        ("int n; cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, nothing, 128, 0); return n;", 1),
        ("static int sms = 0; if (sms == 0) { cudaDeviceGetAttribute(&sms, cudaDevAttrWarpSize, 0); } return sms;", 32),
        ("return x.get_device() + x.device().index();", 0),
    ],
)
def test_limits_of_the_device(body: str, expected: int) -> None:
    f = function(f"int f(torch::Tensor x) {{ {body} }}")
    assert [f(torch.zeros(1)), f(torch.zeros(1))] == [expected, expected]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("cudaDeviceProp prop; cudaGetDeviceProperties(&prop, 0); return prop.clockRate;", "the field clockRate"),
        ("cudaDeviceProp prop; return prop.warpSize;", "the field warpSize"),
        ("int v; cudaDeviceGetAttribute(&v, cudaDevAttrClockRate, 0); return v;", "cudaDevAttrClockRate"),
        ("int v; cudaDriverGetVersion(&v); return v;", "a call of cudaDriverGetVersion"),
        ("int v = 1; int* p = &v; return *p;", "pointer expression"),
        ("cudaGetDevice(&outside); return 0;", "outside"),
        ("int64_t d; cudaGetDevice(&d); return d;", "a variable of type int64_t, for a int"),
        ("int sms; cudaDeviceGetAttribute(&sms, cudaDevAttrWarpSize, 1); return sms;", "device 1"),
        ("cudaDeviceProp prop; cudaGetDeviceProperties(&prop, 1); return prop.warpSize;", "device 1"),
        ("int v[2]; cudaGetDevice(&v[1]); return 0;", "only compute sizes"),
        ("dim3 d(1, 2); return d.xy;", "the field xy"),
    ],
)
def test_what_is_not_known_is_refused(body: str, said: str) -> None:
    with pytest.raises(NotSimulatedError, match=said):
        function(f"const int outside = 3;\nint f(torch::Tensor x) {{ {body} }}")(torch.zeros(1))


def test_a_function_of_the_file_with_such_a_name_is_the_files_own() -> None:
    assert function("int cudaGetDevice(int x) { return x + 1; }\nint f(int n) { return cudaGetDevice(n); }")(3) == 4


SGEMM = """
torch::Tensor f(torch::Tensor a, torch::Tensor b, int lda, int ldc) {
  const int m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::full({m, n}, 5.0f);
  cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  const float alpha = 2.0f, beta = BETA;
  cublasStatus_t status = cublasSgemm(handle, CUBLAS_OP_N, OPERATION, n, m, k, &alpha, b.data_ptr<float>(), n,
                                      a.data_ptr<float>(), lda, &beta, c.data_ptr<float>(), ldc);
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "no product");
  return c;
}
"""


def sgemm(operation: str = "CUBLAS_OP_N", beta: str = "0.0f"):
    return function(SGEMM.replace("OPERATION", operation).replace("BETA", beta))


@pytest.mark.parametrize(("m", "k", "n"), [(3, 5, 7), (1, 1, 1), (4, 2, 1), (3, 0, 2), (0, 3, 2)])
@pytest.mark.parametrize("beta", [0.0, -1.5])
def test_a_product_of_rows_is_that_of_transposed_columns(m: int, k: int, n: int, beta: float) -> None:
    a, b = torch.randn(m, k), torch.randn(k, n)
    found = sgemm(beta=f"{beta}f")(a, b, max(1, k), n)
    torch.testing.assert_close(found, 2 * (a @ b) + beta * torch.full((m, n), 5.0))


def test_a_product_in_float64() -> None:
    text = SGEMM.replace("OPERATION", "CUBLAS_OP_N").replace("BETA", "0.0").replace("5.0f", "5.0, torch::kDouble")
    text = text.replace("Sgemm", "Dgemm").replace("<float>", "<double>").replace("const float", "const double")
    a, b = torch.randn(3, 5).double(), torch.randn(5, 7).double()
    torch.testing.assert_close(function(text)(a, b, 5, 7), 2 * (a @ b))


def test_a_transposed_factor_is_transposed() -> None:
    """With a square matrix both ways are valid, and the results are others."""
    a, b = torch.randn(4, 4), torch.randn(4, 6)
    torch.testing.assert_close(sgemm("CUBLAS_OP_T")(a, b, 4, 6), 2 * (a.t() @ b))


def test_what_is_multiplied_by_zero_is_not_read() -> None:
    text = SGEMM.replace("torch::full({m, n}, 5.0f)", "torch::full({m, n}, NAN_)").replace("NAN_", "0.0f / 0.0f")
    a, b = torch.randn(2, 3), torch.randn(3, 2)
    text = text.replace("OPERATION", "CUBLAS_OP_N").replace("BETA", "0.0f").replace("0.0f / 0.0f", "bad")
    f = function(text.replace("int ldc)", "int ldc, double bad)"))
    torch.testing.assert_close(f(a, b, 3, 2, float("nan")), 2 * (a @ b))


@pytest.mark.parametrize(
    ("lda", "ldc", "said"), [(4, 7, "no product"), (5, 6, "no product"), (6, 7, "within its tensor")]
)
def test_other_leading_dimensions_fail(lda: int, ldc: int, said: str) -> None:
    """cuBLAS refuses those that are too small. Others reach past the memory of a tensor."""
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    with pytest.raises(RuntimeError, match=said) as error:
        sgemm()(a, b, lda, ldc)
    assert not isinstance(error.value, NotSimulatedError)


def test_a_handle_that_was_not_made_gives_cublas_error() -> None:
    text = SGEMM.replace("OPERATION", "CUBLAS_OP_N").replace("BETA", "0.0f")
    f = function(text.replace(" = at::cuda::getCurrentCUDABlasHandle()", ""))
    with pytest.raises(RuntimeError, match="no product"):
        f(torch.randn(2, 3), torch.randn(3, 2), 3, 2)


def test_a_handle_that_is_made_once_is_kept() -> None:
    made = """cublasHandle_t made() {
      static bool is_made = false;
      static cublasHandle_t handle;
      if (!is_made) { cublasCreate(&handle); is_made = true; }
      return handle;
    }"""
    text = SGEMM.replace("OPERATION", "CUBLAS_OP_N").replace("BETA", "0.0f")
    f = function(made + text.replace("at::cuda::getCurrentCUDABlasHandle()", "made()"))
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    for _ in range(2):
        torch.testing.assert_close(f(a, b, 5, 7), 2 * (a @ b))


def test_another_math_mode_is_refused() -> None:
    text = SGEMM.replace("OPERATION", "CUBLAS_OP_N").replace("BETA", "0.0f")
    mode = "cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);\n  const float alpha"
    with pytest.raises(NotSimulatedError, match="a call of cublasSetMathMode"):
        function(text.replace("const float alpha", mode))


@pytest.mark.parametrize("declared", ["double alpha = 2.0, beta", "int alpha = 2, beta", "auto alpha = 2.0f, beta"])
def test_scales_of_another_type_are_refused(declared: str) -> None:
    """cuBLAS would read their bytes as a float; an ``auto`` variable's type is not known here."""
    text = SGEMM.replace("OPERATION", "CUBLAS_OP_N").replace("BETA", "0")
    f = function(text.replace("const float alpha = 2.0f, beta", declared))
    with pytest.raises(NotSimulatedError, match=r"for a float\*"):
        f(torch.randn(2, 3), torch.randn(3, 2), 3, 2)


def test_other_elements_are_refused() -> None:
    with pytest.raises((NotSimulatedError, RuntimeError), match=r"float\*|elements of float"):
        sgemm()(torch.randn(2, 2).double(), torch.randn(2, 2).double(), 2, 2)


BATCHED = """
torch::Tensor f(torch::Tensor a, torch::Tensor b) {
  const int count = a.size(0), m = a.size(1), k = a.size(2), n = b.size(2);
  auto c = torch::empty({count, m, n}, a.options());
  cublasHandle_t handle;
  cublasCreate(&handle);
  double one = 1.0, zero = 0.0;
  TORCH_CUDABLAS_CHECK(cublasDgemmStridedBatched(
      handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.data_ptr<double>(), LDB, (int64_t)k * n, a.data_ptr<double>(),
      k, (int64_t)STEP, &zero, c.data_ptr<double>(), n, (int64_t)m * n, count));
  cublasDestroy(handle);
  return c;
}
"""


def batched(dtype: torch.dtype, step: str = "m * k", ldb: str = "n"):
    text = BATCHED.replace("STEP", step).replace("LDB", ldb)
    return function(text if dtype == torch.float64 else text.replace("double", "float").replace("Dgemm", "Sgemm"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_in_batches(dtype: torch.dtype) -> None:
    a, b = torch.randn(3, 4, 5, dtype=dtype), torch.randn(3, 5, 2, dtype=dtype)
    torch.testing.assert_close(batched(dtype)(a, b), a @ b)
    assert not torch.allclose(batched(dtype, "m")(a, b), a @ b)
    with pytest.raises(RuntimeError, match="within its tensor"):
        batched(dtype, "m * k + 1")(a, b)
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_INVALID_VALUE"):
        batched(dtype, ldb="n - 1")(a, b)


def gemm_ex(element: str, cuda_type: str, sums: str = "CUBLAS_COMPUTE_32F"):
    return function(f"""
torch::Tensor f(torch::Tensor a, torch::Tensor b) {{
  const int m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::empty({{m, n}}, a.options());
  float one = 1.0f, zero = 0.0f;
  cublasGemmEx(at::cuda::getCurrentCUDABlasHandle(), CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.data_ptr<{element}>(),
               {cuda_type}, n, a.data_ptr<{element}>(), {cuda_type}, k, &zero, c.data_ptr<{element}>(), {cuda_type}, n,
               {sums}, CUBLAS_GEMM_DEFAULT);
  return c;
}}""")


def test_half_factors_are_summed_in_float32() -> None:
    a, b = torch.full((2, 4096), 1.0).half(), torch.full((4096, 3), 1.0).half()
    assert gemm_ex("at::Half", "CUDA_R_16F")(a, b).tolist() == [[4096.0] * 3] * 2  # in float16, 2048 + 1 is 2048
    x, y = torch.randn(5, 6).bfloat16(), torch.randn(6, 3).bfloat16()
    assert gemm_ex("float", "CUDA_R_32F")(a.float(), b.float()).tolist() == [[4096.0] * 3] * 2
    expected = (x.float() @ y.float()).bfloat16()
    torch.testing.assert_close(gemm_ex("at::BFloat16", "CUDA_R_16BF")(x, y), expected)


@pytest.mark.parametrize("sums", ["CUBLAS_COMPUTE_16F", "CUBLAS_COMPUTE_32F_FAST_TF32", "CUDA_R_16F"])
def test_other_sums_are_refused(sums: str) -> None:
    a = torch.randn(2, 2).half()
    with pytest.raises(NotSimulatedError):
        gemm_ex("at::Half", "CUDA_R_16F", sums)(a, a)
