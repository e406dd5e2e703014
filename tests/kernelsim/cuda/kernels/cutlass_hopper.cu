// A kernel of CUTLASS 3: tensor maps, warps that produce and warps that consume, wgmma.
#include <cuda.h>

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, RowMajor, 4, float, RowMajor, 4,
    cutlass::epilogue::NoSmemWarpSpecialized>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, cutlass::half_t, RowMajor, 8, cutlass::half_t, ColumnMajor, 8,
    float, Tile, Cluster, cutlass::gemm::collective::StageCount<3>,
    cutlass::gemm::KernelTmaWarpSpecialized>::CollectiveOp;
using Gemm = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>;

// What CUTLASS's host code makes of its arguments: the parameters of a product, in global memory. `more` bytes are
// expected besides those that the copies of a tile have.
template <class Kernel>
__global__ void describe(typename Kernel::Params* made, const __grid_constant__ CUtensorMap a,
                         const __grid_constant__ CUtensorMap b, float* c, int m, int n, int k, int more,
                         int* sizes) {
  typename Kernel::Params params{};
  params.problem_shape = {m, n, k, 1};
  params.mainloop.tma_load_a.tma_desc_ = reinterpret_cast<const cute::TmaDescriptor&>(a);
  params.mainloop.tma_load_b.tma_desc_ = reinterpret_cast<const cute::TmaDescriptor&>(b);
  params.mainloop.tma_transaction_bytes += more;
  params.epilogue.ptr_C = params.epilogue.ptr_D = c;
  cute::get<0>(params.epilogue.dC) = cute::get<0>(params.epilogue.dD) = n;
  *made = params;
  sizes[0] = int(sizeof params), sizes[1] = int(Kernel::SharedStorageSize), sizes[2] = int(Kernel::MaxThreadsPerBlock);
}

// c = a b' of row-major a (m, k) and b (n, k).
template <class Kernel>
__global__ void __launch_bounds__(Kernel::MaxThreadsPerBlock)
    product(const __grid_constant__ typename Kernel::Params params) {
  extern __shared__ __align__(128) char shared[];
  Kernel()(params, shared);
}
