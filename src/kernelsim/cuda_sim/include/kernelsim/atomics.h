// Atomic functions. Each is a compare-and-swap loop over the bits, so that all types work in the same way.
#pragma once

#include "float16.h"
#include "runtime_calls.h"
#include "vector_types.h"

namespace kernelsim {

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
#define KERNELSIM_UNCHECKED __attribute__((noinline, disable_sanitizer_instrumentation, no_sanitize("coverage")))
#else
#define KERNELSIM_UNCHECKED \
  __attribute__((noinline, no_sanitize("thread"), no_sanitize("undefined"), no_sanitize_coverage))
#endif
template <class W>
KERNELSIM_UNCHECKED W load_word(const W* address) {
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}
template <class W>
KERNELSIM_UNCHECKED void store_word(W* address, W value) {
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
}
// Returns what was there: by value, as a variable in memory would be checked at each use.
template <class W>
KERNELSIM_UNCHECKED W swap_word(W* address, W expected, W desired) {
  __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  return expected;
}

template <class T, class Update>
KERNELSIM_INLINE T atomic_update(T* address, Update update, Order order = Order::unstated) {
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
KERNELSIM_INLINE T atomic_step(T* address, Update update, Order order) {
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
KERNELSIM_INLINE T atomic_load(const T* address, Order order) {
  note_atomic(address, sizeof(T), AtomicKind::read, order);
  return bits_as<T>(load_word(reinterpret_cast<const typename Word<sizeof(T)>::type*>(address)));
}
template <class T>
KERNELSIM_INLINE void atomic_store(T* address, T value, Order order) {
  note_atomic(address, sizeof(T), AtomicKind::write, order);
  store_word(reinterpret_cast<typename Word<sizeof(T)>::type*>(address), bits_as<typename Word<sizeof(T)>::type>(value));
}
// A comparison that fails is a load, in the order that is stated for it.
template <class T>
KERNELSIM_INLINE bool atomic_compare(T* address, T& expected, T value, Order success, Order failure) {
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
#undef KERNELSIM_UNCHECKED

}  // namespace kernelsim

// Inline PTX states an order; CUDA's functions do not.
#define KERNELSIM_ORDER kernelsim::Order order = kernelsim::Order::unstated
#define KERNELSIM_ATOMIC_ONE(UPDATE, NAME, T, EXPRESSION)                                         \
  KERNELSIM_INLINE T NAME(T* address, T value, KERNELSIM_ORDER) {                                 \
    return kernelsim::UPDATE(address, [value](T old) -> T { return EXPRESSION; }, order);         \
  }
// The scopes of a block and of the system behave here like the device's.
#define KERNELSIM_ATOMIC_OF(UPDATE, NAME, T, EXPRESSION)      \
  KERNELSIM_ATOMIC_ONE(UPDATE, NAME, T, EXPRESSION)           \
  KERNELSIM_ATOMIC_ONE(UPDATE, NAME##_block, T, EXPRESSION)   \
  KERNELSIM_ATOMIC_ONE(UPDATE, NAME##_system, T, EXPRESSION)
#define KERNELSIM_ATOMIC(NAME, T, EXPRESSION) KERNELSIM_ATOMIC_OF(atomic_update, NAME, T, EXPRESSION)
#define KERNELSIM_ATOMIC_STEP(NAME, T, EXPRESSION) KERNELSIM_ATOMIC_OF(atomic_step, NAME, T, EXPRESSION)

#define KERNELSIM_ATOMIC_INTEGER(T, U)                         \
  KERNELSIM_ATOMIC_STEP(atomicAdd, T, static_cast<T>(static_cast<U>(old) + static_cast<U>(value)))         \
  KERNELSIM_ATOMIC_STEP(atomicSub, T, static_cast<T>(static_cast<U>(old) - static_cast<U>(value)))         \
  KERNELSIM_ATOMIC_STEP(atomicExch, T, (void(old), value))          \
  KERNELSIM_ATOMIC(atomicMin, T, old < value ? old : value)    \
  KERNELSIM_ATOMIC(atomicMax, T, old < value ? value : old)    \
  KERNELSIM_ATOMIC_STEP(atomicAnd, T, old & value)                  \
  KERNELSIM_ATOMIC_STEP(atomicOr, T, old | value)                   \
  KERNELSIM_ATOMIC_STEP(atomicXor, T, old ^ value)
KERNELSIM_ATOMIC_INTEGER(int, unsigned)
KERNELSIM_ATOMIC_INTEGER(unsigned, unsigned)
KERNELSIM_ATOMIC_INTEGER(long long, unsigned long long)
KERNELSIM_ATOMIC_INTEGER(unsigned long long, unsigned long long)
KERNELSIM_ATOMIC_INTEGER(unsigned long, unsigned long)
KERNELSIM_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
KERNELSIM_ATOMIC(atomicDec, unsigned, old == 0u || old > value ? value : old - 1u)
KERNELSIM_ATOMIC_STEP(atomicAdd, float, old + value)
KERNELSIM_ATOMIC_STEP(atomicExch, float, (void(old), value))
KERNELSIM_ATOMIC_STEP(atomicAdd, double, old + value)
KERNELSIM_ATOMIC_STEP(atomicExch, double, (void(old), value))
KERNELSIM_ATOMIC(atomicAdd, __half, kernelsim::sum(old, value))
KERNELSIM_ATOMIC(atomicAdd, __nv_bfloat16, kernelsim::sum(old, value))

// A pair is two atomic operations, as on the GPU, which promises no more.
#define KERNELSIM_ATOMIC_PAIR(T)                                 \
  KERNELSIM_INLINE T atomicAdd(T* address, T value, KERNELSIM_ORDER) { \
    T old;                                                       \
    old.x = atomicAdd(&address->x, value.x, order);              \
    old.y = atomicAdd(&address->y, value.y, order);              \
    return old;                                                  \
  }
KERNELSIM_ATOMIC_PAIR(__half2)
KERNELSIM_ATOMIC_PAIR(__nv_bfloat162)
KERNELSIM_ATOMIC_PAIR(float2)

#define KERNELSIM_CAS_ONE(NAME, T)                                                                             \
  KERNELSIM_INLINE T NAME(T* address, T compare, T value, KERNELSIM_ORDER) {                                   \
    const T old = kernelsim::atomic_update(address, [=](T now) { return now == compare ? value : now; }, order);    \
    if (!(old == compare)) kernelsim::yield_to_others(); /* it may be a lock that another thread holds */      \
    return old;                                                                                                \
  }
#define KERNELSIM_CAS(T)               \
  KERNELSIM_CAS_ONE(atomicCAS, T)      \
  KERNELSIM_CAS_ONE(atomicCAS_block, T) \
  KERNELSIM_CAS_ONE(atomicCAS_system, T)
KERNELSIM_CAS(int)
KERNELSIM_CAS(unsigned)
KERNELSIM_CAS(unsigned long long)
KERNELSIM_CAS(unsigned long)
KERNELSIM_CAS(long long)
KERNELSIM_CAS(unsigned short)
#undef KERNELSIM_CAS
#undef KERNELSIM_CAS_ONE
#undef KERNELSIM_ATOMIC
#undef KERNELSIM_ATOMIC_STEP
#undef KERNELSIM_ATOMIC_OF
#undef KERNELSIM_ATOMIC_ONE
#undef KERNELSIM_ATOMIC_INTEGER
#undef KERNELSIM_ATOMIC_PAIR
#undef KERNELSIM_ORDER
