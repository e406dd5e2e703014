// One kernel for each thing that a kernel must not do. The line where it must be reported ends in "// !" and the kind.
#include <cooperative_groups.h>
#include <cuda_fp16.h>

__constant__ float weights[4];

__global__ void writes_past_the_end(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) x[i] = 1.0f;  // ! out-of-bounds
}

__global__ void reads_before_the_start(const float* x, float* out) {
  out[threadIdx.x] = x[threadIdx.x] -
                     x[int(threadIdx.x) - 1];  // ! out-of-bounds
}

__global__ void reads_a_null_pointer(const float* x, float* out) {
  out[threadIdx.x] = x[threadIdx.x];  // ! out-of-bounds
}

__global__ void loads_a_vector_across_the_end(const float4* x, float* out) {
  float4 v = x[threadIdx.x];  // ! out-of-bounds
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

__global__ void loads_past_the_end_through_the_cache_hint(const float* x, float* out) {
  out[0] = __ldg(x + 64);  // ! out-of-bounds
}

__global__ void ignores_the_stride(float* x) {
  x[threadIdx.x] = 0.0f;  // ! out-of-bounds
}

__global__ void adds_atomically_past_the_end(float* x) {
  atomicAdd(&x[64], 1.0f);  // ! out-of-bounds
}

__global__ void copies_too_much(const float* x, float* out, int n) {
  memcpy(out, x, n * sizeof(float));  // ! out-of-bounds
}

__global__ void reads_past_a_constant(float* out, int i) {
  out[0] = *(weights + i);  // ! out-of-bounds
}

__global__ void writes_past_static_shared(float* out) {
  __shared__ float first[64];
  __shared__ float second[64];
  float* p = first;
  second[threadIdx.x] = 1.0f;
  p[threadIdx.x + 1] = 2.0f;  // ! out-of-bounds
  __syncthreads();
  out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}

__global__ void writes_past_dynamic_shared(float* out) {
  extern __shared__ float s[];
  s[threadIdx.x] = 1.0f;  // ! out-of-bounds
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}

__global__ void indexes_past_a_local_array(float* out, int n) {
  float v[4] = {1, 2, 3, 4};
  float sum = 0;
  for (int i = 0; i <= n; i++) sum += v[i];  // ! index-out-of-bounds
  out[threadIdx.x] = sum;
}

__global__ void reads_shared_that_was_never_written(float* out) {
  __shared__ float s[64];
  if (threadIdx.x < 32) s[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];  // ! uninitialised
}

__global__ void adds_to_what_was_never_set(float* out) {
  atomicAdd(out, 1.0f);  // ! uninitialised
}

__global__ void reads_its_empty_output(float* out) {
  out[threadIdx.x] += 1.0f;  // ! uninitialised
}

__global__ void loads_a_misaligned_float4(const float* x, float* out) {
  const float4* v = reinterpret_cast<const float4*>(x + 1);
  float4 loaded = v[threadIdx.x];  // ! misaligned
  out[threadIdx.x] = loaded.x;
}

__global__ void stores_a_misaligned_half2(half* x) {
  *reinterpret_cast<half2*>(x + 1) = __float2half2_rn(1.0f);  // ! misaligned
}

__global__ void lacks_a_barrier(float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = s[63 - threadIdx.x];  // ! race uninitialised
}

__global__ void lacks_the_second_barrier(float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float v = s[63 - threadIdx.x];
  s[threadIdx.x] = v;  // ! race
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x];
}

__global__ void lacks_a_warp_barrier(float* out) {
  __shared__ volatile float s[64];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x < 32) s[threadIdx.x] = s[threadIdx.x] + s[threadIdx.x + 1];  // ! race
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}

__global__ void counts_without_atomics(int* counter) {
  counter[0] = counter[0] + 1;  // ! race
}

__global__ void all_write_the_same(int* flag) {
  flag[0] = 1;  // ! race
}

__global__ void shifts_in_place_across_blocks(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = i + 1 < n ? x[i + 1] : 0.0f;
  __syncthreads();
  x[i] = v;  // ! race
}

__global__ void mixes_atomics_and_stores(int* x) {
  if (threadIdx.x < 32) atomicAdd(x, 1);
  if (threadIdx.x == 40) x[0] = 7;  // ! race
}

__global__ void forgets_the_fence(float* partial, unsigned* ticket, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = 1.0f;
    last = atomicInc(ticket, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++) sum += partial[i];  // ! race
    out[0] = sum;
  }
}

__global__ void halves_race(half* x) {
  x[threadIdx.x] = __float2half(1.0f);  // ! race
}

__global__ void barrier_for_some(float* out) {
  if (threadIdx.x < 16) __syncthreads();  // ! barrier
  out[threadIdx.x] = 1.0f;
}

__global__ void barriers_in_two_branches(float* out) {
  if (threadIdx.x < 16) {
    __syncthreads();  // ! barrier
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1.0f;
}

__global__ void barrier_in_a_loop_of_different_length(float* out) {
  for (int i = 0; i < int(threadIdx.x % 3); i++) {
    __syncthreads();  // ! barrier
  }
  out[threadIdx.x] = 1.0f;
}

__global__ void shuffles_with_absent_lanes(float* out) {
  float v = threadIdx.x;
  if (threadIdx.x % 32 < 16)
    v += __shfl_xor_sync(0xffffffff, v, 8);  // ! warp-mask
  out[threadIdx.x] = v;
}

__global__ void shuffles_while_others_wait(float* out) {
  float v = threadIdx.x;
  if (threadIdx.x < 16) {
    v = __shfl_down_sync(0xffffffff, v, 1);  // ! warp-mask
  }
  __syncthreads();
  out[threadIdx.x] = v;
}

__global__ void mask_without_the_caller(int* out) {
  out[threadIdx.x] = __any_sync(0x0000ffff, threadIdx.x == 3);  // ! warp-mask
}

__global__ void reads_a_returned_lane(float* out, int n) {
  if (int(threadIdx.x) >= n) return;
  float v = threadIdx.x;
  v += __shfl_down_sync(0xffffffff, v, 16);  // ! warp-lane
  out[threadIdx.x] = v;
}

__global__ void loops_forever(int* out) {
  int i = 0;
  while (i >= 0) i = (i + 1) & 1023;  // ! time-limit
  out[0] = i;
}

__global__ void waits_forever(int* flag) {
  while (atomicAdd(flag, 0) == 0) {  // ! time-limit
  }
}

__global__ void asserts(const float* x) {
  assert(x[threadIdx.x] < 3.0f);  // ! assertion
}

__global__ void traps(int n) {
  if (n == 64) __trap();  // ! trap
}

__global__ void divides_by_zero(int* out, int n) {
  out[threadIdx.x] = 5 / (n - 64);  // ! division-by-zero
}

__global__ void tile_leaves_lanes_out(float* out) {
  namespace cg = cooperative_groups;
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  float v = threadIdx.x;
  if (tile.thread_rank() < 4) {
    v = tile.shfl(v, 0);  // ! warp-mask
  }
  out[threadIdx.x] = v;
}

__global__ void unlocks_before_a_fence(int* lock, float* sum) {
  if (threadIdx.x != 0) return;
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  __threadfence();
  sum[0] += 1.0f;  // ! race
  atomicExch(lock, 0);
}
