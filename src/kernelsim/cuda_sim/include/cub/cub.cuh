// The collectives of CUB for a block and a warp, written from its documentation: reductions, scans, loads, stores,
// exchanges and sorts. Sums are added within a warp in a tree, then warp after warp. All that goes through shared memory
// goes through the caller's TempStorage, so that using it again without a barrier is a race here, too.
#pragma once
#include "../kernelsim.h"

#include "thread/thread_operators.cuh"

namespace cub {

using kernelsim::Site;
#define KERNELSIM_CUB_SITE Site site = Site::here()

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT,
  BLOCK_LOAD_STRIPED,
  BLOCK_LOAD_VECTORIZE,
  BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT,
  BLOCK_STORE_STRIPED,
  BLOCK_STORE_VECTORIZE,
  BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};

namespace details {

// Memory for values of any type, which a union may hold.
template <class T, int N>
struct Memory {
  alignas(T) unsigned char bytes[sizeof(T) * N];
  KERNELSIM_INLINE T& operator[](int i) { return reinterpret_cast<T*>(bytes)[i]; }
};
struct Nothing {};

template <int X, int Y, int Z>
struct Block {
  static constexpr int threads = X * Y * Z, warps = (threads + 31) / 32;
  KERNELSIM_INLINE static int rank() { return int(threadIdx.x + X * (threadIdx.y + Y * threadIdx.z)); }
  KERNELSIM_INLINE static int warp() { return rank() / 32; }
  KERNELSIM_INLINE static int lane() { return rank() % 32; }
  KERNELSIM_INLINE static int lanes() { return min(32, threads - 32 * warp()); }  // that the block has of this warp
};

KERNELSIM_INLINE unsigned first_lanes(int count) { return count >= 32 ? 0xffffffffu : (1u << count) - 1u; }

// The lanes that take part, `count` of them from `first` on, and which of them this one is.
struct Lanes {
  int first, count, rank;
  KERNELSIM_INLINE unsigned mask() const { return first_lanes(count) << first; }
  template <class T>
  KERNELSIM_INLINE T from(T value, int source, Site site) const {
    const int known = source < 0 || source >= count ? rank : source;
    return kernelsim::shuffle(mask(), value, unsigned(first + known), site);
  }
};

template <class T, class Operation>
KERNELSIM_INLINE T reduce(const Lanes& lanes, T value, Operation operation, int valid, Site site) {
  for (int step = 1; step < lanes.count; step *= 2) {
    const T other = lanes.from(value, lanes.rank + step, site);
    if (lanes.rank + step < valid) value = operation(value, other);
  }
  return value;
}
template <class T, class Operation>
KERNELSIM_INLINE T inclusive(const Lanes& lanes, T value, Operation operation, Site site) {
  for (int step = 1; step < lanes.count; step *= 2) {
    const T other = lanes.from(value, lanes.rank - step, site);
    if (lanes.rank >= step) value = operation(other, value);
  }
  return value;
}
template <class T, int N, class Operation>
KERNELSIM_INLINE T of_thread(T (&items)[N], Operation operation) {
  T value = items[0];
  for (int i = 1; i < N; i++) value = operation(value, items[i]);
  return value;
}

}  // namespace details

// --- warps ---

template <class T, int Width = 32, int = 0>
class WarpReduce {
  static_assert(Width > 0 && Width <= 32 && (Width & (Width - 1)) == 0, "a power of two of at most 32 lanes");

 public:
  using TempStorage = details::Nothing;
  KERNELSIM_INLINE WarpReduce(TempStorage&) {}
  template <class Operation>
  KERNELSIM_INLINE T Reduce(T value, Operation operation, KERNELSIM_CUB_SITE) {
    return details::reduce(lanes(), value, operation, Width, site);
  }
  template <class Operation>
  KERNELSIM_INLINE T Reduce(T value, Operation operation, int valid, KERNELSIM_CUB_SITE) {
    return details::reduce(lanes(), value, operation, valid, site);
  }
  KERNELSIM_INLINE T Sum(T value, KERNELSIM_CUB_SITE) { return Reduce(value, cub::Sum(), site); }
  KERNELSIM_INLINE T Sum(T value, int valid, KERNELSIM_CUB_SITE) { return Reduce(value, cub::Sum(), valid, site); }

