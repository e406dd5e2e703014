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

#include "opwright_simulator/language.h"
#include "opwright_simulator/vector_types.h"
#include "opwright_simulator/runtime_calls.h"
#include "opwright_simulator/intrinsics.h"
#include "opwright_simulator/float16.h"
#include "opwright_simulator/warp.h"
#include "opwright_simulator/memory.h"
#include "opwright_simulator/atomics.h"
#include "opwright_simulator/ptx.h"
#include "assert.h"
