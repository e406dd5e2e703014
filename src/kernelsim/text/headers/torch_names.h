// The names of torch's headers that device code of published extensions uses, for both compilers of kernels. torch's own
// headers would bring the whole of its C++ library. Declared from torch's documentation and by their behaviour.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef C10_WARP_SIZE
#define C10_WARP_SIZE 32
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_RESTRICT __restrict__
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256, 4)
#define CUDA_KERNEL_ASSERT(condition) assert(condition)
#define CUDA_KERNEL_LOOP_TYPE(i, n, type)                                                                     \
  type kernelsim_first_##i = type(blockIdx.x) * blockDim.x + threadIdx.x;                                     \
  for (type i = kernelsim_first_##i; kernelsim_first_##i < (n);                                               \
       kernelsim_first_##i += type(blockDim.x) * gridDim.x, i = kernelsim_first_##i)
#define CUDA_KERNEL_LOOP(i, n) for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
                                    i += (long long)blockDim.x * gridDim.x)
#endif

namespace c10 {

// A number of 16 bits that is computed with as a float, and rounded after every operation.
#define KERNELSIM_TORCH_FLOAT(NAME, RAW, TO, FROM)                                                                 \
  struct alignas(2) NAME {                                                                                         \
    unsigned short x;                                                                                              \
    NAME() = default;                                                                                              \
    __host__ __device__ NAME(float v) { RAW r = FROM(v); memcpy(&x, &r, sizeof x); }                               \
    __host__ __device__ NAME(RAW v) { memcpy(&x, &v, sizeof x); }                                                  \
    __host__ __device__ operator float() const { RAW r; memcpy(&r, &x, sizeof x); return TO(r); }                  \
    __host__ __device__ operator RAW() const { RAW r; memcpy(&r, &x, sizeof x); return r; }                        \
  };                                                                                                               \
  KERNELSIM_TORCH_OPERATOR(NAME, +) KERNELSIM_TORCH_OPERATOR(NAME, -)                                              \
  KERNELSIM_TORCH_OPERATOR(NAME, *) KERNELSIM_TORCH_OPERATOR(NAME, /)                                              \
  __host__ __device__ inline NAME operator-(const NAME& a) { return NAME(-float(a)); }
#define KERNELSIM_TORCH_OPERATOR(NAME, OP)                                                                         \
  __host__ __device__ inline NAME operator OP(const NAME& a, const NAME& b) { return NAME(float(a) OP float(b)); } \
  __host__ __device__ inline float operator OP(const NAME& a, float b) { return float(a) OP b; }                   \
  __host__ __device__ inline float operator OP(float a, const NAME& b) { return a OP float(b); }                   \
  __host__ __device__ inline double operator OP(const NAME& a, double b) { return float(a) OP b; }                 \
  __host__ __device__ inline double operator OP(double a, const NAME& b) { return a OP float(b); }                 \
  __host__ __device__ inline NAME operator OP(const NAME& a, int b) { return NAME(float(a) OP float(b)); }         \
  __host__ __device__ inline NAME operator OP(int a, const NAME& b) { return NAME(float(a) OP float(b)); }         \
  __host__ __device__ inline NAME& operator OP##=(NAME& a, const NAME& b) { return a = a OP b; }
KERNELSIM_TORCH_FLOAT(Half, __half, __half2float, __float2half)
KERNELSIM_TORCH_FLOAT(BFloat16, __nv_bfloat16, __bfloat162float, __float2bfloat16)
#undef KERNELSIM_TORCH_FLOAT
#undef KERNELSIM_TORCH_OPERATOR

// A complex number; operators with a number that is not complex take it as the real part.
template <class T>
struct alignas(2 * sizeof(T)) complex {
  using value_type = T;
  T real_ = T(0), imag_ = T(0);
  constexpr complex() = default;
  __host__ __device__ constexpr complex(const T& re, const T& im = T()) : real_(re), imag_(im) {}
  template <class U>
  __host__ __device__ explicit constexpr complex(const complex<U>& other) : real_(other.real_), imag_(other.imag_) {}
  __host__ __device__ constexpr T real() const { return real_; }
  __host__ __device__ constexpr T imag() const { return imag_; }
  __host__ __device__ constexpr void real(T value) { real_ = value; }
  __host__ __device__ constexpr void imag(T value) { imag_ = value; }
  __host__ __device__ constexpr complex operator-() const { return {-real_, -imag_}; }
  __host__ __device__ friend constexpr complex operator+(const complex& a, const complex& b) {
    return {a.real_ + b.real_, a.imag_ + b.imag_};
  }
  __host__ __device__ friend constexpr complex operator-(const complex& a, const complex& b) {
    return {a.real_ - b.real_, a.imag_ - b.imag_};
  }
  __host__ __device__ friend constexpr complex operator*(const complex& a, const complex& b) {
    return {a.real_ * b.real_ - a.imag_ * b.imag_, a.real_ * b.imag_ + a.imag_ * b.real_};
  }
  __host__ __device__ friend constexpr complex operator/(const complex& a, const complex& b) {
    const T square = b.real_ * b.real_ + b.imag_ * b.imag_;
    return {(a.real_ * b.real_ + a.imag_ * b.imag_) / square, (a.imag_ * b.real_ - a.real_ * b.imag_) / square};
  }
  __host__ __device__ friend constexpr bool operator==(const complex& a, const complex& b) {
    return a.real_ == b.real_ && a.imag_ == b.imag_;
  }
  __host__ __device__ friend constexpr bool operator!=(const complex& a, const complex& b) { return !(a == b); }
  __host__ __device__ constexpr complex& operator+=(const complex& b) { return *this = *this + b; }
  __host__ __device__ constexpr complex& operator-=(const complex& b) { return *this = *this - b; }
  __host__ __device__ constexpr complex& operator*=(const complex& b) { return *this = *this * b; }
  __host__ __device__ constexpr complex& operator/=(const complex& b) { return *this = *this / b; }
};

}  // namespace c10