 private:
  KERNELSIM_INLINE static details::Lanes lanes() {
    const int lane = int(kernelsim::lane_id());
    return {lane / Width * Width, Width, lane % Width};
  }
};

template <class T, int Width = 32, int = 0>
class WarpScan {
  static_assert(Width > 0 && Width <= 32 && (Width & (Width - 1)) == 0, "a power of two of at most 32 lanes");

 public:
  using TempStorage = details::Nothing;
  KERNELSIM_INLINE WarpScan(TempStorage&) {}
  template <class Operation>
  KERNELSIM_INLINE void InclusiveScan(T value, T& output, Operation operation, T& aggregate, KERNELSIM_CUB_SITE) {
    output = details::inclusive(lanes(), value, operation, site);
    aggregate = lanes().from(output, Width - 1, site);
  }
  template <class Operation>
  KERNELSIM_INLINE void InclusiveScan(T value, T& output, Operation operation, KERNELSIM_CUB_SITE) {
    output = details::inclusive(lanes(), value, operation, site);
  }
  template <class Operation>
  KERNELSIM_INLINE void ExclusiveScan(T value, T& output, T initial, Operation operation, T& aggregate,
                                     KERNELSIM_CUB_SITE) {
    T inclusive;
    InclusiveScan(value, inclusive, operation, aggregate, site);
    const T before = lanes().from(inclusive, lanes().rank - 1, site);
    output = lanes().rank == 0 ? initial : operation(initial, before);
  }
  template <class Operation>
  KERNELSIM_INLINE void ExclusiveScan(T value, T& output, T initial, Operation operation, KERNELSIM_CUB_SITE) {
    T aggregate;
    ExclusiveScan(value, output, initial, operation, aggregate, site);
  }
  KERNELSIM_INLINE void InclusiveSum(T value, T& output, KERNELSIM_CUB_SITE) {
    InclusiveScan(value, output, cub::Sum(), site);
  }
  KERNELSIM_INLINE void InclusiveSum(T value, T& output, T& aggregate, KERNELSIM_CUB_SITE) {
    InclusiveScan(value, output, cub::Sum(), aggregate, site);
  }
  KERNELSIM_INLINE void ExclusiveSum(T value, T& output, KERNELSIM_CUB_SITE) {
    ExclusiveScan(value, output, T(0), cub::Sum(), site);
  }
  KERNELSIM_INLINE void ExclusiveSum(T value, T& output, T& aggregate, KERNELSIM_CUB_SITE) {
    ExclusiveScan(value, output, T(0), cub::Sum(), aggregate, site);
  }
  KERNELSIM_INLINE T Broadcast(T value, unsigned source, KERNELSIM_CUB_SITE) {
    return lanes().from(value, int(source), site);
  }

 private:
  KERNELSIM_INLINE static details::Lanes lanes() {
    const int lane = int(kernelsim::lane_id());
    return {lane / Width * Width, Width, lane % Width};
  }
};

// --- blocks: reductions and scans ---

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0>
class BlockReduce {
  using Block = details::Block<X, Y, Z>;

