// CUDA's device language on a CPU. The simulator includes this file before a kernel's source, so that the source
// compiles as C++17 unchanged. It declares CUDA's names; docs/simulator.md describes their behaviour.
#pragma once

// The standard headers come first: below, some of their names become macros.
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// Published sources rely on nvcc, whose own headers include <algorithm>, or on headers for the host, which are left out.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>

// The version of CUDA's runtime, which nvcc's own headers define for every source.
#ifndef CUDART_VERSION
#define CUDART_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)
#endif

// Headers define these for NVRTC. The constants of these names stay.
#undef FP_NAN
#undef FP_INFINITE
#undef FP_ZERO
#undef FP_SUBNORMAL
#undef FP_NORMAL

#include "kernelsim/language.h"
#include "kernelsim/vector_types.h"
#include "kernelsim/runtime_calls.h"
#include "kernelsim/intrinsics.h"
#include "kernelsim/float16.h"
#include "kernelsim/warp.h"
#include "kernelsim/memory.h"
#include "kernelsim/atomics.h"
#include "kernelsim/ptx.h"
#include "assert.h"
