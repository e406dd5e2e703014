// nvcuda::wmma: fragments of matrices that a warp holds together. Which lane has which element is not specified by CUDA;
// here element e of lane l is the one with number 32 e + l, in the order of rows.
#pragma once
#include "kernelsim.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}  // namespace precision

// Names in headers of libraries, whose functions for them few kernels call.
namespace experimental {
namespace precision {
struct u4 {};
struct s4 {};
struct b1 {};
}  // namespace precision
enum bmmaBitOp { bmmaBitOpXOR = 1, bmmaBitOpAND = 2 };
enum bmmaAccumulateOp { bmmaAccumulateOpPOPC = 1 };
}  // namespace experimental

namespace details {

template <class T> struct Stored { using type = T; };
template <> struct Stored<precision::tf32> { using type = float; };

template <class Use, int m, int n, int k> struct Size;
template <int m, int n, int k> struct Size<matrix_a, m, n, k> { static constexpr int rows = m, columns = k; };
template <int m, int n, int k> struct Size<matrix_b, m, n, k> { static constexpr int rows = k, columns = n; };
template <int m, int n, int k> struct Size<accumulator, m, n, k> { static constexpr int rows = m, columns = n; };

template <int m, int n, int k, class T>
constexpr bool is_shape() {
  if (std::is_same<T, precision::tf32>::value) return m == 16 && n == 16 && k == 8;
  if (std::is_same<T, double>::value) return m == 8 && n == 8 && k == 4;
  return k == 16 && ((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32));
}

KERNELSIM_INLINE double number(__half v) { return kernelsim::value_of(v); }
KERNELSIM_INLINE double number(__nv_bfloat16 v) { return kernelsim::value_of(v); }
KERNELSIM_INLINE double number(float v) { return v; }
KERNELSIM_INLINE double number(double v) { return v; }
KERNELSIM_INLINE double number(int v) { return v; }
KERNELSIM_INLINE double number(signed char v) { return v; }
KERNELSIM_INLINE double number(unsigned char v) { return v; }
// The bits of a float that a product in tf32 uses.
KERNELSIM_INLINE double tf32_number(float v) {
  return kernelsim::bits_as<float>(kernelsim::bits_as<uint32_t>(v) & 0xffffe000u);
}
template <class T>
KERNELSIM_INLINE T rounded(double v) {
  if constexpr (std::is_same<T, __half>::value || std::is_same<T, __nv_bfloat16>::value) {
    return kernelsim::from_value<T>(v);
  } else {
    return T(v);
  }
}

}  // namespace details

template <class Use, int m, int n, int k, class T, class Layout = void>
class fragment {
  using Size = details::Size<Use, m, n, k>;

 public:
  using element_type = T;
  using storage_element_type = typename details::Stored<T>::type;
  static constexpr int rows = Size::rows, columns = Size::columns;
  static constexpr int num_elements = rows * columns / 32, num_storage_elements = num_elements;
  storage_element_type x[num_elements];
};

template <class Use, int m, int n, int k, class T, class Layout, class V>
KERNELSIM_INLINE void fill_fragment(fragment<Use, m, n, k, T, Layout>& f, const V& value) {
  for (auto& element : f.x) element = typename details::Stored<T>::type(value);
}

KERNELSIM_INLINE float __float_to_tf32(float v) {
  return kernelsim::bits_as<float>(kernelsim::ptx::to_tf32(v));
}