 public:
  using TempStorage = details::Memory<T, Block::warps>;
  KERNELSIM_INLINE BlockReduce(TempStorage& memory) : memory_(memory) {}
  // Thread 0 has the result; others have a part of it, as on a GPU.
  template <class Operation>
  KERNELSIM_INLINE T Reduce(T value, Operation operation, int valid, KERNELSIM_CUB_SITE) {
    const int first = 32 * Block::warp();
    value = details::reduce(details::Lanes{0, Block::lanes(), Block::lane()}, value, operation,
                            max(0, min(32, valid - first)), site);
    if (Block::lane() == 0) memory_[Block::warp()] = value;
    __syncthreads(site);
    if (Block::rank() == 0) {
      for (int warp = 1; warp < Block::warps && 32 * warp < valid; warp++) value = operation(value, memory_[warp]);
    }
    return value;
  }
  template <class Operation>
  KERNELSIM_INLINE T Reduce(T value, Operation operation, KERNELSIM_CUB_SITE) {
    return Reduce(value, operation, Block::threads, site);
  }
  template <int N, class Operation>
  KERNELSIM_INLINE T Reduce(T (&items)[N], Operation operation, KERNELSIM_CUB_SITE) {
    return Reduce(details::of_thread(items, operation), operation, Block::threads, site);
  }
  KERNELSIM_INLINE T Sum(T value, KERNELSIM_CUB_SITE) { return Reduce(value, cub::Sum(), Block::threads, site); }
  KERNELSIM_INLINE T Sum(T value, int valid, KERNELSIM_CUB_SITE) { return Reduce(value, cub::Sum(), valid, site); }
  template <int N>
  KERNELSIM_INLINE T Sum(T (&items)[N], KERNELSIM_CUB_SITE) {
    return Reduce(items, cub::Sum(), site);
  }

 private:
  TempStorage& memory_;
};

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0>
class BlockScan {
  using Block = details::Block<X, Y, Z>;

 public:
  struct TempStorage {
    details::Memory<T, Block::warps> of_warps;
    details::Memory<T, 1> prefix;
  };
  KERNELSIM_INLINE BlockScan(TempStorage& memory) : memory_(memory) {}

  // --- of one item in each thread ---
  template <class Operation>
  KERNELSIM_INLINE void InclusiveScan(T value, T& output, Operation operation, T& aggregate, KERNELSIM_CUB_SITE) {
    T one[1] = {value}, result[1];
    InclusiveScan(one, result, operation, aggregate, site);
    output = result[0];
  }
  template <class Operation>
  KERNELSIM_INLINE void InclusiveScan(T value, T& output, Operation operation, KERNELSIM_CUB_SITE) {
    T aggregate;
    InclusiveScan(value, output, operation, aggregate, site);
  }
  template <class Operation>
  KERNELSIM_INLINE void ExclusiveScan(T value, T& output, T initial, Operation operation, T& aggregate,
                                     KERNELSIM_CUB_SITE) {
    T one[1] = {value}, result[1];
    ExclusiveScan(one, result, initial, operation, aggregate, site);
    output = result[0];
  }
  template <class Operation>
  KERNELSIM_INLINE void ExclusiveScan(T value, T& output, T initial, Operation operation, KERNELSIM_CUB_SITE) {
    T aggregate;
    ExclusiveScan(value, output, initial, operation, aggregate, site);
  }
  KERNELSIM_INLINE void InclusiveSum(T value, T& output, KERNELSIM_CUB_SITE) {
    InclusiveScan(value, output, cub::Sum(), site);
  }
  KERNELSIM_INLINE void InclusiveSum(T value, T& output, T& aggregate, KERNELSIM_CUB_SITE) {
    InclusiveScan(value, output, cub::Sum(), aggregate, site);
  }
  KERNELSIM_INLINE void ExclusiveSum(T value, T& output, KERNELSIM_CUB_SITE) {
    ExclusiveScan(value, output, T(0), cub::Sum(), site);
  }
  KERNELSIM_INLINE void ExclusiveSum(T value, T& output, T& aggregate, KERNELSIM_CUB_SITE) {
    ExclusiveScan(value, output, T(0), cub::Sum(), aggregate, site);
  }

