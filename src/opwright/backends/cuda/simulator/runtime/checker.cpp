// Checks every access of a checked kernel before it is made. The compiler's instrumentation calls it (hooks.cpp).

#include "checker.h"

#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace opwright_sim {

Checker* active_checker = nullptr;

namespace {

constexpr uint32_t blocks_per_clock_check = 4096;   // basic blocks between two checks of the clock
constexpr uint32_t clock_checks_before_yield = 8;  // ... and checks of the clock before other threads run
constexpr unsigned shared_shift = 1;        // shared memory is tracked in pieces of two bytes

// Zeroed pages that cost nothing until they are touched; null if there are none.
Cell* map_cells(uint64_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Cell*>(memory);
}

uint64_t cell_count(const Region& region, unsigned shift) { return ((region.end - region.begin) >> shift) + 2; }

unsigned log2_of(uint32_t granule) { return granule >= 8 ? 3 : granule >= 4 ? 2 : granule >= 2 ? 1 : 0; }

struct Module {
  uint64_t address_in_it, base, storage_size;
  std::vector<Region> read_only;
};

int look_at_module(dl_phdr_info* info, size_t, void* data) {
  auto& module = *static_cast<Module*>(data);
  bool it = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& part = info->dlpi_phdr[i];
    const uint64_t begin = info->dlpi_addr + part.p_vaddr;
    it |= part.p_type == PT_LOAD && begin <= module.address_in_it && module.address_in_it < begin + part.p_memsz;
  }
  if (!it) return 0;
  module.base = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& part = info->dlpi_phdr[i];
    const uint64_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_TLS) module.storage_size = part.p_memsz;
    if (part.p_type == PT_LOAD && !(part.p_flags & PF_W)) {
      module.read_only.push_back(
          {begin, begin + part.p_memsz, uint32_t(RegionKind::read_only), 4, nullptr, nullptr});
    }
  }
  return 1;
}

}  // namespace

Checker::Checker(const Request& request) : request_(request) {
  Module module{reinterpret_cast<uint64_t>(&active_checker), 0, 0, {}};
  dl_iterate_phdr(look_at_module, &module);
  module_base_ = module.base;
  storage_begin_ = reinterpret_cast<uint64_t>(&threadIdx) - request.thread_index_offset;
  storage_size_ = module.storage_size;
  std::vector<Region> regions(request.regions, request.regions + request.region_count);
  regions.insert(regions.end(), module.read_only.begin(), module.read_only.end());
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (const Region& region : regions) regions_.push_back({region, log2_of(region.granule), nullptr});
  owner_.assign(storage_size_ + 16, 0);
  for (uint64_t i = 0; i < request.shared_count; i++) {
    const SharedVariable& variable = request.shared[i];
    std::fill_n(owner_.begin() + long(variable.offset), variable.size, uint16_t(i + 1));
  }
  shared_written_.assign(storage_size_ + 16, 0);
  shared_cells_bytes_ = ((storage_size_ >> shared_shift) + 16) * sizeof(Cell);
  shared_cells_ = map_cells(shared_cells_bytes_);
  if (!shared_cells_) throw std::bad_alloc();
}

Checker::~Checker() {
  munmap(shared_cells_, shared_cells_bytes_);
  for (Shadow& shadow : regions_) {
    if (shadow.cells) munmap(shadow.cells, cell_count(shadow.region, shadow.shift) * sizeof(Cell));
  }
}

// --- events in the block ---

void Checker::begin_block(Worker& worker, unsigned threads) {
  worker_ = &worker;
  block_ = uint32_t(worker.block()) + 1;
  time_++;
  barrier_time_ = 0;
  seen_.assign(uint64_t(threads) * 32, 0);
  fenced_.assign(threads, 0);
  acquired_.clear();
  spins_ = 0;
  // Values of an earlier block may not be taken for this block's: they become NaN and count as unwritten.
  for (uint64_t i = 0; i < request_.shared_count; i++) {
    const SharedVariable& variable = request_.shared[i];
    if (variable.kind != uint32_t(StorageKind::shared)) continue;
    memset(reinterpret_cast<void*>(storage_begin_ + variable.offset), 0xff, variable.size);
    memset(&shared_written_[variable.offset], 0, variable.size);
  }
}

void Checker::barrier_passed() {
  barrier_time_ = ++time_;
  spins_ = 0;
}

