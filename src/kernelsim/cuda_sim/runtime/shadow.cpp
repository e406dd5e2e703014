// The memory of shadows, and what several of them have in common.

#include "shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kernelsim {

namespace {

constexpr uint64_t most_in_huge_pages = 64 << 20;  // bytes
constexpr uint64_t records_per_cell = 5;

unsigned trailing_zeros(uint64_t bits) { return bits ? unsigned(__builtin_ctzll(bits)) : 63; }

}  // namespace

Shadow::~Shadow() { unmap(); }

Shadow::Shadow(Shadow&& other) noexcept
    : any_write(other.any_write),
      any_read(other.any_read),
      any_other_read(other.any_other_read),
      any_plain(other.any_plain),
      any_other_update(other.any_other_update),
      bytes_(other.bytes_),
      granule_(other.granule_),
      finest_(other.finest_),
      coarsest_(other.coarsest_),
      shift_(other.shift_),
      writes_(std::exchange(other.writes_, nullptr)),
      plain_(other.plain_),
      reads_(other.reads_),
      other_reads_(other.other_reads_),
      other_updates_(other.other_updates_) {}

uint64_t Shadow::size_of(uint64_t cells) { return records_per_cell * (place(cells - 1) + 1) * sizeof(Record); }

// Zeroed pages that cost nothing until they are touched.
bool Shadow::map(unsigned shift) {
  const uint64_t count = (bytes_ >> shift) + 2, size = size_of(count), each = place(count - 1) + 1;
  void* memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  // Fewer page faults; not where few of many cells may be needed.
  if (size <= most_in_huge_pages) madvise(memory, size, MADV_HUGEPAGE);
  writes_ = static_cast<Record*>(memory);
  reads_ = writes_ + each;
  other_reads_ = reads_ + each;
  plain_ = other_reads_ + each;
  other_updates_ = plain_ + each;
  shift_ = shift;
  granule_ = uint64_t(1) << shift;
  return true;
}

void Shadow::unmap() {
  if (writes_) munmap(writes_, size_of(cells()));
  writes_ = nullptr;
}

bool Shadow::make_fit(uint64_t offset, uint64_t size) {
  const unsigned wanted = std::max(finest_, std::min(coarsest_, trailing_zeros(offset | size)));
  if (!writes_) return map(wanted);
  return wanted >= shift_ || split(wanted);
}

// The same record for each part of a cell. Of a whole cell each part is whole.
void Shadow::spread(const Record& cell, Record& (Shadow::*part)(uint64_t), uint64_t first, uint64_t count) {
  if (!cell.time) return;
  for (uint64_t i = first; i < first + count; i++) (this->*part)(i) = cell;
}

bool Shadow::split(unsigned shift) {
  Shadow old(std::move(*this));
  if (!map(shift)) {
    writes_ = std::exchange(old.writes_, nullptr);
    reads_ = old.reads_;
    other_reads_ = old.other_reads_;
    plain_ = old.plain_;
    other_updates_ = old.other_updates_;
    return false;
  }
  const uint64_t parts = uint64_t(1) << (old.shift_ - shift);
  for (uint64_t cell = 0; cell < old.cells() && cell * parts + parts <= cells(); cell++) {
    if (any_write) spread(old.write(cell), &Shadow::write, cell * parts, parts);
    if (any_read) spread(old.read(cell), &Shadow::read, cell * parts, parts);
    if (any_other_read) spread(old.other_read(cell), &Shadow::other_read, cell * parts, parts);
    if (any_plain) spread(old.plain(cell), &Shadow::plain, cell * parts, parts);
    if (any_other_update) spread(old.other_update(cell), &Shadow::other_update, cell * parts, parts);
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
      const bool reads = shadow->any_read && shadow->read(cell).time;
      if ((writes && earlier[cell]) || (reads && (earlier[cell] & written))) return false;
      earlier[cell] |= uint8_t((writes ? accessed | written : 0) | (reads ? accessed : 0));
    }
  }
  return true;
}

}  // namespace kernelsim
