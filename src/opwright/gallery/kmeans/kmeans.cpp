// The nearest mean of each point, with NumPy's arithmetic: the same sums in the same order, the root taken
// (two squares that differ may have one root, and then the first mean wins), NaN before every number.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <vector>

#include <opwright/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kTile = 256;  // points whose best distances stay in the first-level cache
constexpr int64_t kGrain = 16;   // tiles that are worth a thread
constexpr int64_t kChunks = 256;  // sums of their own, at most

template <class T>
T square(T v) {
  return v * v;
}

// Squared distance of two points, summed pairwise as NumPy does
// (numpy/_core/src/umath/loops_utils.h.src, pairwise_sum).
template <class T>
T squared_distance(const T* x, const T* m, int64_t d) {
  if (d < 8) {
    T sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += square(x[i] - m[i]);
    return sum;
  }
  if (d <= 128) {
    T r[8];
    for (int64_t j = 0; j < 8; ++j) r[j] = square(x[j] - m[j]);
    int64_t i = 8;
    for (; i + 8 <= d; i += 8)
      for (int64_t j = 0; j < 8; ++j) r[j] += square(x[i + j] - m[i + j]);
    T sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < d; ++i) sum += square(x[i] - m[i]);
    return sum;
  }
  const int64_t half = d / 2 - d / 2 % 8;
  return squared_distance(x, m, half) + squared_distance(x + half, m + half, d - half);
}

// Points [0, count) of one tile. D is the dimension where the compiler may know it (it then works on several
// points at once), else 0.
template <int D, class T>
void assign(const T* x, const T* means, int64_t* out, int64_t count, int64_t k, int64_t dim) {
  using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;  // as wide as T, to share its vector lanes
  const int64_t d = D ? D : dim;
  T best[kTile];
  Index label[kTile];
  for (int64_t i = 0; i < count; ++i) {
    best[i] = std::sqrt(squared_distance(x + i * d, means, d));
    label[i] = 0;
  }
  for (int64_t j = 1; j < k; ++j) {
    const T* mean = means + j * d;
    for (int64_t i = 0; i < count; ++i) {
      const T distance = std::sqrt(squared_distance(x + i * d, mean, d));
      const bool nearer = (distance < best[i]) | ((distance != distance) & (best[i] == best[i]));
      best[i] = nearer ? distance : best[i];
      label[i] = nearer ? static_cast<Index>(j) : label[i];
    }
  }
  std::copy_n(label, count, out);
}

template <class T>
auto assign_for(int64_t d) {
  return d == 1 ? assign<1, T> : d == 2 ? assign<2, T> : d == 3 ? assign<3, T> : d == 4 ? assign<4, T> : assign<0, T>;
}

template <class T>
void assign_all(Tensor& out, const Tensor& X, const Tensor& means) {
  const int64_t n = X.size(0), d = X.size(1), k = means.size(0);
  const T* x = X.const_data_ptr<T>();
  const T* m = means.const_data_ptr<T>();
  int64_t* labels = out.mutable_data_ptr<int64_t>();
  const auto assign_tile = assign_for<T>(d);
  torch::stable::parallel_for(0, (n + kTile - 1) / kTile, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin * kTile; i < std::min(n, end * kTile); i += kTile)
      assign_tile(x + i * d, m, labels + i, std::min(kTile, n - i), k, d);
  });
}

// The sums and numbers of the points of each mean. Every chunk has sums of its own, which are added in order: the
// result does not depend on the number of threads.
template <class T>
void sum_all(Tensor& sums, Tensor& counts, const Tensor& X, const Tensor& means) {
  const int64_t n = X.size(0), d = X.size(1), k = means.size(0);
  const int64_t chunk = std::max(kGrain, ((n + kTile - 1) / kTile + kChunks - 1) / kChunks) * kTile;
  const int64_t chunks = (n + chunk - 1) / chunk;
  const T* x = X.const_data_ptr<T>();
  const T* m = means.const_data_ptr<T>();
  std::vector<double> partial(chunks * k * d, 0.0);
  std::vector<int64_t> numbers(chunks * k, 0);
  const auto assign_tile = assign_for<T>(d);
  torch::stable::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    int64_t labels[kTile];
    for (int64_t c = begin; c < end; ++c) {
      double* sum = partial.data() + c * k * d;
      int64_t* number = numbers.data() + c * k;
      for (int64_t i = c * chunk; i < std::min(n, (c + 1) * chunk); i += kTile) {
        const int64_t count = std::min(kTile, n - i);
        assign_tile(x + i * d, m, labels, count, k, d);
        for (int64_t p = 0; p < count; ++p) {
          ++number[labels[p]];
          for (int64_t j = 0; j < d; ++j) sum[labels[p] * d + j] += x[(i + p) * d + j];
        }
      }
    }
  });
  T* out = sums.mutable_data_ptr<T>();
  int64_t* out_counts = counts.mutable_data_ptr<int64_t>();
  std::vector<double> total(k * d, 0.0);
  std::fill_n(out_counts, k, 0);
  for (int64_t c = 0; c < chunks; ++c) {
    for (int64_t i = 0; i < k * d; ++i) total[i] += partial[c * k * d + i];
    for (int64_t j = 0; j < k; ++j) out_counts[j] += numbers[c * k + j];
  }
  std::copy(total.begin(), total.end(), out);
}

Tensor kmeans_assign(const Tensor& X, const Tensor& means) {
  STD_TORCH_CHECK(means.size(0) > 0, "gallery::kmeans_assign: there is no mean to assign points to");
  const Tensor points = opwright::contiguous(X), centres = opwright::contiguous(means);
  Tensor out = opwright::new_empty(points, {points.size(0)}, ScalarType::Long);
  THO_DISPATCH_V2(points.scalar_type(), "gallery::kmeans_assign",
                  [&] { assign_all<scalar_t>(out, points, centres); }, AT_EXPAND(AT_FLOATING_TYPES));
  return out;
}

std::tuple<Tensor, Tensor> kmeans_sums(const Tensor& X, const Tensor& means) {
  STD_TORCH_CHECK(means.size(0) > 0, "gallery::kmeans_sums: there is no mean to assign points to");
  const Tensor points = opwright::contiguous(X), centres = opwright::contiguous(means);
  Tensor sums = opwright::new_empty(points, {means.size(0), means.size(1)});
  Tensor counts = opwright::new_empty(points, {means.size(0)}, ScalarType::Long);
  THO_DISPATCH_V2(points.scalar_type(), "gallery::kmeans_sums",
                  [&] { sum_all<scalar_t>(sums, counts, points, centres); }, AT_EXPAND(AT_FLOATING_TYPES));
  return {sums, counts};
}