// Each of the lanes is now synchronised with all that any of them was synchronised with.
void Checker::lanes_joined(unsigned warp, unsigned lanes) {
  const uint32_t joined = ++time_;
  uint32_t known[32] = {};
  for (unsigned left = lanes; left; left &= left - 1) {
    const uint32_t* seen = &seen_[(warp * 32ull + unsigned(__builtin_ctz(left))) * 32];
    for (unsigned i = 0; i < 32; i++) known[i] = std::max(known[i], seen[i]);
  }
  for (unsigned i = 0; i < 32; i++) known[i] = lanes >> i & 1u ? joined : known[i];
  for (unsigned left = lanes; left; left &= left - 1) {
    memcpy(&seen_[(warp * 32ull + unsigned(__builtin_ctz(left))) * 32], known, sizeof known);
  }
  spins_ = 0;
}

// --- accesses ---

void Checker::access(uint64_t address, uint32_t size, uint32_t what, uint64_t pc) {
  if (on_own_stack(address)) return;
  if (address - storage_begin_ < storage_size_) return shared_access(address - storage_begin_, size, what, pc);
  Shadow* shadow = region_of(address);
  if (!shadow) out_of_bounds(Space::global, address, size, what, pc);
  global_access(*shadow, address, size, what, pc);
}

Checker::Shadow* Checker::region_of(uint64_t address) {
  if (last_ && address >= last_->region.begin && address < last_->region.end) return last_;
  auto after = std::upper_bound(regions_.begin(), regions_.end(), address,
                                [](uint64_t a, const Shadow& shadow) { return a < shadow.region.begin; });
  if (after == regions_.begin()) return nullptr;
  --after;
  if (address >= after->region.end) return nullptr;
  return last_ = &*after;
}

// Whether a half of the access contains no value at all; of a large one, some aligned eight bytes. (Fewer bytes may be
// the padding of a structure that is copied as a whole.)
bool Checker::lacks_values(const uint8_t* written, uint64_t begin, uint32_t size) const {
  const uint64_t part = size == 2 || size == 4 || size == 8 ? size / 2 : 8;
  for (uint64_t at = begin, end = begin + size; at < end;) {
    const uint64_t until = std::min(end, (at | (part - 1)) + 1);
    bool any = false;
    for (; at < until; at++) any |= written[at] != 0;
    if (!any) return true;
  }
  return false;
}

// Whether an element of a tensor that the access reads contains a value in some of its bytes only.
bool Checker::has_partial_element(const Region& region, uint64_t offset, uint32_t size) const {
  const uint64_t element = region.granule, end = region.end - region.begin;
  for (uint64_t at = offset / element * element; at < offset + size && at + element <= end; at += element) {
    const long values = std::count_if(region.written + at, region.written + at + element, [](uint8_t b) { return b; });
    if (values > 0 && uint64_t(values) < element) return true;
  }
  return false;
}

void Checker::shared_access(uint64_t offset, uint32_t size, uint32_t what, uint64_t pc) {
  const uint16_t owner = owner_[offset];
  const bool whole = owner && offset + size <= storage_size_ && owner_[offset + size - 1] == owner;
  if (!whole) out_of_bounds(Space::shared, offset, size, what, pc);
  if (request_.shared[owner - 1].kind != uint32_t(StorageKind::shared)) {  // threadIdx and its like
    if (what & access_write) out_of_bounds(Space::shared, offset, size, what, pc);
    return;
  }
  if ((what & access_read) && lacks_values(shared_written_.data(), offset, size)) {
    uninitialised(&shared_written_[offset], Space::shared, offset, size, what, pc);
  }
  if (what & access_write) memset(&shared_written_[offset], 1, size);
  if (what & access_atomic) synchronise(storage_begin_ + offset, what);
  // `volatile` orders nothing between the threads of a warp, so in shared memory it is an access like any other.
  record(shared_cells_, offset, size, shared_shift, what & ~uint32_t(access_volatile), pc, Space::shared, offset);
}