  // --- of several items in each thread, which follow each other ---
  template <int N, class Operation>
  KERNELSIM_INLINE void InclusiveScan(T (&items)[N], T (&output)[N], Operation operation, T& aggregate,
                                     KERNELSIM_CUB_SITE) {
    const Before before = scan(details::of_thread(items, operation), operation, aggregate, site);
    inclusive(items, output, operation, before);
  }
  template <int N, class Operation>
  KERNELSIM_INLINE void InclusiveScan(T (&items)[N], T (&output)[N], Operation operation, KERNELSIM_CUB_SITE) {
    T aggregate;
    InclusiveScan(items, output, operation, aggregate, site);
  }
  template <int N, class Operation>
  KERNELSIM_INLINE void ExclusiveScan(T (&items)[N], T (&output)[N], T initial, Operation operation, T& aggregate,
                                     KERNELSIM_CUB_SITE) {
    const Before before = scan(details::of_thread(items, operation), operation, aggregate, site);
    exclusive(items, output, operation, before.exists ? operation(initial, before.value) : initial);
  }
  template <int N, class Operation>
  KERNELSIM_INLINE void ExclusiveScan(T (&items)[N], T (&output)[N], T initial, Operation operation, KERNELSIM_CUB_SITE) {
    T aggregate;
    ExclusiveScan(items, output, initial, operation, aggregate, site);
  }
  template <int N>
  KERNELSIM_INLINE void InclusiveSum(T (&items)[N], T (&output)[N], KERNELSIM_CUB_SITE) {
    InclusiveScan(items, output, cub::Sum(), site);
  }
  template <int N>
  KERNELSIM_INLINE void InclusiveSum(T (&items)[N], T (&output)[N], T& aggregate, KERNELSIM_CUB_SITE) {
    InclusiveScan(items, output, cub::Sum(), aggregate, site);
  }
  template <int N>
  KERNELSIM_INLINE void ExclusiveSum(T (&items)[N], T (&output)[N], KERNELSIM_CUB_SITE) {
    ExclusiveScan(items, output, T(0), cub::Sum(), site);
  }
  template <int N>
  KERNELSIM_INLINE void ExclusiveSum(T (&items)[N], T (&output)[N], T& aggregate, KERNELSIM_CUB_SITE) {
    ExclusiveScan(items, output, T(0), cub::Sum(), aggregate, site);
  }

  // --- after what a function of the block's aggregate returns, which the first warp calls ---
  template <int N, class Operation, class Callback>
  KERNELSIM_INLINE void InclusiveScan(T (&items)[N], T (&output)[N], Operation operation, Callback& callback,
                                     KERNELSIM_CUB_SITE) {
    inclusive(items, output, operation, after(callback, details::of_thread(items, operation), operation, site));
  }
  template <int N, class Operation, class Callback>
  KERNELSIM_INLINE void ExclusiveScan(T (&items)[N], T (&output)[N], Operation operation, Callback& callback,
                                     KERNELSIM_CUB_SITE) {
    exclusive(items, output, operation, after(callback, details::of_thread(items, operation), operation, site).value);
  }
  template <class Operation, class Callback>
  KERNELSIM_INLINE void InclusiveScan(T value, T& output, Operation operation, Callback& callback, KERNELSIM_CUB_SITE) {
    output = operation(after(callback, value, operation, site).value, value);
  }
  template <class Operation, class Callback>
  KERNELSIM_INLINE void ExclusiveScan(T value, T& output, Operation operation, Callback& callback, KERNELSIM_CUB_SITE) {
    output = after(callback, value, operation, site).value;
  }
  template <class Callback>
  KERNELSIM_INLINE void InclusiveSum(T value, T& output, Callback& callback, KERNELSIM_CUB_SITE) {
    InclusiveScan(value, output, cub::Sum(), callback, site);
  }
  template <class Callback>
  KERNELSIM_INLINE void ExclusiveSum(T value, T& output, Callback& callback, KERNELSIM_CUB_SITE) {
    ExclusiveScan(value, output, cub::Sum(), callback, site);
  }

 private:
  // What comes before this thread's items.
  struct Before {
    T value;
    bool exists;
  };

