// torch's names for the operations of a warp, for both compilers of kernels, written from their use. In the simulator
// each passes on its caller's line.
#pragma once

#ifdef __KERNELSIM__
#define KERNELSIM_ITS_CALLER kernelsim::Site site = kernelsim::Site::here()
#define KERNELSIM_CALLER , KERNELSIM_ITS_CALLER
#define KERNELSIM_ITS_SITE , site
#else
#define KERNELSIM_ITS_CALLER
#define KERNELSIM_CALLER
#define KERNELSIM_ITS_SITE
#endif

template <class T>
__device__ __forceinline__ T WARP_SHFL(T value, int lane, int width = 32, unsigned mask = ~0u KERNELSIM_CALLER) {
  return __shfl_sync(mask, value, lane, width KERNELSIM_ITS_SITE);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_XOR(T value, int bits, int width = 32, unsigned mask = ~0u KERNELSIM_CALLER) {
  return __shfl_xor_sync(mask, value, bits, width KERNELSIM_ITS_SITE);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_UP(T value, unsigned by, int width = 32, unsigned mask = ~0u KERNELSIM_CALLER) {
  return __shfl_up_sync(mask, value, by, width KERNELSIM_ITS_SITE);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_DOWN(T value, unsigned by, int width = 32, unsigned mask = ~0u KERNELSIM_CALLER) {
  return __shfl_down_sync(mask, value, by, width KERNELSIM_ITS_SITE);
}
__device__ __forceinline__ unsigned WARP_BALLOT(int predicate, unsigned mask = ~0u KERNELSIM_CALLER) {
  return __ballot_sync(mask, predicate KERNELSIM_ITS_SITE);
}
__device__ __forceinline__ unsigned ACTIVE_MASK(KERNELSIM_ITS_CALLER) {
#ifdef __KERNELSIM__
  return __activemask(site);
#else
  return __activemask();
#endif
}
template <class T>
__device__ __forceinline__ T doLdg(const T* from) { return __ldg(from); }
__device__ __forceinline__ void WARP_SYNC(unsigned mask = ~0u KERNELSIM_CALLER) {
  __syncwarp(mask KERNELSIM_ITS_SITE);
}

#undef KERNELSIM_CALLER
#undef KERNELSIM_ITS_CALLER
#undef KERNELSIM_ITS_SITE
