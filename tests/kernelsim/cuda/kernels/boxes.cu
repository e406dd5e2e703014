// Copies boxes of a matrix of 16-bit elements through shared memory, with bulk copies of tensor maps in both directions.
#include <cuda.h>
#include <stdint.h>

constexpr int box_rows = 16, box_columns = 64;

__device__ uint32_t shared_address(const void* pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

__device__ void wait(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra DONE;\n"
      "bra LAB_WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

// y = 2 x + (column within the box), through the pattern of 128 bytes.
__global__ void boxes(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y) {
  __shared__ alignas(1024) uint16_t in[box_rows * box_columns], out[box_rows * box_columns];
  __shared__ uint64_t bar;
  const int column = blockIdx.x * box_columns, row = blockIdx.y * box_rows;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&bar)) : "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&bar)), "r"(2048) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(in)),
        "l"(&x), "r"(column), "r"(row), "r"(shared_address(&bar))
        : "memory");
  }
  __syncthreads();
  wait(&bar, 0);
  for (int i = threadIdx.x; i < box_rows * box_columns; i += blockDim.x) {
    const int swizzled = i ^ (i / 64 % 8 * 8);
    out[swizzled] = 2 * in[swizzled] + i % box_columns;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&y), "r"(column),
                 "r"(row), "r"(shared_address(out))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
