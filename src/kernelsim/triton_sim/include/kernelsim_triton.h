// What the C++ that is generated from TTIR needs: tensors, number formats, checked accesses, programs over threads.
#pragma once
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// For two thirds of a small kernel's compile time, g++ would read <cmath>, <tuple>, <thread> and others, and link the
// C++ library. So what is needed of it is written out here, and the threads are those of kernelsim_programs.cpp, which is
// compiled once.
extern "C" int __cxa_thread_atexit_impl(void (*)(void*), void*, void*);  // of the C library
extern "C" __attribute__((visibility("hidden"))) int __cxa_thread_atexit(void (*end)(void*), void* what, void* library) {
  return __cxa_thread_atexit_impl(end, what, library);
}

// The results of a function that has several: tie(a, b) = f().
template <class... T> struct Results;
template <> struct Results<> {};
template <class T, class... R> struct Results<T, R...> {
  T first;
  Results<R...> rest;
  template <class U, class... S> void operator=(const Results<U, S...>& o) { first = o.first; rest = o.rest; }
  template <class U, class... S> operator Results<U, S...>() const { return {(U)first, (Results<S...>)rest}; }
};
inline Results<> tie() { return {}; }
template <class T, class... R> inline Results<T&, R&...> tie(T& first, R&... rest) { return {first, tie(rest...)}; }
inline Results<> results() { return {}; }
template <class T, class... R> inline Results<T, R...> results(T first, R... rest) { return {first, results(rest...)}; }

