// Copies and arrivals between the blocks of a cluster that complete on mbarriers, in PTX.
#include <cuda.h>
#include <stdint.h>

__device__ uint32_t shared_address(const void* pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }

__device__ uint32_t rank() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
  return number;
}

__device__ uint32_t in_block(const void* pointer, uint32_t number) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(pointer)), "r"(number));
  return there;
}

__device__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ void init(uint64_t* bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}

// The barriers that a thread has initialised are known to the whole cluster.
__device__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ void expect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
               : "memory");
}

__device__ void arrive_in(uint64_t* bar, uint32_t number) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(in_block(bar, number)) : "memory");
}

__device__ void wait(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra DONE;\n"
      "bra LAB_WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

// The second block gets each row from the first, and says when it has read it.
__global__ void __cluster_dims__(2) handshake(const float* x, float* y, int rows) {
  __shared__ float tile[32];
  __shared__ uint64_t full, empty;
  const int i = threadIdx.x;
  if (i == 0) {
    init(&full, 32);
    init(&empty, 32);
  }
  publish_barriers();
  for (int row = 0; row < rows; row++) {
    if (rank() == 0) {
      if (row) wait(&empty, (row - 1) & 1);
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(in_block(&tile[i], 1)), "f"(x[row * 32 + i]) : "memory");
      arrive_in(&full, 1);
    } else {
      wait(&full, row & 1);
      y[row * 32 + i] = tile[31 - i];
      __syncwarp();
      arrive_in(&empty, 0);
    }
  }
  sync_cluster();
}

// Each thread stores into the next block, asynchronously.
__global__ void stores(const int4* x, int4* y) {
  __shared__ alignas(16) int4 tile[32];
  __shared__ uint64_t full;
  const int i = threadIdx.x, blocks = gridDim.x;
  if (i == 0) {
    init(&full, 1);
    expect(&full, sizeof(tile));
  }
  publish_barriers();
  const int4 value = x[blockIdx.x * 32 + i];
  const uint32_t next = (rank() + 1) % blocks;
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   in_block(&tile[i], next)),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(in_block(&full, next))
               : "memory");
  wait(&full, 0);
  y[blockIdx.x * 32 + i] = tile[31 - i];
  sync_cluster();
}

// A bulk copy from each block's shared memory into that of the next.
__global__ void sends(const float* x, float* y) {
  __shared__ alignas(16) float from[64], to[64];
  __shared__ uint64_t full;
  const int i = threadIdx.x;
  from[i] = x[blockIdx.x * 64 + i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (i == 0) {
    init(&full, 1);
    expect(&full, sizeof(to));
  }
  sync_cluster();
  if (i == 0) {
    const uint32_t next = (rank() + 1) % gridDim.x;
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     in_block(to, next)),
                 "r"(shared_address(from)), "r"((uint32_t)sizeof(from)), "r"(in_block(&full, next))
                 : "memory");
  }
  wait(&full, 0);
  y[blockIdx.x * 64 + i] = to[63 - i];
  sync_cluster();
}

// Each block copies its part of the rows to all blocks.
__global__ void multicast(const float* x, float* y) {
  __shared__ alignas(16) float tile[4][32];
  __shared__ uint64_t full;
  const int i = threadIdx.x, blocks = gridDim.x;
  if (i == 0) {
    init(&full, 1);
    expect(&full, blocks * sizeof(tile[0]));
  }
  publish_barriers();
  if (i == 0) {
    const uint16_t all = (1 << blocks) - 1;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(tile[rank()])),
        "l"(x + rank() * 32), "r"((uint32_t)sizeof(tile[0])), "r"(shared_address(&full)), "h"(all)
        : "memory");
  }
  wait(&full, 0);
  for (int row = 0; row < blocks; row++) y[(blockIdx.x * blocks + row) * 32 + i] = tile[row][i];
  sync_cluster();
}