void Checker::global_access(Shadow& shadow, uint64_t address, uint32_t size, uint32_t what, uint64_t pc) {
  const Region& region = shadow.region;
  const uint64_t offset = address - region.begin;
  if (address + size > region.end) out_of_bounds(Space::global, address, size, what, pc);
  if (region.kind == uint32_t(RegionKind::read_only)) {
    if (what & access_write) out_of_bounds(Space::global, address, size, what, pc);
    return;
  }
  if (region.inside) {
    uint32_t inside = 0;
    for (uint32_t i = 0; i < size; i++) inside += region.inside[offset + i] != 0;
    if (inside == 0 || ((what & access_write) && inside != size)) {
      out_of_bounds(Space::global, address, size, what, pc);
    }
  }
  if (region.written) {
    if ((what & access_read) &&
        (lacks_values(region.written, offset, size) || has_partial_element(region, offset, size))) {
      uninitialised(region.written + offset, Space::global, address, size, what, pc);
    }
    if (what & access_write) memset(region.written + offset, 1, size);
  }
  if (what & (access_atomic | access_volatile)) synchronise(address, what);
  if (!shadow.cells) shadow.cells = map_cells(cell_count(region, shadow.shift) * sizeof(Cell));
  if (!shadow.cells) worker_->abandon_without_memory();
  record(shadow.cells, offset, size, shadow.shift, what, pc, Space::global, address);
}

// --- races ---

Record Checker::now(uint32_t what, uint64_t pc, uint8_t bytes) const {
  return {block_, uint32_t(pc - module_base_), time_, uint16_t(worker_->rank()), bytes, uint8_t(what)};
}

void Checker::record(Cell* cells, uint64_t offset, uint32_t size, unsigned shift, uint32_t what, uint64_t pc,
                     Space space, uint64_t address) {
  const uint64_t granule = uint64_t(1) << shift;
  const Record* clash = nullptr;
  const auto conflicts = [&](const Record& earlier, uint8_t bytes) {
    if (!earlier.block || !(earlier.bytes & bytes)) return false;
    if (space == Space::shared && earlier.block != block_) return false;  // another block's memory
    const bool both_atomic = (earlier.access & (access_atomic | access_volatile)) &&
                             (what & (access_atomic | access_volatile));
    return !both_atomic && !ordered(earlier);
  };
  for (uint64_t at = offset; at < offset + size;) {
    const uint64_t number = at >> shift, next = (number + 1) << shift;
    const uint64_t end = std::min(next, offset + size);
    const uint8_t bytes = uint8_t(((1u << (end - at)) - 1u) << (at & (granule - 1)));
    Cell& cell = cells[number];
    at = end;
    const Record mine = now(what, pc, bytes);
    if (conflicts(cell.write, bytes)) clash = &cell.write;
    if (what & access_write) {
      if (conflicts(cell.first_read, bytes)) clash = &cell.first_read;
      if (conflicts(cell.last_read, bytes)) clash = &cell.last_read;
    }
    if (clash) {
      Finding found = memory_finding(FindingKind::race, space, address, size, what, pc);
      found.other_pc = clash->pc;
      found.other_access = clash->access;
      worker_->describe(clash->block - 1, clash->thread, found.other_block, found.other_thread);
      worker_->launch().report(found);
      clash = nullptr;
    }
    if (what & access_write) {
      cell.write = mine;
    } else {
      Record& first = cell.first_read;
      const bool replace = !first.block || (first.block == mine.block && first.thread == mine.thread) ||
                           (space == Space::shared && first.block != block_) || ordered(first);
      (replace ? first : cell.last_read) = mine;
    }
  }
}

// Whether an earlier access happened before the running thread's, by CUDA's rules: by the same thread, before a barrier
// of the block, before a barrier of the warp, or through atomics after a fence.
bool Checker::ordered(const Record& earlier) const {
  if (earlier.block == block_) {
    const unsigned me = worker_->rank();
    if (earlier.thread == me || earlier.time < barrier_time_) return true;
    if (earlier.thread / 32 == me / 32 && earlier.time < seen_[me * 32ull + earlier.thread % 32]) return true;
  }
  return !acquired_.empty() && ordered_through_atomics(earlier);
}

bool Checker::ordered_through_atomics(const Record& earlier) const {
  const unsigned me = worker_->rank();
  for (const Acquired& seen : acquired_) {
    const bool mine = seen.thread == me || seen.time < barrier_time_ ||
                      (seen.thread / 32 == me / 32 && seen.time < seen_[me * 32ull + seen.thread % 32]);
    if (mine && reaches(*seen.object, seen.count, earlier, 4)) return true;
  }
  return false;
}

