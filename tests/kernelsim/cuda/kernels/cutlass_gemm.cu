// Kernels of CUTLASS 2: in floats, the same with asynchronous copies, and on tensor cores with these. Their parameters are made on the device.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/kernel/default_gemm.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>;

using InFloats = cutlass::gemm::kernel::DefaultGemm<
    float, RowMajor, 1, float, ColumnMajor, 1, float, RowMajor, float, cutlass::arch::OpClassSimt, cutlass::arch::Sm50,
    cutlass::gemm::GemmShape<64, 64, 8>, cutlass::gemm::GemmShape<32, 32, 8>, cutlass::gemm::GemmShape<1, 1, 1>,
    cutlass::epilogue::thread::LinearCombination<float, 1, float, float>, Swizzle, 2, false,
    cutlass::arch::OpMultiplyAdd>::GemmKernel;

using InStages = cutlass::gemm::kernel::DefaultGemm<
    float, RowMajor, 1, float, ColumnMajor, 1, float, RowMajor, float, cutlass::arch::OpClassSimt, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<64, 64, 8>, cutlass::gemm::GemmShape<32, 32, 8>, cutlass::gemm::GemmShape<1, 1, 1>,
    cutlass::epilogue::thread::LinearCombination<float, 1, float, float>, Swizzle, 4, false,
    cutlass::arch::OpMultiplyAdd>::GemmKernel;

using OnTensorCores = cutlass::gemm::kernel::DefaultGemm<
    cutlass::half_t, RowMajor, 8, cutlass::half_t, ColumnMajor, 8, float, RowMajor, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<64, 64, 32>,
    cutlass::gemm::GemmShape<32, 32, 32>, cutlass::gemm::GemmShape<16, 8, 16>,
    cutlass::epilogue::thread::LinearCombination<float, 4, float, float>, Swizzle, 3, false,
    cutlass::arch::OpMultiplyAdd>::GemmKernel;

// c = a b' of row-major a (m, k) and b (n, k).
template <class Kernel, class T>
__global__ void product(const T* a, const T* b, float* c, int m, int n, int k) {
  using Tile = typename Kernel::Mma::Shape;
  extern __shared__ char shared[];
  auto grid = Swizzle().get_tiled_shape({m, n, k}, {Tile::kM, Tile::kN, Tile::kK}, 1);
  typename Kernel::Params params({m, n, k}, grid, {const_cast<T*>(a), k}, {const_cast<T*>(b), k}, {c, n}, {c, n},
                                 {1.0f, 0.0f}, nullptr);
  Kernel()(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared));
}
