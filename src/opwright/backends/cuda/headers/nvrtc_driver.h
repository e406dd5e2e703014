// For NVRTC in place of the driver's cuda.h: the type of a tensor map, which kernels take as a parameter.
#pragma once

#ifndef CUDA_VERSION
#define CUDA_VERSION CUDART_VERSION
#endif
struct alignas(128) CUtensorMap_st {
  unsigned long long opaque[16];
};
typedef struct CUtensorMap_st CUtensorMap;