bool Checker::reaches(const SyncObject& object, uint32_t count, const Record& earlier, int depth) const {
  const auto found = object.by_block.find(earlier.block);
  if (found != object.by_block.end()) {
    for (const Release& release : found->second) {
      if (release.index < count && covers(release, earlier)) return true;
    }
  }
  if (depth == 0) return false;
  for (const auto& [block, releases] : object.by_block) {
    for (const Release& release : releases) {
      if (release.index >= count) continue;
      for (const Acquired& seen : release.acquired) {
        if (seen.object != &object && reaches(*seen.object, seen.count, earlier, depth - 1)) return true;
      }
    }
  }
  return false;
}

bool Checker::covers(const Release& release, const Record& earlier) const {
  if (release.thread == earlier.thread) return earlier.time <= release.time;
  if (earlier.time < release.barrier_time) return true;
  return release.thread / 32 == earlier.thread / 32 && earlier.time < release.seen[earlier.thread % 32];
}

// An atomic access acquires the releases of others there, and releases its thread's accesses if that has fenced.
void Checker::synchronise(uint64_t address, uint32_t what) {
  const unsigned me = worker_->rank();
  const auto known = objects_.find(address);
  if (known != objects_.end() && (what & access_read)) {
    const SyncObject* object = known->second.get();
    const bool stale = std::none_of(acquired_.begin(), acquired_.end(), [&](const Acquired& seen) {
      return seen.object == object && seen.thread == me && seen.count == object->count;
    });
    if (stale) acquired_.push_back({object, object->count, uint16_t(me), time_});
  }
  if (!(what & access_write) || !fenced_[me]) return;
  auto& object = objects_[address];
  if (!object) object = std::make_unique<SyncObject>();
  Release release{object->count++, block_, time_, barrier_time_, uint16_t(me), {}, acquired_};
  memcpy(release.seen, &seen_[me * 32ull], sizeof release.seen);
  object->by_block[block_].push_back(std::move(release));
  time_++;
}

// --- findings ---

Finding Checker::memory_finding(FindingKind kind, Space space, uint64_t address, uint32_t size, uint32_t what,
                                uint64_t pc) const {
  Finding found = worker_->finding(kind);
  found.space = uint32_t(space);
  found.address = address;
  found.size = size;
  found.access = what;
  found.pc = relative(pc);
  return found;
}

void Checker::uninitialised(const uint8_t* written, Space space, uint64_t address, uint32_t size, uint32_t what,
                            uint64_t pc) {
  Finding found = memory_finding(FindingKind::uninitialised, space, address, size, what, pc);
  found.value = std::any_of(written, written + size, [](uint8_t byte) { return byte; });  // whether some bytes have one
  if (space == Space::shared && worker_->is_being_copied(storage_begin_ + address, size)) found.value = 2;
  worker_->launch().report(found);
}

// Never returns, so the access is never made.
void Checker::out_of_bounds(Space space, uint64_t address, uint32_t size, uint32_t what, uint64_t pc) {
  worker_->launch().report(memory_finding(FindingKind::out_of_bounds, space, address, size, what, pc));
  worker_->abandon();
}

void Checker::fault(FindingKind kind, uint64_t pc, uint64_t address, int64_t value, const char* text) {
  if (!worker_) return;
  Finding found = memory_finding(kind, Space::none, address, 0, 0, pc);
  found.value = value;
  snprintf(found.text, sizeof found.text, "%s", text);
  worker_->launch().report(found);
  worker_->abandon();
}

void Checker::block_entered(uint64_t pc) {
  if (--fuel_ != 0) return;
  fuel_ = blocks_per_clock_check;
  worker_->check_deadline(relative(pc));
  if (++spins_ % clock_checks_before_yield == 0) worker_->yield(pc);
}

// In a checked launch the operation counts as one read and one write, at the line that called it.
void note_atomic(const volatile void* address, unsigned size, AtomicKind) {
  if (active_checker) {
    const auto at = reinterpret_cast<uint64_t>(address);
    const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
    if (at % size) active_checker->fault(FindingKind::misaligned, pc, at, size, "an atomic access");
    active_checker->access(at, size, access_read | access_write | access_atomic, pc);
  } else {
    current_worker()->note_atomic(reinterpret_cast<uint64_t>(__builtin_return_address(0)));
  }
}

}  // namespace opwright_sim

extern "C" __attribute__((visibility("default"))) uint64_t opwright_sim_module_base() {
  using namespace opwright_sim;
  Module module{reinterpret_cast<uint64_t>(&active_checker), 0, 0, {}};
  dl_iterate_phdr(look_at_module, &module);
  return module.base;
}
