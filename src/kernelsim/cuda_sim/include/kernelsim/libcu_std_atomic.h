// The names of cuda::std for atomics, included by cuda/atomic: as those of cuda, for the scope of the whole system. They
// hide the host's, whose accesses the runtime would not see.
#pragma once

namespace cuda::std {

template <class T>
struct atomic : ::cuda::atomic<T> {
  using ::cuda::atomic<T>::atomic;
  using ::cuda::atomic<T>::operator=;
  atomic() = default;
  T fetch_min(T, memory_order = memory_order_seq_cst) = delete;  // only cuda's have these
  T fetch_max(T, memory_order = memory_order_seq_cst) = delete;
};
template <class T>
struct atomic_ref : ::cuda::atomic_ref<T> {
  using ::cuda::atomic_ref<T>::atomic_ref;
  using ::cuda::atomic_ref<T>::operator=;
  T fetch_min(T, memory_order = memory_order_seq_cst) = delete;
  T fetch_max(T, memory_order = memory_order_seq_cst) = delete;
};

#define KERNELSIM_NAMED(NAME, T) using atomic_##NAME = atomic<T>;
KERNELSIM_NAMED(bool, bool) KERNELSIM_NAMED(char, char) KERNELSIM_NAMED(schar, signed char)
KERNELSIM_NAMED(uchar, unsigned char) KERNELSIM_NAMED(short, short) KERNELSIM_NAMED(ushort, unsigned short)
KERNELSIM_NAMED(int, int) KERNELSIM_NAMED(uint, unsigned) KERNELSIM_NAMED(long, long)
KERNELSIM_NAMED(ulong, unsigned long) KERNELSIM_NAMED(llong, long long) KERNELSIM_NAMED(ullong, unsigned long long)
KERNELSIM_NAMED(int8_t, int8_t) KERNELSIM_NAMED(uint8_t, uint8_t) KERNELSIM_NAMED(int16_t, int16_t)
KERNELSIM_NAMED(uint16_t, uint16_t) KERNELSIM_NAMED(int32_t, int32_t) KERNELSIM_NAMED(uint32_t, uint32_t)
KERNELSIM_NAMED(int64_t, int64_t) KERNELSIM_NAMED(uint64_t, uint64_t) KERNELSIM_NAMED(intptr_t, intptr_t)
KERNELSIM_NAMED(uintptr_t, uintptr_t) KERNELSIM_NAMED(size_t, size_t) KERNELSIM_NAMED(ptrdiff_t, ptrdiff_t)
#undef KERNELSIM_NAMED

// libcu++ keeps a word, and so does this: a flag in shared memory is cleared by a store of its owner.
struct atomic_flag {
  KERNELSIM_INLINE bool test(memory_order order = memory_order_seq_cst) const { return word.load(order) != 0; }
  KERNELSIM_INLINE bool test_and_set(memory_order order = memory_order_seq_cst) {
    const bool was = word.exchange(1, order) != 0;
    if (was) kernelsim::yield_to_others();  // it may be a lock that another thread has
    return was;
  }
  KERNELSIM_INLINE void clear(memory_order order = memory_order_seq_cst) { word.store(0, order); }
  ::cuda::atomic<int> word;
};

// The functions on atomics. `value` is of the atomic's type, or of a pointer's differences.
template <class T>
using of_atomic = typename T::value_type;

template <class A>
KERNELSIM_INLINE of_atomic<A> atomic_load(const A* a) {
  return a->load();
}
template <class A>
KERNELSIM_INLINE of_atomic<A> atomic_load_explicit(const A* a, memory_order order) {
  return a->load(order);
}
template <class A>
KERNELSIM_INLINE void atomic_init(A* a, of_atomic<A> value) {
  a->store(value, memory_order_relaxed);
}
template <class A>
KERNELSIM_INLINE void atomic_store(A* a, of_atomic<A> value) {
  a->store(value);
}
template <class A>
KERNELSIM_INLINE void atomic_store_explicit(A* a, of_atomic<A> value, memory_order order) {
  a->store(value, order);
}
#define KERNELSIM_UPDATE(FUNCTION, MEMBER)                                                                         \
  template <class A, class V>                                                                                      \
  KERNELSIM_INLINE of_atomic<A> FUNCTION(A* a, V value) {                                                          \
    return a->MEMBER(value);                                                                                       \
  }                                                                                                                \
  template <class A, class V>                                                                                      \
  KERNELSIM_INLINE of_atomic<A> FUNCTION##_explicit(A* a, V value, memory_order order) {                           \
    return a->MEMBER(value, order);                                                                                \
  }
KERNELSIM_UPDATE(atomic_exchange, exchange)
KERNELSIM_UPDATE(atomic_fetch_add, fetch_add)
KERNELSIM_UPDATE(atomic_fetch_sub, fetch_sub)
KERNELSIM_UPDATE(atomic_fetch_and, fetch_and)
KERNELSIM_UPDATE(atomic_fetch_or, fetch_or)
KERNELSIM_UPDATE(atomic_fetch_xor, fetch_xor)
#undef KERNELSIM_UPDATE
#define KERNELSIM_COMPARE(KIND)                                                                                    \
  template <class A>                                                                                               \
  KERNELSIM_INLINE bool atomic_compare_exchange_##KIND(A* a, of_atomic<A>* expected, of_atomic<A> value) {         \
    return a->compare_exchange_##KIND(*expected, value);                                                           \
  }                                                                                                                \
  template <class A>                                                                                               \
  KERNELSIM_INLINE bool atomic_compare_exchange_##KIND##_explicit(A* a, of_atomic<A>* expected, of_atomic<A> value, \
                                                                 memory_order success, memory_order failure) {     \
    return a->compare_exchange_##KIND(*expected, value, success, failure);                                         \
  }
KERNELSIM_COMPARE(strong)
KERNELSIM_COMPARE(weak)
#undef KERNELSIM_COMPARE

KERNELSIM_INLINE void atomic_thread_fence(memory_order order) { ::cuda::atomic_thread_fence(order); }
KERNELSIM_INLINE void atomic_signal_fence(memory_order) {}

}  // namespace cuda::std