// Sums over the cluster: by bulk copies that add into the first block's shared memory, and from there to global memory.
__global__ void reductions(const int* x, int* y, float* z) {
  __shared__ alignas(16) int from[64], sums[64];
  __shared__ alignas(16) float floats[64];
  __shared__ uint64_t full;
  const int i = threadIdx.x;
  from[i] = x[blockIdx.x * 64 + i];
  floats[i] = from[i] * 0.5f;
  sums[i] = 0;
  asm volatile("fence.proxy.async;" ::: "memory");
  if (i == 0) {
    init(&full, 1);
    if (rank() == 0) expect(&full, gridDim.x * sizeof(sums));
  }
  sync_cluster();
  if (i == 0) {
    asm volatile(
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32 [%0], [%1], %2, [%3];" ::"r"(
            in_block(sums, 0)),
        "r"(shared_address(from)), "r"((uint32_t)sizeof(from)), "r"(in_block(&full, 0))
        : "memory");
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(z),
                 "r"(shared_address(floats)), "r"((uint32_t)sizeof(floats))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  if (rank() == 0) {
    wait(&full, 0);
    y[i] = sums[i];
  }
  sync_cluster();
}

// The atomic operations of PTX in another block, and loads from there.
__global__ void atomics(int* y) {
  __shared__ int count, largest;
  if (threadIdx.x == 0) count = largest = 0;
  sync_cluster();
  const int mine = blockIdx.x * blockDim.x + threadIdx.x;
  int before, now;
  asm volatile("atom.shared::cluster.add.s32 %0, [%1], %2;" : "=r"(before) : "r"(in_block(&count, 0)), "r"(1) : "memory");
  asm volatile("red.relaxed.cluster.shared::cluster.max.s32 [%0], %1;" ::"r"(in_block(&largest, 1)), "r"(mine) : "memory");
  sync_cluster();
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(now) : "r"(in_block(&count, 0)) : "memory");
  y[mine * 3] = before < now;
  y[mine * 3 + 1] = now;
  uint64_t there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&largest), "r"(1));
  y[mine * 3 + 2] = *(int*)there;
  sync_cluster();
}

// The second block waits for a flag that the first one sets in its shared memory.
__global__ void flag(const int* x, int* y) {
  __shared__ int data[32], ready;
  if (threadIdx.x == 0) ready = 0;
  sync_cluster();
  if (rank() == 0) {
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(in_block(&data[threadIdx.x], 1)), "r"(x[threadIdx.x]) : "memory");
    __syncwarp();
    if (threadIdx.x == 0) {
      asm volatile("st.release.cluster.shared::cluster.s32 [%0], %1;" ::"r"(in_block(&ready, 1)), "r"(1) : "memory");
    }
  } else {
    int is_ready = 0;
    while (!is_ready) {
      asm volatile("ld.acquire.cluster.shared::cta.s32 %0, [%1];" : "=r"(is_ready) : "r"(shared_address(&ready)) : "memory");
    }
    y[threadIdx.x] = data[31 - threadIdx.x];
  }
  sync_cluster();
}

// Counts that arrive by themselves.
__global__ void counts(unsigned* y) {
  __shared__ unsigned sum;
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    sum = 0;
    init(&full, 1);
    expect(&full, gridDim.x * blockDim.x * sizeof(sum));
  }
  sync_cluster();
  for (uint32_t block = 0; block < gridDim.x; block++) {
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" ::"r"(
                     in_block(&sum, block)),
                 "r"(threadIdx.x + block), "r"(in_block(&full, block))
                 : "memory");
  }
  wait(&full, 0);
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
  sync_cluster();
}

// Boxes of a tensor are added to what is there, and compared with it, as far as they lie in the tensor.
__global__ void added(const __grid_constant__ CUtensorMap sums, const __grid_constant__ CUtensorMap largest) {
  __shared__ alignas(128) int tile[8 * 32];
  for (int i = threadIdx.x; i < 8 * 32; i += blockDim.x) tile[i] = i + blockIdx.x;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x) return;
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&sums), "r"(8),
               "r"(4), "r"(shared_address(tile))
               : "memory");
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&largest),
               "r"(0), "r"(0), "r"(shared_address(tile))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Both blocks of a pair get the boxes of both: each copies one of them to the two.
__global__ void boxes(const __grid_constant__ CUtensorMap x, short* y) {
  __shared__ alignas(128) short tile[2][8 * 64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    expect(&full, sizeof(tile));
  }
  publish_barriers();
  if (threadIdx.x == 0) {
    const int first_row = (blockIdx.x / 2 * 2 + rank()) * 8;
    const uint16_t both = 3;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(tile[rank()])),
        "l"(&x), "r"(0), "r"(first_row), "r"(shared_address(&full)), "h"(both)
        : "memory");
  }
  wait(&full, 0);
  for (int i = threadIdx.x; i < 2 * 8 * 64; i += blockDim.x) y[blockIdx.x * 1024 + i] = tile[i / 512][i % 512];
  sync_cluster();
}