  template <class Operation>
  KERNELSIM_INLINE Before scan(T value, Operation operation, T& aggregate, Site site) {
    const details::Lanes lanes{0, Block::lanes(), Block::lane()};
    const int warp = Block::warp(), lane = Block::lane();
    const T inclusive = details::inclusive(lanes, value, operation, site);
    Before before{lanes.from(inclusive, lane - 1, site), lane > 0};
    if (lane == lanes.count - 1) memory_.of_warps[warp] = inclusive;
    __syncthreads(site);
    aggregate = memory_.of_warps[0];
    for (int other = 1; other < Block::warps; other++) {
      if (other == warp) before = {before.exists ? operation(aggregate, before.value) : aggregate, true};
      aggregate = operation(aggregate, memory_.of_warps[other]);
    }
    return before;
  }
  template <class Callback, class Operation>
  KERNELSIM_INLINE Before after(Callback& callback, T value, Operation operation, Site site) {
    T aggregate;
    const Before before = scan(value, operation, aggregate, site);
    if (Block::warp() == 0) {
      const T prefix = callback(aggregate);
      if (Block::rank() == 0) memory_.prefix[0] = prefix;
    }
    __syncthreads(site);
    const T prefix = memory_.prefix[0];
    return {before.exists ? operation(prefix, before.value) : prefix, true};
  }
  template <int N, class Operation>
  KERNELSIM_INLINE static void inclusive(T (&items)[N], T (&output)[N], Operation operation, Before before) {
    T sum = before.exists ? operation(before.value, items[0]) : items[0];
    output[0] = sum;
    for (int i = 1; i < N; i++) output[i] = sum = operation(sum, items[i]);
  }
  template <int N, class Operation>
  KERNELSIM_INLINE static void exclusive(T (&items)[N], T (&output)[N], Operation operation, T sum) {
    for (int i = 0; i < N; i++) {
      const T next = operation(sum, items[i]);  // the output may be the items
      output[i] = sum;
      sum = next;
    }
  }

  TempStorage& memory_;
};

// --- blocks: loads, stores, exchanges, sorts ---

template <class T, int X, int N, bool = false, int Y = 1, int Z = 1, int = 0>
class BlockExchange {
  using Block = details::Block<X, Y, Z>;

 public:
  using TempStorage = details::Memory<T, Block::threads * N>;
  KERNELSIM_INLINE BlockExchange(TempStorage& memory) : memory_(memory) {}
  template <class Out>
  KERNELSIM_INLINE void StripedToBlocked(const T (&items)[N], Out (&output)[N], KERNELSIM_CUB_SITE) {
    for (int i = 0; i < N; i++) memory_[striped(i)] = items[i];
    __syncthreads(site);
    for (int i = 0; i < N; i++) output[i] = memory_[blocked(i)];
  }
  template <class Out>
  KERNELSIM_INLINE void BlockedToStriped(const T (&items)[N], Out (&output)[N], KERNELSIM_CUB_SITE) {
    for (int i = 0; i < N; i++) memory_[blocked(i)] = items[i];
    __syncthreads(site);
    for (int i = 0; i < N; i++) output[i] = memory_[striped(i)];
  }
  template <class Out, class Rank>
  KERNELSIM_INLINE void ScatterToBlocked(const T (&items)[N], Out (&output)[N], Rank (&ranks)[N], KERNELSIM_CUB_SITE) {
    for (int i = 0; i < N; i++) memory_[ranks[i]] = items[i];
    __syncthreads(site);
    for (int i = 0; i < N; i++) output[i] = memory_[blocked(i)];
  }
  template <class Out, class Rank>
  KERNELSIM_INLINE void ScatterToStriped(const T (&items)[N], Out (&output)[N], Rank (&ranks)[N], KERNELSIM_CUB_SITE) {
    for (int i = 0; i < N; i++) memory_[ranks[i]] = items[i];
    __syncthreads(site);
    for (int i = 0; i < N; i++) output[i] = memory_[striped(i)];
  }

 private:
  KERNELSIM_INLINE static int striped(int i) { return Block::rank() + i * Block::threads; }
  KERNELSIM_INLINE static int blocked(int i) { return Block::rank() * N + i; }
  TempStorage& memory_;
};

