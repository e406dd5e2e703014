// Sums of the rows of a matrix, by a pipeline of several stages: one warp fills stages with bulk copies, the others read
// them. `full` says that a stage has its values, `empty` that all who read it are done with it.
#include <stdint.h>

constexpr int stages = 3, columns = 64, consumers = 64;

__device__ uint32_t shared_address(const void* pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

__device__ void init(uint64_t* bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}

__device__ void arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}

__device__ void expect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
}

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

__device__ void load(void* to, const void* from, uint32_t bytes, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(bar))
               : "memory");
}

__global__ void row_sums(const float* x, float* sums, int rows) {
  __shared__ alignas(128) float tile[stages][columns];
  __shared__ alignas(8) uint64_t full[stages], empty[stages];
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; s++) {
      init(&full[s], 1);
      init(&empty[s], consumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= consumers) {
    if (threadIdx.x == consumers) {
      for (int row = 0; row < rows; row++) {
        const int s = row % stages;
        wait(&empty[s], (row / stages & 1) ^ 1);
        expect(&full[s], columns * sizeof(float));
        load(tile[s], x + row * columns, columns * sizeof(float), &full[s]);
      }
    }
    return;
  }
  for (int row = 0; row < rows; row++) {
    const int s = row % stages;
    wait(&full[s], row / stages & 1);
    float value = tile[s][threadIdx.x];
    arrive(&empty[s]);
    for (int i = 16; i > 0; i /= 2) value += __shfl_xor_sync(~0u, value, i);
    if (threadIdx.x % 32 == 0) atomicAdd(&sums[row], value);
  }
}
