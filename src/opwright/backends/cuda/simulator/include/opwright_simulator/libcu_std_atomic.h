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

#define OPWRIGHT_NAMED(NAME, T) using atomic_##NAME = atomic<T>;
OPWRIGHT_NAMED(bool, bool) OPWRIGHT_NAMED(char, char) OPWRIGHT_NAMED(schar, signed char)
OPWRIGHT_NAMED(uchar, unsigned char) OPWRIGHT_NAMED(short, short) OPWRIGHT_NAMED(ushort, unsigned short)
OPWRIGHT_NAMED(int, int) OPWRIGHT_NAMED(uint, unsigned) OPWRIGHT_NAMED(long, long)
OPWRIGHT_NAMED(ulong, unsigned long) OPWRIGHT_NAMED(llong, long long) OPWRIGHT_NAMED(ullong, unsigned long long)
OPWRIGHT_NAMED(int8_t, int8_t) OPWRIGHT_NAMED(uint8_t, uint8_t) OPWRIGHT_NAMED(int16_t, int16_t)
OPWRIGHT_NAMED(uint16_t, uint16_t) OPWRIGHT_NAMED(int32_t, int32_t) OPWRIGHT_NAMED(uint32_t, uint32_t)
OPWRIGHT_NAMED(int64_t, int64_t) OPWRIGHT_NAMED(uint64_t, uint64_t) OPWRIGHT_NAMED(intptr_t, intptr_t)
OPWRIGHT_NAMED(uintptr_t, uintptr_t) OPWRIGHT_NAMED(size_t, size_t) OPWRIGHT_NAMED(ptrdiff_t, ptrdiff_t)
#undef OPWRIGHT_NAMED

// libcu++ keeps a word, and so does this: a flag in shared memory is cleared by a store of its owner.
struct atomic_flag {
  OPWRIGHT_INLINE bool test(memory_order order = memory_order_seq_cst) const { return word.load(order) != 0; }
  OPWRIGHT_INLINE bool test_and_set(memory_order order = memory_order_seq_cst) {
    const bool was = word.exchange(1, order) != 0;
    if (was) opwright_sim::yield_to_others();  // it may be a lock that another thread has
    return was;
  }
  OPWRIGHT_INLINE void clear(memory_order order = memory_order_seq_cst) { word.store(0, order); }
  ::cuda::atomic<int> word;
};

// The functions on atomics. `value` is of the atomic's type, or of a pointer's differences.
template <class T>
using of_atomic = typename T::value_type;

template <class A>
OPWRIGHT_INLINE of_atomic<A> atomic_load(const A* a) {
  return a->load();
}
template <class A>
OPWRIGHT_INLINE of_atomic<A> atomic_load_explicit(const A* a, memory_order order) {
  return a->load(order);
}
template <class A>
OPWRIGHT_INLINE void atomic_init(A* a, of_atomic<A> value) {
  a->store(value, memory_order_relaxed);
}
template <class A>
OPWRIGHT_INLINE void atomic_store(A* a, of_atomic<A> value) {
  a->store(value);
}
template <class A>
OPWRIGHT_INLINE void atomic_store_explicit(A* a, of_atomic<A> value, memory_order order) {
  a->store(value, order);
}
#define OPWRIGHT_UPDATE(FUNCTION, MEMBER)                                                                          \
  template <class A, class V>                                                                                      \
  OPWRIGHT_INLINE of_atomic<A> FUNCTION(A* a, V value) {                                                           \
    return a->MEMBER(value);                                                                                       \
  }                                                                                                                \
  template <class A, class V>                                                                                      \
  OPWRIGHT_INLINE of_atomic<A> FUNCTION##_explicit(A* a, V value, memory_order order) {                            \
    return a->MEMBER(value, order);                                                                                \
  }
OPWRIGHT_UPDATE(atomic_exchange, exchange)
OPWRIGHT_UPDATE(atomic_fetch_add, fetch_add)
OPWRIGHT_UPDATE(atomic_fetch_sub, fetch_sub)
OPWRIGHT_UPDATE(atomic_fetch_and, fetch_and)
OPWRIGHT_UPDATE(atomic_fetch_or, fetch_or)
OPWRIGHT_UPDATE(atomic_fetch_xor, fetch_xor)
#undef OPWRIGHT_UPDATE
#define OPWRIGHT_COMPARE(KIND)                                                                                     \
  template <class A>                                                                                               \
  OPWRIGHT_INLINE bool atomic_compare_exchange_##KIND(A* a, of_atomic<A>* expected, of_atomic<A> value) {          \
    return a->compare_exchange_##KIND(*expected, value);                                                           \
  }                                                                                                                \
  template <class A>                                                                                               \
  OPWRIGHT_INLINE bool atomic_compare_exchange_##KIND##_explicit(A* a, of_atomic<A>* expected, of_atomic<A> value, \
                                                                 memory_order success, memory_order failure) {     \
    return a->compare_exchange_##KIND(*expected, value, success, failure);                                         \
  }
OPWRIGHT_COMPARE(strong)
OPWRIGHT_COMPARE(weak)
#undef OPWRIGHT_COMPARE

OPWRIGHT_INLINE void atomic_thread_fence(memory_order order) { ::cuda::atomic_thread_fence(order); }
OPWRIGHT_INLINE void atomic_signal_fence(memory_order) {}

}  // namespace cuda::std
