// Blocks of a cluster that read and write each other's shared memory, by cooperative groups.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Each block reads what the other one of its pair has, backwards.
__global__ void reversed(const float* x, float* y) {
  __shared__ float tile[64];
  cg::cluster_group cluster = cg::this_cluster();
  const int i = threadIdx.x, at = blockIdx.x * 64 + i;
  tile[i] = x[at];
  cluster.sync();
  const float* other = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1);
  y[at] = other[63 - i];
  cluster.sync();
}

// A histogram whose bins are distributed over the cluster (CUDA C++ Programming Guide, distributed shared memory).
__global__ void histogram(const int* values, int* bins, int count, int bins_per_block) {
  extern __shared__ int own[];
  cg::cluster_group cluster = cg::this_cluster();
  for (int i = threadIdx.x; i < bins_per_block; i += blockDim.x) own[i] = 0;
  cluster.sync();
  const int rank = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  for (int i = rank; i < count; i += step) {
    int* part = cluster.map_shared_rank(own, values[i] / bins_per_block);
    atomicAdd(part + values[i] % bins_per_block, 1);
  }
  cluster.sync();
  int* mine = bins + cluster.block_rank() * bins_per_block;
  for (int i = threadIdx.x; i < bins_per_block; i += blockDim.x) atomicAdd(&mine[i], own[i]);
}

// Sums of rows that are each spread over a cluster: every block writes its part into the first one's shared memory.
__global__ void row_sums(const float* x, float* sums, int columns) {
  __shared__ float parts[8];
  cg::cluster_group cluster = cg::this_cluster();
  const unsigned rank = cluster.block_rank(), blocks = cluster.num_blocks();
  float sum = 0;
  for (unsigned i = rank * blockDim.x + threadIdx.x; i < columns; i += blocks * blockDim.x) {
    sum += x[blockIdx.y * columns + i];
  }
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
  cluster.sync();
  if (threadIdx.x == 0) cluster.map_shared_rank(parts, 0)[rank] = sum;
  cluster.sync();
  if (rank == 0 && threadIdx.x == 0) {
    float all = 0;
    for (unsigned i = 0; i < blocks; i++) all += parts[i];
    sums[blockIdx.y] = all;
  }
}

// What a thread is told of its place.
__global__ void __cluster_dims__(2, 2, 1) places(int* out) {
  cg::cluster_group cluster = cg::this_cluster();
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int* mine = out + (block * blockDim.x + threadIdx.x) * 16;
  const dim3 at = cluster.block_index(), dims = cluster.dim_blocks(), thread = cluster.thread_index();
  const dim3 threads = cluster.dim_threads();
  mine[0] = cluster.block_rank();
  mine[1] = cluster.num_blocks();
  mine[2] = at.x, mine[3] = at.y, mine[4] = at.z;
  mine[5] = dims.x, mine[6] = dims.y, mine[7] = dims.z;
  mine[8] = thread.x, mine[9] = thread.y;
  mine[10] = threads.x, mine[11] = threads.y;
  mine[12] = cluster.thread_rank();
  mine[13] = cluster.num_threads();
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(mine[14]));
  asm("mov.u32 %0, %%nclusterid.y;" : "=r"(mine[15]));
}

// Each block passes its values on to the next one, again and again, in two buffers that take turns.
__global__ void ring(const float* x, float* y, int steps) {
  __shared__ float buffers[2][32];
  cg::cluster_group cluster = cg::this_cluster();
  const unsigned rank = cluster.block_rank(), blocks = cluster.num_blocks();
  buffers[0][threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
  cluster.sync();
  for (int step = 0; step < steps; step++) {
    float* next = cluster.map_shared_rank(buffers[(step + 1) % 2], (rank + 1) % blocks);
    next[threadIdx.x] = buffers[step % 2][threadIdx.x] + 1;
    cluster.sync();
  }
  y[blockIdx.x * 32 + threadIdx.x] = buffers[steps % 2][threadIdx.x];
}

// Work between the arrival at the cluster's barrier and the wait for it.
__global__ void split(const float* x, float* y) {
  __shared__ float tile[32], more[32];
  cg::cluster_group cluster = cg::this_cluster();
  const int i = threadIdx.x, at = blockIdx.x * 32 + i;
  tile[i] = x[at];
  auto token = cluster.barrier_arrive();
  more[31 - i] = 2 * x[at];
  __syncthreads();
  const float own = more[i];
  cluster.barrier_wait(static_cast<cg::cluster_group::arrival_token&&>(token));
  y[at] = own + *cluster.map_shared_rank(&tile[i], (cluster.block_rank() + 1) % cluster.num_blocks());
  cluster.barrier_arrive();
  cluster.barrier_wait();
}

// Blocks hand values on in global memory.
template <int Blocks>
__global__ void __cluster_dims__(Blocks) __launch_bounds__(64) through_global_memory(float* x) {
  const int i = threadIdx.x;
  for (int step = 0; step < 3; step++) {
    const float value = x[(blockIdx.x + 1) % Blocks * 64 + i];
    cg::this_cluster().sync();
    x[blockIdx.x * 64 + i] = value + 1;
    cg::this_cluster().sync();
  }
}

// One block waits for another by a flag in its own shared memory.
__global__ void __cluster_dims__(2) flags(int* y) {
  __shared__ int flag, data;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) flag = 0;
  cluster.sync();
  if (threadIdx.x == 0 && cluster.block_rank() == 0) {
    *cluster.map_shared_rank(&data, 1) = 7;
    __threadfence();
    atomicExch(cluster.map_shared_rank(&flag, 1), 1);
  } else if (threadIdx.x == 0) {
    while (atomicAdd(&flag, 0) == 0) {
    }
    __threadfence();
    y[blockIdx.x / 2] = data;
  }
  cluster.sync();
}

// The first kernel by the functions that cooperative groups are made of.
__global__ void handed_on(const float* x, float* y) {
  __shared__ float tile[64];
  cg::cluster_group cluster = cg::this_cluster();
  const int i = threadIdx.x, at = blockIdx.x * 64 + i;
  tile[i] = x[at];
  __syncthreads();
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
  const float* other = (const float*)__cluster_map_shared_rank(tile, __clusterRelativeBlockRank() ^ 1);
  y[at] = other[i ^ 1] + __cluster_query_shared_rank(other) + __clusterSizeInBlocks();
  cg::sync(cluster);
}
