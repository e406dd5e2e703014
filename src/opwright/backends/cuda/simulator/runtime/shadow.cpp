// The memory of shadows, and what several of them have in common.

#include "shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace opwright_sim {

namespace {

constexpr uint64_t most_in_huge_pages = 64 << 20;  // bytes

unsigned trailing_zeros(uint64_t bits) { return bits ? unsigned(__builtin_ctzll(bits)) : 63; }

// The same record for each part of a cell. Of a whole cell each part is whole.
template <class T>
void spread(const T& cell, T* parts, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) parts[i] = cell;
}

}  // namespace

Shadow::~Shadow() { unmap(); }

Shadow::Shadow(Shadow&& other) noexcept
    : any_write(other.any_write),
      any_read(other.any_read),
      any_plain(other.any_plain),
      bytes_(other.bytes_),
      granule_(other.granule_),
      finest_(other.finest_),
      coarsest_(other.coarsest_),
      shift_(other.shift_),
      writes_(std::exchange(other.writes_, nullptr)),
      plain_(other.plain_),
      reads_(std::exchange(other.reads_, nullptr)) {}

// Zeroed pages that cost nothing until they are touched.
bool Shadow::map(unsigned shift) {
  const uint64_t count = (bytes_ >> shift) + 2, size = count * bytes_per_cell;
  void* memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  // Fewer page faults; not where few of many cells may be needed.
  if (size <= most_in_huge_pages) madvise(memory, size, MADV_HUGEPAGE);
  writes_ = static_cast<Record*>(memory);
  plain_ = writes_ + count;
  reads_ = reinterpret_cast<Reads*>(plain_ + count);
  shift_ = shift;
  granule_ = uint64_t(1) << shift;
  return true;
}

void Shadow::unmap() {
  if (writes_) munmap(writes_, cells() * bytes_per_cell);
  writes_ = nullptr;
}

bool Shadow::make_fit(uint64_t offset, uint64_t size) {
  const unsigned wanted = std::max(finest_, std::min(coarsest_, trailing_zeros(offset | size)));
  if (!writes_) return map(wanted);
  return wanted >= shift_ || split(wanted);
}

bool Shadow::split(unsigned shift) {
  Shadow old(std::move(*this));
  if (!map(shift)) {
    writes_ = std::exchange(old.writes_, nullptr);
    plain_ = old.plain_;
    reads_ = old.reads_;
    return false;
  }
  const uint64_t parts = uint64_t(1) << (old.shift_ - shift);
  for (uint64_t cell = 0; cell < old.cells() && cell * parts + parts <= cells(); cell++) {
    if (any_write && old.write(cell).time) spread(old.write(cell), &write(cell * parts), parts);
    if (any_plain && old.plain(cell).time) spread(old.plain(cell), &plain(cell * parts), parts);
    if (any_read && old.reads(cell).first.time) spread(old.reads(cell), &reads(cell * parts), parts);
  }
  return true;
}

bool are_independent(Shadow* const* shadows, unsigned count) {
  std::vector<Shadow*> touched;
  unsigned finest = 63;
  bool any_write = false;
  for (unsigned i = 0; i < count; i++) {
    if (!shadows[i]->any_write && !shadows[i]->any_read) continue;
    touched.push_back(shadows[i]);
    finest = std::min(finest, shadows[i]->shift());
    any_write |= shadows[i]->any_write;
  }
  if (!any_write || touched.size() < 2) return true;
  enum : uint8_t { accessed = 1, written = 2 };
  std::vector<uint8_t> earlier;
  for (Shadow* shadow : touched) {
    if (!shadow->make_fit(uint64_t(1) << finest, uint64_t(1) << finest)) return false;
    earlier.resize(shadow->cells());
    for (uint64_t cell = 0; cell < shadow->cells(); cell++) {
      const bool writes = shadow->any_write && shadow->write(cell).time;
      const bool reads = shadow->any_read && shadow->reads(cell).first.time;
      if ((writes && earlier[cell]) || (reads && (earlier[cell] & written))) return false;
      earlier[cell] |= uint8_t((writes ? accessed | written : 0) | (reads ? accessed : 0));
    }
  }
  return true;
}

}  // namespace opwright_sim
