// Atomic functions. Each is a compare-and-swap loop over the bits, so that all types work in the same way.
#pragma once

#include "float16.h"
#include "runtime_calls.h"
#include "vector_types.h"

namespace opwright_sim {

template <unsigned size>
struct Word;
template <>
struct Word<1> {
  using type = uint8_t;
};
template <>
struct Word<2> {
  using type = uint16_t;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<8> {
  using type = uint64_t;
};

// Outlined and uninstrumented: a checked build checks an atomic access once, in note_atomic.
#ifdef __clang__  // which instruments atomics even where no_sanitize says otherwise
#define OPWRIGHT_UNCHECKED __attribute__((noinline, disable_sanitizer_instrumentation, no_sanitize("coverage")))
#else
#define OPWRIGHT_UNCHECKED \
  __attribute__((noinline, no_sanitize("thread"), no_sanitize("undefined"), no_sanitize_coverage))
#endif
template <class W>
OPWRIGHT_UNCHECKED W load_word(const W* address) {
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}
template <class W>
OPWRIGHT_UNCHECKED void store_word(W* address, W value) {
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
}
// Returns what was there: by value, as a variable in memory would be checked at each use.
template <class W>
OPWRIGHT_UNCHECKED W swap_word(W* address, W expected, W desired) {
  __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  return expected;
}

template <class T, class Update>
OPWRIGHT_INLINE T atomic_update(T* address, Update update, Order order = Order::unstated) {
  using W = typename Word<sizeof(T)>::type;
  note_atomic(address, sizeof(T), AtomicKind::read_modify_write, order);
  W* word = reinterpret_cast<W*>(address);
  W before = load_word(word);
  for (;;) {
    const W found = swap_word(word, before, bits_as<W>(update(bits_as<T>(before))));
    if (found == before) return bits_as<T>(before);
    before = found;
    note_atomic(address, sizeof(T), AtomicKind::read_modify_write, order);  // others ran meanwhile: it sees what they wrote
  }
}

// The same of an update without a branch. In a checked build no other thread can run in the midst of that.
template <class T, class Update>
OPWRIGHT_INLINE T atomic_step(T* address, Update update, Order order) {
#ifdef __SANITIZE_THREAD__
  using W = typename Word<sizeof(T)>::type;
  note_atomic(address, sizeof(T), AtomicKind::read_modify_write, order);
  W* word = reinterpret_cast<W*>(address);
  const W before = load_word(word);
  store_word(word, bits_as<W>(update(bits_as<T>(before))));
  return bits_as<T>(before);
#else
  return atomic_update(address, update, order);
#endif
}

// A load and a store that are atomic: PTX's .relaxed, .acquire and .release.
template <class T>
OPWRIGHT_INLINE T atomic_load(const T* address, Order order) {
  note_atomic(address, sizeof(T), AtomicKind::read, order);
  return bits_as<T>(load_word(reinterpret_cast<const typename Word<sizeof(T)>::type*>(address)));
}
template <class T>
OPWRIGHT_INLINE void atomic_store(T* address, T value, Order order) {
  note_atomic(address, sizeof(T), AtomicKind::write, order);
  store_word(reinterpret_cast<typename Word<sizeof(T)>::type*>(address), bits_as<typename Word<sizeof(T)>::type>(value));
}
// A comparison that fails is a load, in the order that is stated for it.
template <class T>
OPWRIGHT_INLINE bool atomic_compare(T* address, T& expected, T value, Order success, Order failure) {
  using W = typename Word<sizeof(T)>::type;
  W* word = reinterpret_cast<W*>(address);
  W before = load_word(word);
  const W wanted = bits_as<W>(expected);  // by its bits, as the hardware compares
  while (before == wanted) {
    note_atomic(address, sizeof(T), AtomicKind::read_modify_write, success);
    before = swap_word(word, wanted, bits_as<W>(value));
    if (before == wanted) return true;
  }
  note_atomic(address, sizeof(T), AtomicKind::read, failure);
  expected = bits_as<T>(before);
  return false;
}
#undef OPWRIGHT_UNCHECKED

}  // namespace opwright_sim

// Inline PTX states an order; CUDA's functions do not.
#define OPWRIGHT_ORDER opwright_sim::Order order = opwright_sim::Order::unstated
#define OPWRIGHT_ATOMIC_ONE(UPDATE, NAME, T, EXPRESSION)                                          \
  OPWRIGHT_INLINE T NAME(T* address, T value, OPWRIGHT_ORDER) {                                   \
    return opwright_sim::UPDATE(address, [value](T old) -> T { return EXPRESSION; }, order);      \
  }
// The scopes of a block and of the system behave here like the device's.
#define OPWRIGHT_ATOMIC_OF(UPDATE, NAME, T, EXPRESSION)       \
  OPWRIGHT_ATOMIC_ONE(UPDATE, NAME, T, EXPRESSION)            \
  OPWRIGHT_ATOMIC_ONE(UPDATE, NAME##_block, T, EXPRESSION)    \
  OPWRIGHT_ATOMIC_ONE(UPDATE, NAME##_system, T, EXPRESSION)
#define OPWRIGHT_ATOMIC(NAME, T, EXPRESSION) OPWRIGHT_ATOMIC_OF(atomic_update, NAME, T, EXPRESSION)
#define OPWRIGHT_ATOMIC_STEP(NAME, T, EXPRESSION) OPWRIGHT_ATOMIC_OF(atomic_step, NAME, T, EXPRESSION)

#define OPWRIGHT_ATOMIC_INTEGER(T, U)                          \
  OPWRIGHT_ATOMIC_STEP(atomicAdd, T, static_cast<T>(static_cast<U>(old) + static_cast<U>(value)))          \
  OPWRIGHT_ATOMIC_STEP(atomicSub, T, static_cast<T>(static_cast<U>(old) - static_cast<U>(value)))          \
  OPWRIGHT_ATOMIC_STEP(atomicExch, T, (void(old), value))           \
  OPWRIGHT_ATOMIC(atomicMin, T, old < value ? old : value)     \
  OPWRIGHT_ATOMIC(atomicMax, T, old < value ? value : old)     \
  OPWRIGHT_ATOMIC_STEP(atomicAnd, T, old & value)                   \
  OPWRIGHT_ATOMIC_STEP(atomicOr, T, old | value)                    \
  OPWRIGHT_ATOMIC_STEP(atomicXor, T, old ^ value)
OPWRIGHT_ATOMIC_INTEGER(int, unsigned)
OPWRIGHT_ATOMIC_INTEGER(unsigned, unsigned)
OPWRIGHT_ATOMIC_INTEGER(long long, unsigned long long)
OPWRIGHT_ATOMIC_INTEGER(unsigned long long, unsigned long long)
OPWRIGHT_ATOMIC_INTEGER(unsigned long, unsigned long)
OPWRIGHT_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
OPWRIGHT_ATOMIC(atomicDec, unsigned, old == 0u || old > value ? value : old - 1u)
OPWRIGHT_ATOMIC_STEP(atomicAdd, float, old + value)
OPWRIGHT_ATOMIC_STEP(atomicExch, float, (void(old), value))
OPWRIGHT_ATOMIC_STEP(atomicAdd, double, old + value)
OPWRIGHT_ATOMIC_STEP(atomicExch, double, (void(old), value))
OPWRIGHT_ATOMIC(atomicAdd, __half, opwright_sim::sum(old, value))
OPWRIGHT_ATOMIC(atomicAdd, __nv_bfloat16, opwright_sim::sum(old, value))

// A pair is two atomic operations, as on the GPU, which promises no more.
#define OPWRIGHT_ATOMIC_PAIR(T)                                  \
  OPWRIGHT_INLINE T atomicAdd(T* address, T value, OPWRIGHT_ORDER) { \
    T old;                                                       \
    old.x = atomicAdd(&address->x, value.x, order);              \
    old.y = atomicAdd(&address->y, value.y, order);              \
    return old;                                                  \
  }
OPWRIGHT_ATOMIC_PAIR(__half2)
OPWRIGHT_ATOMIC_PAIR(__nv_bfloat162)
OPWRIGHT_ATOMIC_PAIR(float2)

#define OPWRIGHT_CAS_ONE(NAME, T)                                                                              \
  OPWRIGHT_INLINE T NAME(T* address, T compare, T value, OPWRIGHT_ORDER) {                                     \
    const T old = opwright_sim::atomic_update(address, [=](T now) { return now == compare ? value : now; }, order); \
    if (!(old == compare)) opwright_sim::yield_to_others(); /* it may be a lock that another thread holds */   \
    return old;                                                                                                \
  }
#define OPWRIGHT_CAS(T)                \
  OPWRIGHT_CAS_ONE(atomicCAS, T)       \
  OPWRIGHT_CAS_ONE(atomicCAS_block, T) \
  OPWRIGHT_CAS_ONE(atomicCAS_system, T)
OPWRIGHT_CAS(int)
OPWRIGHT_CAS(unsigned)
OPWRIGHT_CAS(unsigned long long)
OPWRIGHT_CAS(unsigned long)
OPWRIGHT_CAS(long long)
OPWRIGHT_CAS(unsigned short)
#undef OPWRIGHT_CAS
#undef OPWRIGHT_CAS_ONE
#undef OPWRIGHT_ATOMIC
#undef OPWRIGHT_ATOMIC_STEP
#undef OPWRIGHT_ATOMIC_OF
#undef OPWRIGHT_ATOMIC_ONE
#undef OPWRIGHT_ATOMIC_INTEGER
#undef OPWRIGHT_ATOMIC_PAIR
#undef OPWRIGHT_ORDER