template <class T, int X, int N, BlockLoadAlgorithm A = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockLoad {
  using Block = details::Block<X, Y, Z>;
  using Exchange = BlockExchange<T, X, N, false, Y, Z>;
  static constexpr bool transposes = A >= BLOCK_LOAD_TRANSPOSE, is_striped = transposes || A == BLOCK_LOAD_STRIPED;

 public:
  struct TempStorage : std::conditional_t<transposes, typename Exchange::TempStorage, details::Nothing> {};
  KERNELSIM_INLINE BlockLoad(TempStorage& memory) : memory_(memory) {}
  template <class Source>
  KERNELSIM_INLINE void Load(Source source, T (&items)[N], KERNELSIM_CUB_SITE) {
    Load(source, items, Block::threads * N, site);
  }
  // Items past the valid ones stay as they are, or become the default.
  template <class Source>
  KERNELSIM_INLINE void Load(Source source, T (&items)[N], int valid, KERNELSIM_CUB_SITE) {
    for (int i = 0; i < N; i++) {
      const int at = is_striped ? Block::rank() + i * Block::threads : Block::rank() * N + i;
      if (at < valid) items[i] = source[at];
    }
    if constexpr (transposes) Exchange(memory_).StripedToBlocked(items, items, site);
  }
  template <class Source, class Default>
  KERNELSIM_INLINE void Load(Source source, T (&items)[N], int valid, Default otherwise, KERNELSIM_CUB_SITE) {
    for (int i = 0; i < N; i++) items[i] = otherwise;
    Load(source, items, valid, site);
  }

 private:
  TempStorage& memory_;
};

template <class T, int X, int N, BlockStoreAlgorithm A = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockStore {
  using Block = details::Block<X, Y, Z>;
  using Exchange = BlockExchange<T, X, N, false, Y, Z>;
  static constexpr bool transposes = A >= BLOCK_STORE_TRANSPOSE, is_striped = transposes || A == BLOCK_STORE_STRIPED;

 public:
  struct TempStorage : std::conditional_t<transposes, typename Exchange::TempStorage, details::Nothing> {};
  KERNELSIM_INLINE BlockStore(TempStorage& memory) : memory_(memory) {}
  template <class Target>
  KERNELSIM_INLINE void Store(Target target, T (&items)[N], KERNELSIM_CUB_SITE) {
    Store(target, items, Block::threads * N, site);
  }
  template <class Target>
  KERNELSIM_INLINE void Store(Target target, T (&items)[N], int valid, KERNELSIM_CUB_SITE) {
    if constexpr (transposes) Exchange(memory_).BlockedToStriped(items, items, site);
    for (int i = 0; i < N; i++) {
      const int at = is_striped ? Block::rank() + i * Block::threads : Block::rank() * N + i;
      if (at < valid) target[at] = items[i];
    }
  }

 private:
  TempStorage& memory_;
};

struct NullType {};

template <class Key, int X, int N, class Value = NullType, int = 4, bool = true,
          BlockScanAlgorithm = BLOCK_SCAN_WARP_SCANS, int = 0, int Y = 1, int Z = 1, int = 0>
class BlockRadixSort {
  using Block = details::Block<X, Y, Z>;
  static constexpr int count = Block::threads * N;

