// Kernels of CuTe: copies between tiles, a product in floats, one on tensor cores, and CUTLASS's numbers.
#include <cute/tensor.hpp>
#include <cutlass/array.h>
#include <cutlass/numeric_conversion.h>

using namespace cute;

__global__ void add(const float* x, float* y, int m, int n) {
  auto shape = make_shape(m, n);
  auto stride = make_stride(n, Int<1>{});
  auto tile = make_shape(Int<32>{}, Int<32>{});
  auto coord = make_coord(blockIdx.x, blockIdx.y);
  auto of_x = local_tile(make_tensor(make_gmem_ptr(x), shape, stride), tile, coord);
  auto of_y = local_tile(make_tensor(make_gmem_ptr(y), shape, stride), tile, coord);
  auto threads = make_layout(make_shape(Int<8>{}, Int<32>{}), LayoutRight{});
  auto from = local_partition(of_x, threads, threadIdx.x);
  auto to = local_partition(of_y, threads, threadIdx.x);
  for (int i = 0; i < size(from); i++) to(i) = from(i) + 1.0f;
}

// c = a b' of row-major a (m, k) and b (n, k): a thread has 4 x 4 of 32 x 32 results.
template <bool Waits>
__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
  auto tile = make_shape(Int<32>{}, Int<32>{}, Int<8>{});
  auto coord = make_coord(blockIdx.x, blockIdx.y, _);
  auto ga = local_tile(make_tensor(make_gmem_ptr(a), make_shape(m, k), make_stride(k, Int<1>{})), tile, coord, Step<_1, X, _1>{});
  auto gb = local_tile(make_tensor(make_gmem_ptr(b), make_shape(n, k), make_stride(k, Int<1>{})), tile, coord, Step<X, _1, _1>{});
  auto gc = local_tile(make_tensor(make_gmem_ptr(c), make_shape(m, n), make_stride(n, Int<1>{})), tile, coord, Step<_1, _1, X>{});
  auto layout = make_layout(make_shape(Int<32>{}, Int<8>{}));
  __shared__ float shared_a[cosize_v<decltype(layout)>], shared_b[cosize_v<decltype(layout)>];
  auto sa = make_tensor(make_smem_ptr(shared_a), layout);
  auto sb = make_tensor(make_smem_ptr(shared_b), layout);
  auto loaders = make_layout(make_shape(Int<8>{}, Int<8>{}), LayoutRight{});
  auto threads = make_layout(make_shape(Int<8>{}, Int<8>{}));
  auto from_a = local_partition(ga, loaders, threadIdx.x);
  auto to_a = local_partition(sa, loaders, threadIdx.x);
  auto from_b = local_partition(gb, loaders, threadIdx.x);
  auto to_b = local_partition(sb, loaders, threadIdx.x);
  auto rows = local_partition(sa, threads, threadIdx.x, Step<_1, X>{});
  auto columns = local_partition(sb, threads, threadIdx.x, Step<X, _1>{});
  auto results = local_partition(gc, threads, threadIdx.x, Step<_1, _1>{});
  auto sums = make_tensor_like(results);
  clear(sums);
  for (int i = 0; i < size<2>(ga); i++) {
    copy(from_a(_, _, i), to_a);
    copy(from_b(_, _, i), to_b);
    if (Waits) __syncthreads();
    gemm(rows, columns, sums);
    __syncthreads();
  }
  axpby(1.0f, sums, 0.0f, results);
}

// The same of halves on tensor cores: asynchronous copies into swizzled tiles, ldmatrix, mma.sync.
template <bool Waits>
__global__ void tensor_core_product(const half_t* a, const half_t* b, float* c, int m, int n, int k) {
  auto tile = make_shape(Int<32>{}, Int<32>{}, Int<32>{});
  auto coord = make_coord(blockIdx.x, blockIdx.y, _);
  auto ga = local_tile(make_tensor(make_gmem_ptr(a), make_shape(m, k), make_stride(k, Int<1>{})), tile, coord, Step<_1, X, _1>{});
  auto gb = local_tile(make_tensor(make_gmem_ptr(b), make_shape(n, k), make_stride(k, Int<1>{})), tile, coord, Step<X, _1, _1>{});
  auto gc = local_tile(make_tensor(make_gmem_ptr(c), make_shape(m, n), make_stride(n, Int<1>{})), tile, coord, Step<_1, _1, X>{});
  auto layout = composition(Swizzle<2, 3, 3>{}, Layout<Shape<_32, _32>, Stride<_32, _1>>{});
  __shared__ alignas(16) half_t shared_a[32 * 32];
  __shared__ alignas(16) half_t shared_b[32 * 32];
  auto sa = make_tensor(make_smem_ptr(shared_a), layout);
  auto sb = make_tensor(make_smem_ptr(shared_b), layout);
  auto loads = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, half_t>{},
                               Layout<Shape<_32, _4>, Stride<_4, _1>>{}, Layout<Shape<_1, _8>>{});
  auto mine_of_loads = loads.get_slice(threadIdx.x);
  auto from_a = mine_of_loads.partition_S(ga);
  auto from_b = mine_of_loads.partition_S(gb);
  auto to_a = mine_of_loads.partition_D(sa);
  auto to_b = mine_of_loads.partition_D(sb);
  auto mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2>>{}, Tile<_32, _32, _16>{});
  auto mine = mma.get_slice(threadIdx.x);
  auto fragment_a = mine.partition_fragment_A(sa);
  auto fragment_b = mine.partition_fragment_B(sb);
  auto results = mine.partition_C(gc);
  auto sums = mine.make_fragment_C(results);
  clear(sums);
  auto load_a = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
  auto load_b = make_tiled_copy_B(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
  auto of_a = load_a.get_slice(threadIdx.x);
  auto of_b = load_b.get_slice(threadIdx.x);
  for (int i = 0; i < size<2>(ga); i++) {
    copy(loads, from_a(_, _, _, i), to_a);
    copy(loads, from_b(_, _, _, i), to_b);
    cp_async_fence();
    cp_async_wait<0>();
    if (Waits) __syncthreads();
    copy(load_a, of_a.partition_S(sa), of_a.retile_D(fragment_a));
    copy(load_b, of_b.partition_S(sb), of_b.retile_D(fragment_b));
    gemm(mma, fragment_a, fragment_b, sums);
    __syncthreads();
  }
  copy(sums, results);
}

__global__ void halved(const float* x, cutlass::half_t* y, int n) {
  using Floats = cutlass::Array<float, 4>;
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  Floats values = *reinterpret_cast<const Floats*>(x + i);
  cutlass::multiplies<Floats> scaled;
  auto converted = cutlass::NumericArrayConverter<cutlass::half_t, float, 4>()(scaled(values, 0.5f));
  *reinterpret_cast<decltype(converted)*>(y + i) = converted;
}

// A product of doubles by an instruction that the simulator lacks.
__global__ void doubles(double* c) {
  double a = 1, b = 2, sums[2] = {};
  SM80_8x8x4_F64F64F64F64_TN::fma(sums[0], sums[1], a, b, sums[0], sums[1]);
  c[threadIdx.x] = sums[0];
}