namespace std {
template <class T>
__host__ __device__ constexpr T real(const c10::complex<T>& z) { return z.real_; }
template <class T>
__host__ __device__ constexpr T imag(const c10::complex<T>& z) { return z.imag_; }
template <class T>
__host__ __device__ constexpr c10::complex<T> conj(const c10::complex<T>& z) { return {z.real_, -z.imag_}; }
}  // namespace std

namespace at {

using c10::BFloat16;
using c10::Half;

template <class T> struct OpMathType { using type = T; };
template <> struct OpMathType<c10::Half> { using type = float; };
template <> struct OpMathType<c10::BFloat16> { using type = float; };
template <> struct OpMathType<__half> { using type = float; };
template <> struct OpMathType<__nv_bfloat16> { using type = float; };
template <class T> using opmath_type = typename OpMathType<T>::type;

// Sums are kept in float for the smaller types; for integers, in 64 bits.
template <class T, bool on_cuda> struct AccumulateType { using type = typename OpMathType<T>::type; };
template <bool c> struct AccumulateType<signed char, c> { using type = long; };
template <bool c> struct AccumulateType<unsigned char, c> { using type = long; };
template <bool c> struct AccumulateType<char, c> { using type = long; };
template <bool c> struct AccumulateType<short, c> { using type = long; };
template <bool c> struct AccumulateType<int, c> { using type = long; };
template <class T, bool on_cuda> using acc_type = typename AccumulateType<T, on_cuda>::type;

template <class T> struct DefaultPtrTraits { using PtrType = T*; };
template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; };

// A view of a tensor of N dimensions: an address, and sizes and strides that lie elsewhere.
template <class T, size_t N, template <class> class Traits, class Index>
class TensorAccessor {
 public:
  __host__ __device__ TensorAccessor(T* data, const Index* sizes, const Index* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  __host__ __device__ TensorAccessor<T, N - 1, Traits, Index> operator[](Index i) const {
    return {data_ + strides_[0] * i, sizes_ + 1, strides_ + 1};
  }
  __host__ __device__ Index size(Index i) const { return sizes_[i]; }
  __host__ __device__ Index stride(Index i) const { return strides_[i]; }
  __host__ __device__ T* data() const { return data_; }

 private:
  T* data_;
  const Index *sizes_, *strides_;
};
template <class T, template <class> class Traits, class Index>
class TensorAccessor<T, 1, Traits, Index> {
 public:
  __host__ __device__ TensorAccessor(T* data, const Index* sizes, const Index* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  __host__ __device__ T& operator[](Index i) const { return data_[strides_[0] * i]; }
  __host__ __device__ Index size(Index i) const { return sizes_[i]; }
  __host__ __device__ Index stride(Index i) const { return strides_[i]; }
  __host__ __device__ T* data() const { return data_; }

 private:
  T* data_;
  const Index *sizes_, *strides_;
};

// The same with sizes and strides in itself, as a kernel's parameter.
template <class T, size_t N, template <class> class Traits, class Index>
class GenericPackedTensorAccessor {
 public:
  __host__ __device__ decltype(auto) operator[](Index i) const {
    return TensorAccessor<T, N, Traits, Index>(data_, sizes_, strides_)[i];
  }
  __host__ __device__ Index size(Index i) const { return sizes_[i]; }
  __host__ __device__ Index stride(Index i) const { return strides_[i]; }
  __host__ __device__ T* data() const { return data_; }