 public:
  struct TempStorage {
    details::Memory<Key, count> keys;
    details::Memory<Value, count> values;
  };
  KERNELSIM_INLINE BlockRadixSort(TempStorage& memory) : memory_(memory) {}
  KERNELSIM_INLINE void Sort(Key (&keys)[N], int begin = 0, int end = 8 * sizeof(Key), KERNELSIM_CUB_SITE) {
    sort(keys, static_cast<Value*>(nullptr), begin, end, false, false, site);
  }
  KERNELSIM_INLINE void SortDescending(Key (&keys)[N], int begin = 0, int end = 8 * sizeof(Key), KERNELSIM_CUB_SITE) {
    sort(keys, static_cast<Value*>(nullptr), begin, end, true, false, site);
  }
  KERNELSIM_INLINE void Sort(Key (&keys)[N], Value (&values)[N], int begin = 0, int end = 8 * sizeof(Key),
                            KERNELSIM_CUB_SITE) {
    sort(keys, values, begin, end, false, false, site);
  }
  KERNELSIM_INLINE void SortDescending(Key (&keys)[N], Value (&values)[N], int begin = 0, int end = 8 * sizeof(Key),
                                      KERNELSIM_CUB_SITE) {
    sort(keys, values, begin, end, true, false, site);
  }
  KERNELSIM_INLINE void SortBlockedToStriped(Key (&keys)[N], int begin = 0, int end = 8 * sizeof(Key),
                                            KERNELSIM_CUB_SITE) {
    sort(keys, static_cast<Value*>(nullptr), begin, end, false, true, site);
  }
  KERNELSIM_INLINE void SortBlockedToStriped(Key (&keys)[N], Value (&values)[N], int begin = 0,
                                            int end = 8 * sizeof(Key), KERNELSIM_CUB_SITE) {
    sort(keys, values, begin, end, false, true, site);
  }
  KERNELSIM_INLINE void SortDescendingBlockedToStriped(Key (&keys)[N], int begin = 0, int end = 8 * sizeof(Key),
                                                      KERNELSIM_CUB_SITE) {
    sort(keys, static_cast<Value*>(nullptr), begin, end, true, true, site);
  }
  KERNELSIM_INLINE void SortDescendingBlockedToStriped(Key (&keys)[N], Value (&values)[N], int begin = 0,
                                                      int end = 8 * sizeof(Key), KERNELSIM_CUB_SITE) {
    sort(keys, values, begin, end, true, true, site);
  }

 private:
  // Bits that are ordered as the numbers are: -0.0 as 0.0 is, as in CUB.
  KERNELSIM_INLINE static uint64_t bits(Key key) {
    uint64_t raw = kernelsim::widened(key);
    const uint64_t sign = uint64_t(1) << (8 * sizeof(Key) - 1);
    if constexpr (std::is_signed<Key>::value && std::is_integral<Key>::value) return raw ^ sign;
    if constexpr (!std::is_integral<Key>::value) {
      if (raw == sign) raw = 0;
      return raw & sign ? ~raw & (sign | (sign - 1)) : raw ^ sign;
    }
    return raw;
  }
  KERNELSIM_INLINE void sort(Key* keys, Value* values, int begin, int end, bool descends, bool to_striped, Site site) {
    for (int i = 0; i < N; i++) {
      memory_.keys[Block::rank() * N + i] = keys[i];
      if (values) memory_.values[Block::rank() * N + i] = values[i];
    }
    __syncthreads(site);
    const uint64_t looked_at = (end - begin >= 64 ? ~uint64_t(0) : (uint64_t(1) << (end - begin)) - 1) << begin;
    // Each item's place is the number of those before it; equal ones stay in their order.
    int places[N];
    for (int i = 0; i < N; i++) {
      const uint64_t mine = bits(keys[i]) & looked_at;
      places[i] = 0;
      for (int j = 0; j < count; j++) {
        const uint64_t other = bits(memory_.keys[j]) & looked_at;
        const bool before = descends ? other > mine : other < mine;
        places[i] += before || (other == mine && j < Block::rank() * N + i);
      }
    }
    __syncthreads(site);
    for (int i = 0; i < N; i++) {
      memory_.keys[places[i]] = keys[i];
      if (values) memory_.values[places[i]] = values[i];
    }
    __syncthreads(site);
    for (int i = 0; i < N; i++) {
      const int at = to_striped ? Block::rank() + i * Block::threads : Block::rank() * N + i;
      keys[i] = memory_.keys[at];
      if (values) values[i] = memory_.values[at];
    }
  }

  TempStorage& memory_;
};

#undef KERNELSIM_CUB_SITE
}  // namespace cub
