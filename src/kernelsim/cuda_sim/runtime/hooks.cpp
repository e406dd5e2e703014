// The functions that the compiler's instrumentation calls: ThreadSanitizer's before each access, and
// UndefinedBehaviorSanitizer's. Neither tool's own runtime is used.

#include <string.h>

#include "checker.h"

#define KERNELSIM_HOOK extern "C" __attribute__((visibility("hidden")))
#define KERNELSIM_HERE reinterpret_cast<uint64_t>(__builtin_return_address(0))

namespace {
using namespace kernelsim;
__attribute__((noinline)) void check_further(uint64_t address, uint32_t size, uint32_t what, uint64_t pc) {
  if (Checker* checker = running_checker()) checker->access(address, size, what, pc);
}
// Of a size that is known when this is compiled. All that is rare is called at the end, so that no register is saved.
template <uint32_t size, uint32_t what>
KERNELSIM_INLINED void check_one(const volatile void* p, uint64_t pc) {
  const auto address = reinterpret_cast<uint64_t>(p);
  Checker* checker = running_checker();
  if (KERNELSIM_RARE(!checker)) return;  // a constructor, before any launch
  if (KERNELSIM_RARE(!(checker->access_at_once<size, what>(address, pc)))) check_further(address, size, what, pc);
}
void check_access(const volatile void* address, uint64_t size, uint32_t what, uint64_t pc) {
  Checker* checker = running_checker();
  if (checker && size) checker->access(reinterpret_cast<uint64_t>(address), uint32_t(size), what, pc);
}
}  // namespace

#define KERNELSIM_SIZED(SIZE)                                                                                         \
  KERNELSIM_HOOK void __tsan_read##SIZE(void* p) { check_one<SIZE, access_read>(p, KERNELSIM_HERE); }                      \
  KERNELSIM_HOOK void __tsan_write##SIZE(void* p) { check_one<SIZE, access_write>(p, KERNELSIM_HERE); }                    \
  KERNELSIM_HOOK void __tsan_unaligned_read##SIZE(void* p) { check_one<SIZE, access_read>(p, KERNELSIM_HERE); }            \
  KERNELSIM_HOOK void __tsan_unaligned_write##SIZE(void* p) { check_one<SIZE, access_write>(p, KERNELSIM_HERE); }          \
  KERNELSIM_HOOK void __tsan_volatile_read##SIZE(void* p) { check_access(p, SIZE, access_read | access_volatile, KERNELSIM_HERE); } \
  KERNELSIM_HOOK void __tsan_volatile_write##SIZE(void* p) { check_access(p, SIZE, access_write | access_volatile, KERNELSIM_HERE); } \
  KERNELSIM_HOOK void __tsan_unaligned_volatile_read##SIZE(void* p) {                                                 \
    check_access(p, SIZE, access_read | access_volatile, KERNELSIM_HERE);                                                     \
  }                                                                                                                   \
  KERNELSIM_HOOK void __tsan_unaligned_volatile_write##SIZE(void* p) {                                                \
    check_access(p, SIZE, access_write | access_volatile, KERNELSIM_HERE);                                                    \
  }
KERNELSIM_SIZED(1)
KERNELSIM_SIZED(2)
KERNELSIM_SIZED(4)
KERNELSIM_SIZED(8)
KERNELSIM_SIZED(16)
KERNELSIM_HOOK void __tsan_read_range(void* p, unsigned long size) { check_access(p, size, access_read, KERNELSIM_HERE); }
KERNELSIM_HOOK void __tsan_write_range(void* p, unsigned long size) { check_access(p, size, access_write, KERNELSIM_HERE); }
KERNELSIM_HOOK void __tsan_vptr_update(void** p, void*) { check_access(p, sizeof(void*), access_write, KERNELSIM_HERE); }
KERNELSIM_HOOK void __tsan_vptr_read(void** p) { check_access(p, sizeof(void*), access_read, KERNELSIM_HERE); }
KERNELSIM_HOOK void __tsan_init() {}
KERNELSIM_HOOK void __tsan_func_entry(void*) {
  if (Checker* checker = running_checker()) checker->function_entered(KERNELSIM_HERE, __builtin_frame_address(0));
}
KERNELSIM_HOOK void __tsan_func_exit() {}

// Calls of these in a kernel are renamed to them, in its assembly (clang names the second kind by itself).
#define KERNELSIM_BULK(PREFIX)                                                               \
  KERNELSIM_HOOK void* PREFIX##memcpy(void* to, const void* from, unsigned long size) {      \
    check_access(from, size, access_read, KERNELSIM_HERE);                                           \
    check_access(to, size, access_write, KERNELSIM_HERE);                                            \
    return memcpy(to, from, size);                                                           \
  }                                                                                          \
  KERNELSIM_HOOK void* PREFIX##memmove(void* to, const void* from, unsigned long size) {     \
    check_access(from, size, access_read, KERNELSIM_HERE);                                           \
    check_access(to, size, access_write, KERNELSIM_HERE);                                            \
    return memmove(to, from, size);                                                          \
  }                                                                                          \
  KERNELSIM_HOOK void* PREFIX##memset(void* to, int value, unsigned long size) {             \
    check_access(to, size, access_write, KERNELSIM_HERE);                                            \
    return memset(to, value, size);                                                          \
  }
KERNELSIM_BULK(kernelsim_checked_)
KERNELSIM_BULK(__tsan_)

KERNELSIM_HOOK void __sanitizer_cov_trace_pc() {
  if (Checker* checker = running_checker()) checker->block_entered(KERNELSIM_HERE);
}

// The descriptions that the compiler passes, as its own runtime declares them.
namespace {
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
struct TypeDescriptor {
  uint16_t kind, info;
  char name[1];
  int bits() const { return 1 << (info >> 1); }
  bool is_signed() const { return info & 1; }
};
struct TypeMismatch {
  SourceLocation location;
  const TypeDescriptor* type;
  uint8_t log_alignment, check_kind;
};
struct OutOfBounds {
  SourceLocation location;
  const TypeDescriptor* array;
  const TypeDescriptor* index;
};

int64_t index_value(const TypeDescriptor& type, uint64_t value) {
  if (!type.is_signed() || type.bits() >= 64) return int64_t(value);
  const int unused = 64 - type.bits();
  return int64_t(value << unused) >> unused;
}
}  // namespace

KERNELSIM_HOOK void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, uint64_t address) {
  const uint64_t alignment = uint64_t(1) << data->log_alignment;
  Checker* checker = running_checker();
  if (!checker || address % alignment == 0) return;
  // A local array that is read as a vector is in registers on the GPU, and at any address of the stack here.
  if (alignment <= 8 && checker->on_own_stack(address)) return;
  checker->fault(FindingKind::misaligned, KERNELSIM_HERE, address, int64_t(alignment), data->type->name);
}
KERNELSIM_HOOK void __ubsan_handle_out_of_bounds(OutOfBounds* data, uint64_t index) {
  Checker* checker = running_checker();
  if (!checker) return;
  checker->fault(FindingKind::index_out_of_bounds, KERNELSIM_HERE, 0, index_value(*data->index, index),
                        data->array->name);
}
KERNELSIM_HOOK void __ubsan_handle_divrem_overflow(void*, uint64_t, uint64_t) {
  if (Checker* checker = running_checker()) checker->fault(FindingKind::division_by_zero, KERNELSIM_HERE, 0, 0, "");
}
