// The words that CUDA adds to C++. `__restrict__` and `__inline__` are known to g++ and clang; `__noinline__` cannot be
// a macro, because the standard library writes `__attribute__((__noinline__))`: it is rewritten before compiling.
#pragma once

// Other kernels than the requested one are parsed, but no code is generated for them. All that a kernel calls is
// inlined, as nvcc does: the compiler does not instrument an argument that is passed in memory (a half by value).
#define __global__ inline __attribute__((flatten))
#define __device__
#define __host__
// Set by Python, of which the compiler knows nothing: kept, and never taken for a constant.
#define __constant__ __attribute__((used))
#define __managed__
#define __grid_constant__
// A block runs within one OS thread, so storage of that thread is storage of the block. Dynamic shared memory
// (`extern __shared__`) is rewritten before compiling; see rewriting.py. Arrays begin at multiples of 16 bytes, on
// which published kernels rely that read them as vectors; CUDA does not promise it for narrower types.
#define __shared__ static thread_local __attribute__((aligned(16)))
#define __forceinline__ __attribute__((always_inline))  // not inline as well: sources write both
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)  // rewritten before compiling: a statement of the kernel says it
#define __builtin_align__(n) __attribute__((aligned(n)))

// Types of the host that NVRTC declares too: parameters of functions that no kernel calls.
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

// In a library's functions for the host, which no kernel calls (headers.py).
namespace kernelsim {
template <class... Arguments>
__attribute__((error("this function is for the host"))) int asks_the_driver(Arguments&&...);
}  // namespace kernelsim

// Functions of the simulator's headers are inlined also in checked builds, so that what they read and write is
// reported at the line of the kernel that called them.
#define KERNELSIM_INLINE inline __attribute__((always_inline))
