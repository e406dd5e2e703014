// torch's names for the operations of a warp, for both compilers of kernels, written from their use. In the simulator
// each passes on its caller's line.
#pragma once

#ifdef __OPWRIGHT_SIMULATOR__
#define OPWRIGHT_ITS_CALLER opwright_sim::Site site = opwright_sim::Site::here()
#define OPWRIGHT_CALLER , OPWRIGHT_ITS_CALLER
#define OPWRIGHT_ITS_SITE , site
#else
#define OPWRIGHT_ITS_CALLER
#define OPWRIGHT_CALLER
#define OPWRIGHT_ITS_SITE
#endif

template <class T>
__device__ __forceinline__ T WARP_SHFL(T value, int lane, int width = 32, unsigned mask = ~0u OPWRIGHT_CALLER) {
  return __shfl_sync(mask, value, lane, width OPWRIGHT_ITS_SITE);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_XOR(T value, int bits, int width = 32, unsigned mask = ~0u OPWRIGHT_CALLER) {
  return __shfl_xor_sync(mask, value, bits, width OPWRIGHT_ITS_SITE);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_UP(T value, unsigned by, int width = 32, unsigned mask = ~0u OPWRIGHT_CALLER) {
  return __shfl_up_sync(mask, value, by, width OPWRIGHT_ITS_SITE);
}
template <class T>
__device__ __forceinline__ T WARP_SHFL_DOWN(T value, unsigned by, int width = 32, unsigned mask = ~0u OPWRIGHT_CALLER) {
  return __shfl_down_sync(mask, value, by, width OPWRIGHT_ITS_SITE);
}
__device__ __forceinline__ unsigned WARP_BALLOT(int predicate, unsigned mask = ~0u OPWRIGHT_CALLER) {
  return __ballot_sync(mask, predicate OPWRIGHT_ITS_SITE);
}
__device__ __forceinline__ unsigned ACTIVE_MASK(OPWRIGHT_ITS_CALLER) {
#ifdef __OPWRIGHT_SIMULATOR__
  return __activemask(site);
#else
  return __activemask();
#endif
}
template <class T>
__device__ __forceinline__ T doLdg(const T* from) { return __ldg(from); }
__device__ __forceinline__ void WARP_SYNC(unsigned mask = ~0u OPWRIGHT_CALLER) {
  __syncwarp(mask OPWRIGHT_ITS_SITE);
}

#undef OPWRIGHT_CALLER
#undef OPWRIGHT_ITS_CALLER
#undef OPWRIGHT_ITS_SITE