namespace details {

// Moves the elements of a fragment from or to memory. The address has to be a multiple of 32 bytes, and rows of 16.
template <class Fragment, class T, class Move>
KERNELSIM_INLINE void each_element(Fragment& f, T* p, unsigned stride, bool by_rows, Move move, kernelsim::Site site) {
  kernelsim::warp_sync(0xffffffffu, site);
  kernelsim::check_alignment(p, 32, "the address of a wmma fragment");
  const unsigned lane = kernelsim::lane_id();
  for (int e = 0; e < Fragment::num_elements; e++) {
    const unsigned number = unsigned(e) * 32 + lane;
    const unsigned row = number / Fragment::columns, column = number % Fragment::columns;
    move(f.x[e], p[by_rows ? row * stride + column : column * stride + row]);
  }
}

struct Operands {
  const void *a, *b, *c;
  void* d;
};

template <int m, int n, int k, class A, class B, class C, class D>
__attribute__((noinline, no_sanitize("thread"), no_sanitize("undefined"), no_sanitize_coverage)) void multiply(
    void* const* lanes) {
  constexpr bool tf32 = std::is_same<typename A::element_type, precision::tf32>::value;
  // Pieces of a row, which the processor computes at once. Each result is still the sum in the order of k.
  constexpr int width = 4;
  typedef double Piece __attribute__((vector_size(width * sizeof(double)), may_alias));
  static_assert(n % width == 0, "a row consists of pieces");
  double a[m * k], sums[m * n];
  alignas(Piece) double b[k * n];
  for (int lane = 0; lane < 32; lane++) {
    if (!lanes[lane]) return;
    const auto& mine = *static_cast<const Operands*>(lanes[lane]);
    for (int e = 0; e < A::num_elements; e++) {
      const auto v = static_cast<const A*>(mine.a)->x[e];
      a[e * 32 + lane] = tf32 ? tf32_number(float(number(v))) : number(v);
    }
    for (int e = 0; e < B::num_elements; e++) {
      const auto v = static_cast<const B*>(mine.b)->x[e];
      b[e * 32 + lane] = tf32 ? tf32_number(float(number(v))) : number(v);
    }
  }
  for (int row = 0; row < m; row++) {
    Piece sum[n / width] = {};
    for (int i = 0; i < k; i++) {
      const double left = a[row * k + i];
      const auto* right = reinterpret_cast<const Piece*>(&b[i * n]);
      for (int piece = 0; piece < n / width; piece++) sum[piece] += left * right[piece];
    }
    __builtin_memcpy(&sums[row * n], sum, sizeof sum);
  }
  for (int lane = 0; lane < 32; lane++) {
    const auto& mine = *static_cast<const Operands*>(lanes[lane]);
    for (int e = 0; e < D::num_elements; e++) {
      using T = typename D::element_type;
      static_cast<D*>(mine.d)->x[e] = rounded<T>(sums[e * 32 + lane] + number(static_cast<const C*>(mine.c)->x[e]));
    }
  }
}

}  // namespace details

template <class Use, int m, int n, int k, class T, class Layout, class V>
KERNELSIM_INLINE void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& f, const V* p, unsigned stride,
                                      kernelsim::Site site = kernelsim::Site::here()) {
  static_assert(details::is_shape<m, n, k, T>(), "this shape of a fragment does not exist for its type");
  const auto move = [](auto& element, const V& value) { element = value; };
  details::each_element(f, p, stride, std::is_same<Layout, row_major>::value, move, site);
}
template <int m, int n, int k, class T, class V>
KERNELSIM_INLINE void load_matrix_sync(fragment<accumulator, m, n, k, T, void>& f, const V* p, unsigned stride,
                                      layout_t layout, kernelsim::Site site = kernelsim::Site::here()) {
  const auto move = [](auto& element, const V& value) { element = value; };
  details::each_element(f, p, stride, layout == mem_row_major, move, site);
}
template <int m, int n, int k, class T, class V>
KERNELSIM_INLINE void store_matrix_sync(V* p, const fragment<accumulator, m, n, k, T, void>& f, unsigned stride,
                                       layout_t layout, kernelsim::Site site = kernelsim::Site::here()) {
  const auto move = [](const auto& element, V& value) { value = element; };
  details::each_element(f, p, stride, layout == mem_row_major, move, site);
}

template <int m, int n, int k, class TD, class TA, class LA, class TB, class LB, class TC>
KERNELSIM_INLINE void mma_sync(fragment<accumulator, m, n, k, TD, void>& d, const fragment<matrix_a, m, n, k, TA, LA>& a,
                              const fragment<matrix_b, m, n, k, TB, LB>& b,
                              const fragment<accumulator, m, n, k, TC, void>& c, bool satf = false,
                              kernelsim::Site site = kernelsim::Site::here()) {
  using D = fragment<accumulator, m, n, k, TD, void>;
  using C = fragment<accumulator, m, n, k, TC, void>;
  const C before = c;  // c and d may be the same
  details::Operands mine{&a, &b, &before, &d};
  kernelsim::warp_collective(
      0xffffffffu, &mine,
      details::multiply<m, n, k, fragment<matrix_a, m, n, k, TA, LA>, fragment<matrix_b, m, n, k, TB, LB>, C, D>, site);
}

template <class D, class A, class B, class C>
__attribute__((error("wmma's products of bits are not simulated"))) void bmma_sync(
    D&, const A&, const B&, const C&, experimental::bmmaBitOp = experimental::bmmaBitOpXOR,
    experimental::bmmaAccumulateOp = experimental::bmmaAccumulateOpPOPC);

}  // namespace wmma
}  // namespace nvcuda
