// cuRAND's functions for kernels, from NVIDIA's own headers, which Python looks for: the numbers are then those of a GPU.
// What these headers write in PTX is replaced by what they have for other processors, which computes the same.
#pragma once

#include <nv/target>

#pragma push_macro("NV_PROVIDES_SM_61")
#pragma push_macro("NV_IS_DEVICE")

#ifndef __NV_SILENCE_DEPRECATION_BEGIN  // of CUDA's own host_defines.h
#define __NV_SILENCE_DEPRECATION_BEGIN
#define __NV_SILENCE_DEPRECATION_END
#endif
#undef NV_PROVIDES_SM_61
#define NV_PROVIDES_SM_61 0  // MRG32k3a: products of doubles, which are exact
#define CURAND_POISSON_H_    // included below
#include_next <curand_kernel.h>
#undef CURAND_POISSON_H_

#undef NV_IS_DEVICE
#define NV_IS_DEVICE 0  // approximations, by the C library
#include <curand_poisson.h>

#pragma pop_macro("NV_IS_DEVICE")
#pragma pop_macro("NV_PROVIDES_SM_61")