 private:
  T* data_;
  Index sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, long>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = long>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, Traits, Index>;

// What the host's members of a class are, and what traits of the host ask for. Kernels make nothing of them.
struct Tensor {
  void* implementation;
};

namespace cuda {

template <class T>
__host__ __device__ constexpr T ATenCeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

namespace detail {

// A tensor of a number of dimensions that is known when the kernel runs, as a kernel's parameter. The order of its
// members is that of torch, whose host code may have made it.
template <class T, class Index>
struct TensorInfo {
  static constexpr int most_dimensions = 25;
  __host__ __device__ bool isContiguous() const { return dims == 1 && strides[0] == 1; }

  T* data;
  Index sizes[most_dimensions];
  Index strides[most_dimensions];
  int dims;
};

// Where in memory an element is, by its number in the order of dimensions. Dims: -1 if only the tensor says how many; -2
// if it is contiguous.
template <class T, class Index, int Dims>
struct IndexToOffset {
  __host__ __device__ static Index get(Index number, const TensorInfo<T, Index>& info) {
    if (Dims == -2) return number;
    Index offset = 0;
    for (int i = (Dims > 0 ? Dims : info.dims) - 1; i > 0; i--) {
      offset += number % info.sizes[i] * info.strides[i];
      number /= info.sizes[i];
    }
    return offset + number * info.strides[0];
  }
};

}  // namespace detail
}  // namespace cuda
namespace native {}
}  // namespace at

namespace c10 {
template <class T> struct intrusive_ptr {
  T* target;
};
template <class T> struct ArrayRef {
  const T* data;
  size_t length;
};
template <class T> struct optional;
template <class T> struct List;
struct SymInt;
struct IValue;
using IntArrayRef = ArrayRef<long>;
using SymIntArrayRef = ArrayRef<SymInt>;
}  // namespace c10
namespace at {
using c10::IntArrayRef;
using c10::optional;
using c10::SymIntArrayRef;
using TensorList = c10::ArrayRef<Tensor>;
}  // namespace at

namespace torch {
using namespace at;
struct CustomClassHolder {};
}  // namespace torch

template <class T>
__device__ inline T gpuAtomicAdd(T* address, T value) {
  return atomicAdd(address, value);
}
__device__ inline c10::Half gpuAtomicAdd(c10::Half* address, c10::Half value) {
  return c10::Half(atomicAdd(reinterpret_cast<__half*>(address), __half(value)));
}
__device__ inline c10::BFloat16 gpuAtomicAdd(c10::BFloat16* address, c10::BFloat16 value) {
  return c10::BFloat16(atomicAdd(reinterpret_cast<__nv_bfloat16*>(address), __nv_bfloat16(value)));
}
template <class T>
__device__ inline void gpuAtomicAdd(c10::complex<T>* address, c10::complex<T> value) {
  atomicAdd(&address->real_, value.real_);
  atomicAdd(&address->imag_, value.imag_);
}
template <class T>
__device__ inline void gpuAtomicAddNoReturn(T* address, T value) {
  gpuAtomicAdd(address, value);
}
// Templates, beside which a source may have functions of its own: only one of torch's headers declares these.
template <class T>
__device__ inline std::enable_if_t<std::is_same<T, c10::Half>::value || std::is_same<T, c10::BFloat16>::value> atomicAdd(
    T* address, T value) {
  gpuAtomicAdd(address, value);
}
