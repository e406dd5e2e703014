#pragma once
#include "kernelsim.h"

#ifndef CUDA_VERSION
#define CUDA_VERSION CUDART_VERSION
#endif

// What a bulk copy of a tensor's box needs to know. The kernel passes its address on; it has no parts of its own.
struct alignas(128) CUtensorMap_st {
  unsigned long long opaque[16];
};
typedef struct CUtensorMap_st CUtensorMap;