namespace num {
template <class T> inline T max(T a, T b) { return a > b ? a : b; }
template <class T> inline T min(T a, T b) { return a < b ? a : b; }
#define UNARY(name) \
  inline float name(float x) { return __builtin_##name##f(x); } \
  inline double name(double x) { return __builtin_##name(x); }
#define BINARY(name) \
  inline float name(float x, float y) { return __builtin_##name##f(x, y); } \
  inline double name(double x, double y) { return __builtin_##name(x, y); }
UNARY(exp) UNARY(exp2) UNARY(expm1) UNARY(log) UNARY(log2) UNARY(log10) UNARY(log1p) UNARY(sin) UNARY(cos) UNARY(tan)
UNARY(asin) UNARY(acos) UNARY(atan) UNARY(sinh) UNARY(cosh) UNARY(tanh) UNARY(asinh) UNARY(acosh) UNARY(atanh)
UNARY(sqrt) UNARY(cbrt) UNARY(erf) UNARY(erfc) UNARY(tgamma) UNARY(lgamma) UNARY(floor) UNARY(ceil) UNARY(trunc)
UNARY(round) UNARY(rint) UNARY(nearbyint) UNARY(fabs)
BINARY(atan2) BINARY(pow) BINARY(fmod) BINARY(hypot) BINARY(fmax) BINARY(fmin) BINARY(copysign) BINARY(fdim)
BINARY(remainder)
inline float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
inline double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
template <class T> inline bool isnan(T x) { return x != x; }
template <class T> inline bool isinf(T x) { return __builtin_isinf(x); }
template <class T> inline bool isfinite(T x) { return __builtin_isfinite(x); }
template <class T> inline bool signbit(T x) { return __builtin_signbit(x); }
inline float rsqrt(float x) { return 1 / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
UNARY(logb) UNARY(j0) UNARY(j1) UNARY(y0) UNARY(y1)
BINARY(nextafter)
template <class T> inline T abs(T x) { return x < 0 ? -x : x; }
template <class T> inline T add(T x, T y) { return x + y; }
template <class T> inline T sub(T x, T y) { return x - y; }
template <class T> inline T mul(T x, T y) { return x * y; }
template <class T> inline T div(T x, T y) { return x / y; }
template <class T> inline T rcp(T x) { return 1 / x; }
template <class T> inline T exp10(T x) { return pow(T(10), x); }
template <class T> inline T rcbrt(T x) { return 1 / cbrt(x); }
template <class T> inline T rhypot(T x, T y) { return 1 / hypot(x, y); }
template <class T> inline T norm3d(T x, T y, T z) { return sqrt(x * x + y * y + z * z); }
template <class T> inline T norm4d(T x, T y, T z, T w) { return sqrt(x * x + y * y + z * z + w * w); }
template <class T> inline T normcdf(T x) { return erfc(-x * T(0.70710678118654752440)) / 2; }
template <class T> inline T saturate(T x) { return x > 0 ? x < 1 ? x : T(1) : T(0); }
// Of the remainder: exact at whole and half numbers.
template <class T> inline T sinpi(T x) { T r = fmod(x, T(2)); return r == trunc(r) ? copysign(T(0), x) : sin(r * T(3.14159265358979323846)); }
template <class T> inline T cospi(T x) { T r = fmod(fabs(x), T(2)); return r == T(0.5) || r == T(1.5) ? T(0) : cos(r * T(3.14159265358979323846)); }
inline float powi(float x, int n) { return __builtin_powif(x, n); }
inline double powi(double x, int n) { return __builtin_powi(x, n); }
inline int ilogb(float x) { return __builtin_ilogbf(x); }
inline int ilogb(double x) { return __builtin_ilogb(x); }
inline int popc(int32_t x) { return __builtin_popcount(x); }
inline int popc(int64_t x) { return __builtin_popcountll(x); }
inline int clz(int32_t x) { return x ? __builtin_clz(x) : 32; }
inline int clz(int64_t x) { return x ? __builtin_clzll(x) : 64; }
inline int ffs(int32_t x) { return __builtin_ffs(x); }
inline int ffs(int64_t x) { return __builtin_ffsll(x); }
template <class T> inline T brev(T x) {
  T r = 0;
  for (size_t i = 0; i < 8 * sizeof(T); i++) r |= ((x >> i) & 1) << (8 * sizeof(T) - 1 - i);
  return r;
}
inline int32_t mulhi(int32_t x, int32_t y) { return (int32_t)(((int64_t)x * y) >> 32); }
inline uint32_t umulhi(uint32_t x, uint32_t y) { return (uint32_t)(((uint64_t)x * y) >> 32); }
inline int64_t mulhi(int64_t x, int64_t y) { return (int64_t)(((__int128)x * y) >> 64); }
}  // namespace num
static constexpr float INF = __builtin_inff(), NOT_A_NUMBER = __builtin_nanf("");

struct Locked {  // for a few instructions
  bool& flag;
  explicit Locked(bool& f) : flag(f) { while (__atomic_test_and_set(&flag, __ATOMIC_ACQUIRE)) sched_yield(); }
  ~Locked() { __atomic_clear(&flag, __ATOMIC_RELEASE); }
};
typedef uint64_t P;  // an address

// A format narrower than float with E exponent and M mantissa bits. Arithmetic is float's, rounded once to even.
template <class B, int E, int M, bool HAS_INF> struct Narrow {
  B bits = 0;
  static constexpr int BIAS = (1 << (E - 1)) - 1;
  Narrow() = default;
  Narrow(double v) : Narrow((float)v) {}
  Narrow(int v) : Narrow((float)v) {}
  Narrow(int64_t v) : Narrow((float)v) {}
  Narrow(float v) {
    uint32_t u; memcpy(&u, &v, 4);
    B sign = (B)((u >> 31) << (E + M)); u &= 0x7fffffff;
    if (u > 0x7f800000) { bits = (B)(sign | ((1 << (E + M)) - 1)); return; }
    float a; memcpy(&a, &u, 4);
    int e = num::max(a > 0 && a < INF ? __builtin_ilogb(a) : 0, 1 - BIAS);
    if (a == 0) { bits = sign; return; }
    const int top = (1 << E) - 1;
    uint32_t largest = HAS_INF ? (uint32_t)top << M : ((uint32_t)(top + 1) << M) - 2;
    uint64_t q = a == INF ? ~0ull : (uint64_t)num::nearbyint(num::ldexp((double)a, M - e));
    uint64_t r = a == INF ? largest : q + ((uint64_t)(e + BIAS - 1) << M);
    bits = (B)(sign | (B)num::min<uint64_t>(r, largest));  // CUDA saturates where there is no infinity
  }
  operator float() const {
    uint32_t e = (bits >> M) & ((1 << E) - 1), m = bits & ((1 << M) - 1);
    float v;
    if (HAS_INF && e == (1 << E) - 1) v = m ? NOT_A_NUMBER : INF;
    else if (!HAS_INF && e == (1 << E) - 1 && m == (1 << M) - 1) v = NOT_A_NUMBER;
    else v = e ? num::ldexp((float)(m | (1 << M)), (int)e - BIAS - M) : num::ldexp((float)m, 1 - BIAS - M);
    return (bits >> (E + M)) & 1 ? -v : v;
  }
};
typedef Narrow<uint8_t, 4, 3, false> f8e4m3;
typedef Narrow<uint8_t, 5, 2, true> f8e5m2;
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  bf16(float v) {
    uint32_t u; memcpy(&u, &v, 4);
    bits = (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  bf16(double v) : bf16((float)v) {}
  bf16(int v) : bf16((float)v) {}
  bf16(int64_t v) : bf16((float)v) {}
  operator float() const { uint32_t u = (uint32_t)bits << 16; float v; memcpy(&v, &u, 4); return v; }
};
typedef _Float16 f16;

template <class To, class From> inline To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r; memcpy(&r, &v, sizeof r); return r;
}
// Tensor cores read ten bits of a float's mantissa. Triton hands floats to them as they are, so that the other bits are
// cut off, not rounded (its PTX has no cvt.rna.tf32).
inline float tf32(float v) { return v != v ? v : bits_as<float>(bits_as<uint32_t>(v) & 0xffffe000); }

// The values of a tensor in row-major order. Copies share them: a value never changes after its definition.
// The elements and scales of OCP's microscaling formats that are no other types: four bits, and powers of two.
inline float e2m1(int bits) {
  static const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return bits & 8 ? -magnitudes[bits & 7] : magnitudes[bits & 7];
}
inline float e8m0(uint8_t exponent) {
  return bits_as<float>(exponent == 255 ? 0x7fc00000u : exponent == 0 ? 0x400000u : (uint32_t)exponent << 23);
}

template <class T, int N> struct Tn {
  struct Held { T* data; int count; Held* next; };
  struct Spare {
    Held* first = nullptr;
    ~Spare() {  // threads end with their launch
      while (Held* held = first) { first = held->next; free(held->data); free(held); }
    }
  };
  static Spare& spare() { static thread_local Spare s; return s; }
  Held* held;
  Tn() {
    auto& s = spare();
    held = s.first;
    if (held) s.first = held->next;
    else {
      held = (Held*)malloc(sizeof(Held));
      held->data = (T*)aligned_alloc(64, (N * sizeof(T) + 63) / 64 * 64);
    }
    held->count = 1;
  }
  Tn(const Tn& o) : held(o.held) { held->count++; }
  Tn& operator=(const Tn& o) { o.held->count++; drop(); held = o.held; return *this; }
  ~Tn() { drop(); }
  void drop() { if (--held->count == 0) { auto& s = spare(); held->next = s.first; s.first = held; } }
  T* __restrict__ p() const { return held->data; }
  T& operator[](int i) const { return held->data[i]; }
};

enum Kind { OUT_OF_BOUNDS = 1, UNINITIALISED, MISALIGNED, RACE, ASSERTION, READ_ONLY };
// An element of a region has 2**shift bytes. Of each: whether it has been written, by whom last, and who has read it.
// element: the place in its block of what was stored last. Nobody writes to a constant region, so nobody is noted there. read_only: of each byte, whether no kernel may write it;
// null: all may be written.
struct Region {
  P begin, end; uint32_t shift, constant; uint8_t* written; uint64_t* writer; uint32_t* reader; uint32_t* element;
  const uint8_t* read_only;
};
struct Finding { uint32_t kind, site, region, writes; uint32_t program[3], other; int64_t element, offset; };
struct Request {
  Region* regions; uint64_t region_count; Finding* findings; uint64_t finding_count, finding_limit;
  uint32_t grid[3]; const int32_t* sources;  // the region of each argument of the kernel, or -1
  uint8_t left_out;  // the bytes of elements that a mask leaves out, where the load names no other
  uint8_t one_warp;  // whether a program is one warp, whose threads go together
};
static Request* request;
static bool reporting, in_atomic;
// stores: executed so far, and at the last point that all threads of the program reach before any goes on. is_block:
// whether the last one is of a block of elements, which several threads store.
struct Program { uint32_t id[3], number, stores, ordered; bool is_block, synchronised; const Region* last; };
static thread_local Program program;

template <class T> static inline T left_out() {
  T v(0);
#ifdef CHECKED
  memset(&v, request->left_out, sizeof v);
#endif
  return v;
}
template <> inline bool left_out<bool>() { return request->left_out & 1; }

static void __attribute__((noinline, cold)) report(Kind kind, int site, int64_t element, const Region* region, P address,
                                                   uint32_t other, bool writes) {
  Locked one(reporting);
  for (uint64_t i = 0; i < request->finding_count; i++)
    if (request->findings[i].kind == kind && request->findings[i].site == (uint32_t)site) return;
  if (request->finding_count == request->finding_limit) return;
  Finding& f = request->findings[request->finding_count++];
  f = {(uint32_t)kind, (uint32_t)site, 0, writes, {program.id[0], program.id[1], program.id[2]}, other, element, 0};
  if (!region)  // the argument whose memory is closest
    for (uint64_t i = 0; i < request->region_count; i++) {
      const Region& r = request->regions[i];
      auto distance = [&](const Region& q) { return address < q.begin ? q.begin - address : address - q.end; };
      if (!region || distance(r) < distance(*region)) region = &r;
    }
  f.region = region ? (uint32_t)(region - request->regions) : ~0u;
  f.offset = region ? (int64_t)(address - region->begin) : (int64_t)address;
}

// The region of an access; through a pointer that comes from one argument, that argument's.
static inline const Region* region_of(P a, uint32_t size, int source) {
  const Region* r = program.last;
  if (source >= 0 && request->sources[source] >= 0) {
    r = &request->regions[request->sources[source]];
    return a >= r->begin && a + size <= r->end ? r : nullptr;
  }
  if (r && a >= r->begin && a + size <= r->end) return r;
  for (uint64_t i = 0; i < request->region_count; i++) {
    r = &request->regions[i];
    if (a >= r->begin && a + size <= r->end) return program.last = r;
  }
  return nullptr;
}

static constexpr int FOREIGN = -2;  // loaded from memory, or made of a number: it may point anywhere
// Readers of an element: none, one program, or MANY. Its writer: the number of the program plus one, in the upper half,
// and of the store operation, whether that changed it as one of a block or as a number, or ATOMIC; while it writes, it is BUSY, and others wait. So a writer compares its
// value with what the one before has really written, however the programs' threads run.
static constexpr uint32_t MANY = ~0u, ATOMIC = ~0u - 1;
static constexpr uint64_t BUSY = 1, IN_BLOCK = 2, AS_NUMBER = 4;
template <class U> static inline U get(const U* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
template <class U> static inline void put(U* p, U v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint32_t me() { return program.number + 1; }
static inline uint64_t my_store() { return (uint64_t)me() << 32 | (uint32_t)(program.stores << 3); }
static inline bool is_mine(uint64_t writer) { return (writer & ~(BUSY | IN_BLOCK | AS_NUMBER)) == my_store(); }
static inline uint32_t program_of(uint64_t writer) { return writer >> 32; }
static inline uint64_t begin_writing(uint64_t* writer, uint64_t mark) {
  for (;;) {
    uint64_t before = get(writer);
    if (before & BUSY) sched_yield();
    else if (__atomic_compare_exchange_n(writer, &before, mark | BUSY, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
      return before;
  }
}

// Whether the access may be done. It has no region, if the pointer is FOREIGN and points outside of all arguments.
static inline bool may_access(const Region*& r, P a, uint32_t size, bool writes, int site, int source, int64_t element) {
  r = region_of(a, size, source);
  if (__builtin_expect(!r, 0)) {
    if (source == FOREIGN) return true;
    const bool is_known = source >= 0 && request->sources[source] >= 0;
    report(OUT_OF_BOUNDS, site, element, is_known ? &request->regions[request->sources[source]] : nullptr, a, 0, writes);
    return false;
  }
  if (__builtin_expect(a % size != 0, 0)) { report(MISALIGNED, site, element, r, a, 0, writes); return false; }
  return true;
}

// Whether this program stored an element in one of some ways since its threads last met, so that some may not see it.
static inline bool is_unordered(uint64_t writer, uint64_t ways) {
  const bool is_later = (((uint32_t)writer) >> 3) > program.ordered;
  return program_of(writer) == me() && (writer & ways) && is_later && !request->one_warp && !program.synchronised;
}

// A load marks the element before it looks for a writer, and a store marks it before it looks for readers, each with a
// full barrier between: of the two, one sees the other.
static void __attribute__((noinline)) note_load(const Region* r, P a, uint32_t size, int site, int64_t element) {
  for (P i = (a - r->begin) >> r->shift, last = (a - r->begin + size - 1) >> r->shift; i <= last; i++) {
    if (r->written && !get(&r->written[i])) report(UNINITIALISED, site, element, r, a, 0, false);
    if (r->constant) continue;
    const uint32_t known = get(&r->reader[i]);
    if (known != me() && known != MANY && __atomic_exchange_n(&r->reader[i], me(), __ATOMIC_SEQ_CST))
      put(&r->reader[i], MANY);
    const uint64_t stored = __atomic_load_n(&r->writer[i], __ATOMIC_SEQ_CST);
    const uint32_t writer = program_of(stored);
    if (writer && writer != me() && writer != ATOMIC && !program.synchronised)
      report(RACE, site, element, r, a, writer, false);
    else if (element != get(&r->element[i]) && is_unordered(stored, IN_BLOCK | AS_NUMBER))
      report(RACE, site, element, r, a, me(), false);  // the first thread stores numbers, and has a block's first element
  }
}

// Of a store that changes an element which has been stored or loaded before.
// A part of an element (a smaller type through a cast pointer) changes what another part has marked.
static void __attribute__((noinline, cold)) judge_change(const Region* r, P a, bool is_whole, uint64_t before,
                                                         uint32_t reader, int site, int64_t element) {
  const uint32_t writer = program_of(before);
  if (is_whole && is_mine(before)) report(RACE, site, element, r, a, me(), true);  // two elements of one block
  else if (program.synchronised) return;
  else if (writer && writer != me() && writer != ATOMIC) report(RACE, site, element, r, a, writer, true);
  else if (reader && reader != me()) report(RACE, site, element, r, a, reader, true);
}

template <class T> static void __attribute__((noinline)) noted_store(const Region* r, P a, T v, int site, int64_t element) {
  const P first = (a - r->begin) >> r->shift, last = (a - r->begin + sizeof(T) - 1) >> r->shift;
  uint64_t before[sizeof(T)];
  for (P i = first; i <= last; i++) before[i - first] = begin_writing(&r->writer[i], my_store());
  const bool changes = memcmp((void*)a, &v, sizeof(T)) != 0, is_whole = sizeof(T) >> r->shift;
  for (P i = first; i <= last; i++) {
    const uint32_t reader = __atomic_load_n(&r->reader[i], __ATOMIC_SEQ_CST);
    if (changes && (before[i - first] || reader)) judge_change(r, a, is_whole, before[i - first], reader, site, element);
    if (r->written) put(&r->written[i], (uint8_t)1);
  }
  memcpy((void*)a, &v, sizeof(T));
  const uint64_t mark = my_store() | (!changes ? 0 : program.is_block ? IN_BLOCK : AS_NUMBER);
  for (P i = first; i <= last; i++) {
    put(&r->element[i], (uint32_t)element);
    put(&r->writer[i], mark);
  }
}

static inline void note_write(const Region* r, P a, uint32_t size, int site, int64_t element) {
  if (__builtin_expect(r->read_only != nullptr, 0))
    for (P i = a - r->begin; i < a - r->begin + size; i++)
      if (r->read_only[i]) return report(READ_ONLY, site, element, r, a, 0, true);
}

// Of one number that all threads of a program load: one of them has stored it, which the others may not see.
static void __attribute__((noinline)) note_unordered(P a, uint32_t size, int site, int source, uint64_t ways) {
  const Region* r = region_of(a, size, source);
  if (!r || r->constant) return;
  if (is_unordered(get(&r->writer[(a - r->begin) >> r->shift]), ways)) report(RACE, site, 0, r, a, me(), false);
}

template <class T> static inline T load(P a, int site, int source, int64_t element) {
#ifdef CHECKED
  const Region* r;
  if (!may_access(r, a, sizeof(T), false, site, source, element)) return T(0);
  if (r && (!r->constant || r->written)) note_load(r, a, sizeof(T), site, element);
#endif
  T v; memcpy(&v, (void*)a, sizeof(T)); return v;
}
// all_use_it: not only the first thread, for what it stores as a number.
template <class T> static inline T load_number(P a, int site, int source, bool all_use_it) {
#ifdef CHECKED
  note_unordered(a, sizeof(T), site, source, all_use_it ? IN_BLOCK | AS_NUMBER : IN_BLOCK);
#endif
  return load<T>(a, site, source, 0);
}
template <class T> static inline void store(P a, T v, int site, int source, int64_t element) {
#ifdef CHECKED
  const Region* r;
  if (!may_access(r, a, sizeof(T), true, site, source, element)) return;
  if (r) {
    note_write(r, a, sizeof(T), site, element);
    return noted_store<T>(r, a, v, site, element);
  }
#endif
  memcpy((void*)a, &v, sizeof(T));
}
template <class T, class F> static inline T atomic(P a, int site, int source, int64_t element, F change) {
  Locked one(in_atomic);
  program.synchronised = true;
  auto update = [&] {
    T old; memcpy(&old, (void*)a, sizeof(T));
    T now = change(old); memcpy((void*)a, &now, sizeof(T));
    return old;
  };
#ifdef CHECKED
  const Region* r;
  if (!may_access(r, a, sizeof(T), true, site, source, element)) return T(0);
  if (!r) return update();
  note_write(r, a, sizeof(T), site, element);
  const P first = (a - r->begin) >> r->shift, last = (a - r->begin + sizeof(T) - 1) >> r->shift;
  for (P i = first; i <= last; i++) {
    begin_writing(&r->writer[i], (uint64_t)ATOMIC << 32);
    if (r->written) put(&r->written[i], (uint8_t)1);
  }
  T old = update();
  for (P i = first; i <= last; i++) put(&r->writer[i], (uint64_t)ATOMIC << 32);
  return old;
#else
  return update();
#endif
}
static inline void assert_that(bool holds, int site, int64_t element) {
  if (!holds) report(ASSERTION, site, element, nullptr, 0, 0, false);
}
static inline int64_t gathered(int64_t index, int64_t size, int site, int64_t element) {
  const bool exists = index >= 0 && index < size;
  assert_that(exists, site, element);
  return exists ? index : 0;
}
template <class T> static inline T toward_zero(double v) {
  T r(v);
  if (v - v != 0 || num::fabs((double)r) <= num::fabs(v)) return r;
  if constexpr (sizeof(T) == 2) return bits_as<T>((uint16_t)(bits_as<uint16_t>(r) - 1));
  else if constexpr (sizeof(T) == 1) return bits_as<T>((uint8_t)(bits_as<uint8_t>(r) - 1));
  else return bits_as<T>(bits_as<uint32_t>(r) - 1);
}
// A tensor descriptor, as TMA has it.
struct Desc { P base; int64_t shape[5], stride[5]; bool nan; };
static inline P aligned_base(P base, int site, int source) {
#ifdef CHECKED
  if (base % 16) report(MISALIGNED, site, 0, region_of(base, 1, source), base, 0, false);
#endif
  return base;
}
template <class T, class... I> static inline bool in_tile(const Desc& d, P& a, I... at) {
  const int64_t c[] = {at...};
  a = d.base;
  for (size_t k = 0; k < sizeof...(I); k++) {
    if (c[k] < 0 || c[k] >= d.shape[k]) return false;
    a += c[k] * d.stride[k] * (int64_t)sizeof(T);
  }
  return true;
}
template <class T, class... I> static inline T tile_load(const Desc& d, int site, int source, int64_t element, I... at) {
  P a;
  return in_tile<T>(d, a, at...) ? load<T>(a, site, source, element) : d.nan ? T(NOT_A_NUMBER) : T(0);
}
template <class T, class... I> static inline void tile_store(T v, const Desc& d, int site, int source, int64_t element,
                                                             I... at) {
  P a;
  if (in_tile<T>(d, a, at...)) store<T>(a, v, site, source, element);
}
template <class T, class F, class... I> static inline void tile_atomic(F change, const Desc& d, int site, int source,
                                                                       int64_t element, I... at) {
  P a;
  if (in_tile<T>(d, a, at...)) atomic<T>(a, site, source, element, change);
}
static inline void print(const char* prefix, int64_t element, double v) {
  Locked one(reporting);
  printf("pid (%u, %u, %u) element %lld%s%g\n", program.id[0], program.id[1], program.id[2], (long long)element, prefix, v);
  fflush(stdout);
}

template <class T> static inline T divide(T a, T b) { return b == 0 ? T(0) : (T)(b == T(-1) ? -a : a / b); }
template <class T> static inline T remainder_of(T a, T b) { return b == 0 || b == T(-1) ? T(0) : (T)(a % b); }
template <class T> static inline T max_nan(T a, T b) { return a != a ? a : b != b ? b : a > b ? a : b; }
template <class T> static inline T min_nan(T a, T b) { return a != a ? a : b != b ? b : a < b ? a : b; }
template <class T> static inline T max_num(T a, T b) { return b != b ? a : a > b ? a : a != a ? b : b; }
template <class T> static inline T min_num(T a, T b) { return b != b ? a : a < b ? a : a != a ? b : b; }
template <class I, class F> static inline I to_int(F v) {  // saturating, as cvt.rzi
  double d = (double)v;
  if (d != d) return 0;
  constexpr bool is_signed = I(-1) < I(0);
  constexpr I least = is_signed ? I(uint64_t(1) << (8 * sizeof(I) - 1)) : I(0), most = I(~least);
  if (d >= (double)most) return most;
  if (d <= (double)least) return least;
  return (I)d;
}

// What kernelsim_programs.cpp calls in each of its threads, for one program after another.
#define EXPORTED extern "C" __attribute__((visibility("default"))) void
EXPORTED kernelsim_begin(Request* asked) { request = asked; }
EXPORTED kernelsim_enter(uint32_t n) {
  const uint32_t* g = request->grid;
  program = {{n % g[0], n / g[0] % g[1], n / g[0] / g[1]}, n, 0, 0, false, false, nullptr};
}
