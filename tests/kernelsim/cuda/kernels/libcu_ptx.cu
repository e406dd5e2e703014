// Values passed between the blocks of a cluster, with libcu++'s names for PTX.
#include <cooperative_groups.h>
#include <cuda/ptx>
namespace ptx = cuda::ptx;
namespace cg = cooperative_groups;

__device__ void wait(uint64_t* bar, uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, bar, parity)) {
  }
}

__global__ void passed(const int* x, int* y, int* sums) {
  __shared__ alignas(16) int own[128], copied[128], all[2][128], stored[32], sum;
  __shared__ uint64_t bars[4];
  cg::cluster_group cluster = cg::this_cluster();
  const int i = threadIdx.x, rank = ptx::get_sreg_cluster_ctarank();
  for (int at = i; at < 128; at += 32) own[at] = 2 * x[blockIdx.x * 128 + at];
  ptx::fence_proxy_async(ptx::space_shared);
  __syncwarp();
  if (i == 0) {
    sum = 0;
    for (int bar = 0; bar < 4; bar++) ptx::mbarrier_init(&bars[bar], bar == 3 ? 33 : 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bars[0], sizeof(copied));
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bars[1], sizeof(all));
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bars[2], sizeof(stored));
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bars[3], 32 * sizeof(sum));
  }
  __syncwarp();
  ptx::barrier_cluster_arrive(ptx::sem_release);
  ptx::barrier_cluster_wait(ptx::sem_acquire);
  uint64_t* const other[4] = {cluster.map_shared_rank(&bars[0], rank ^ 1), nullptr,
                              cluster.map_shared_rank(&bars[2], rank ^ 1), cluster.map_shared_rank(&bars[3], rank ^ 1)};
  if (i == 0) {
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_shared, cluster.map_shared_rank(copied, rank ^ 1), own, sizeof(own),
                       other[0]);
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, all[rank], x + blockIdx.x * 128, sizeof(all[0]), &bars[1],
                       (uint16_t)3);
    ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, sums, own, sizeof(own));
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
  }
  ptx::st_async(cluster.map_shared_rank(&stored[i], rank ^ 1), i, other[2]);
  ptx::red_async(ptx::op_add, cluster.map_shared_rank(&sum, rank ^ 1), i, other[3]);
  ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_cluster, other[3]);
  for (int bar = 0; bar < 4; bar++) wait(&bars[bar], 0);
  for (int at = i; at < 128; at += 32) {
    y[blockIdx.x * 128 + at] = copied[at] + all[0][at] + all[1][at] + stored[at % 32] + sum +
                               (int)ptx::getctarank(ptx::space_cluster, other[0]);
  }
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}
