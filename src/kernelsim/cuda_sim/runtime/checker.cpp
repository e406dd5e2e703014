// Checks every access of a checked kernel before it is made. The compiler's instrumentation calls it (hooks.cpp).

#include "checker.h"

#include <link.h>
#include <stdio.h>

#include <algorithm>
#include <new>

#include "suspicions.h"

namespace kernelsim {

Checker* only_checker = nullptr;

struct Module {
  uint64_t address_in_it, base, storage_size;
  std::vector<Region> read_only;
};

namespace {

constexpr uint32_t blocks_per_clock_check = 4096;   // basic blocks between two checks of the clock
constexpr uint32_t clock_checks_before_yield = 8;  // ... and checks of the clock before other threads run
constexpr unsigned finest_shared = 1;  // shared memory is tracked in pieces of two to four bytes
constexpr unsigned coarsest_shared = 2;
constexpr unsigned coarsest_global = 4;

// Whether an update has taken the place of one by another thread that its own thread knows nothing of. One that uses the
// result, as the last of several blocks that count themselves, comes after all that led to it.
bool hides_updates(const Record& update) {
  return is_atomic(update.access) && (!(update.access & access_read) || (update.access & access_unseen));
}

unsigned log2_of(uint32_t granule) { return granule >= 8 ? 3 : granule >= 4 ? 2 : granule >= 2 ? 1 : 0; }

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
          {begin, begin + part.p_memsz, uint32_t(RegionKind::read_only), 4, nullptr, nullptr, nullptr});
    }
  }
  return 1;
}

// The shared object of this kernel.
Module this_module() {
  Module module{reinterpret_cast<uint64_t>(&only_checker), 0, 0, {}};
  dl_iterate_phdr(look_at_module, &module);
  return module;
}

}  // namespace

uint64_t size_of_storage() { return this_module().storage_size; }

Checker::Checker(const Request& request) : Checker(request, this_module()) {}

Checker::Checker(const Request& request, const Module& module)
    : request_(request),
      storage_size_(module.storage_size),
      module_base_(module.base) {
  std::vector<Region> regions(request.regions, request.regions + request.region_count);
  regions.insert(regions.end(), module.read_only.begin(), module.read_only.end());
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (const Region& region : regions) {
    const uint64_t length = region.end - region.begin;
    const bool plain = region.kind != uint32_t(RegionKind::read_only) && !region.inside && !region.written;
    ranges_.push_back({region, Shadow(length, log2_of(region.granule), coarsest_global), length, plain, plain && !region.read_only});
  }
  owner_.assign(storage_size_ + 16, 0);
  for (uint64_t i = 0; i < request.shared_count; i++) {
    const SharedVariable& variable = request.shared[i];
    std::fill_n(owner_.begin() + long(variable.offset), variable.size, uint16_t(i + 1));
  }
}

bool Checker::are_independent(const std::vector<Checker*>& checkers) {
  std::vector<Shadow*> shadows(checkers.size());
  for (size_t range = 0; range < checkers[0]->ranges_.size(); range++) {
    for (size_t i = 0; i < checkers.size(); i++) shadows[i] = &checkers[i]->ranges_[range].shadow;
    if (!kernelsim::are_independent(shadows.data(), unsigned(shadows.size()))) return false;
  }
  return true;
}

// --- events in the block ---

BlockOfCluster::BlockOfCluster(uint64_t storage_size)
    : shared(storage_size, finest_shared, coarsest_shared), written(storage_size + 16, 0) {}

void Checker::begin_unit(const Cluster& cluster, unsigned threads) {
  threads_ = threads;
  is_cluster_ = cluster.size > 1;
  block_time_ = ++time_;
  units_.emplace_back(time_, uint32_t(cluster.unit()) + 1);
  const unsigned agents = (cluster.size - 1) * most_agents + threads;
  warp_joined_.assign((agents + 31) / 32, 0);
  seen_.clear();
  is_simple_ = !is_cluster_;  // a barrier of one block orders nothing of another's
  fenced_.assign(agents, {});
  read_.clear();
  acquired_.clear();
  acquired_at_.clear();
  known_.clear();
  bulk_groups_.clear();
  products_.clear();
  my_products_ = nullptr;
  proxy_fences_.assign(agents, 0);
  cluster_fences_.assign(agents, 0);
  fuel_ = blocks_per_clock_check;  // so that a block's order of threads does not depend on the blocks before it
  spins_ = 0;
  here_ = nullptr;
  for (unsigned i = 0; i < cluster.size; i++) begin_block(i, cluster.member(i));
  enter_block(0);
}

void Checker::begin_block(unsigned number, Worker& worker) {
  if (number == members_.size()) members_.push_back(std::make_unique<BlockOfCluster>(storage_size_));
  BlockOfCluster& block = *members_[number];
  block.worker = &worker;
  block.storage_begin = worker.storage_begin();
  block.ordered_since = block_time_;
  block.common.clear();
  block.ended.clear();
  block.visits.clear();
  // Values of an earlier block may not be taken for this block's: they are overwritten, and count as unwritten.
  for (uint64_t i = 0; i < request_.shared_count; i++) {
    const SharedVariable& variable = request_.shared[i];
    if (variable.kind == uint32_t(StorageKind::read_only)) {
      memset(&block.written[variable.offset], built_in, variable.size);
    } else if (variable.kind == uint32_t(StorageKind::shared)) {
      fill_unwritten(reinterpret_cast<char*>(block.storage_begin + variable.offset), variable.size, worker.launch().unwritten());
      memset(&block.written[variable.offset], no_value, variable.size);
    }
  }
}

void Checker::enter_block(unsigned number) {
  if (here_) here_->ordered_since = ordered_since_;
  here_ = members_[number].get();
  worker_ = here_->worker;
  ordered_since_ = here_->ordered_since;
  look_at(*here_);
}

void Checker::barrier_passed() {
  ordered_since_ = ++time_;
  spins_ = 0;
  if (!known_.empty()) share_knowledge();
}

// Each of the lanes is now synchronised with all that any of them was synchronised with.
void Checker::lanes_joined(unsigned first, unsigned lanes) {
  const unsigned warp = first / 32;
  const uint32_t joined = ++time_;
  spins_ = 0;
  if (!known_.empty()) share_knowledge(warp, lanes);
  const unsigned there = std::min(32u, threads_ - first % most_agents);
  if (lanes == (there == 32 ? ~0u : (1u << there) - 1u)) {  // the usual case
    warp_joined_[warp] = my_warp_joined_ = joined;
    return;
  }
  if (seen_.empty()) seen_.resize(warp_joined_.size() * 32 * 32);
  is_simple_ = false;
  uint32_t known[32] = {};
  for (unsigned left = lanes; left; left &= left - 1) {
    const unsigned thread = warp * 32 + unsigned(__builtin_ctz(left));
    for (unsigned i = 0; i < 32; i++) known[i] = std::max(known[i], seen(thread, i));
  }
  for (unsigned i = 0; i < 32; i++) known[i] = lanes >> i & 1u ? joined : known[i];
  for (unsigned left = lanes; left; left &= left - 1) {
    memcpy(&seen_[(warp * 32ull + unsigned(__builtin_ctz(left))) * 32], known, sizeof known);
  }
}

// When a thread last synchronised with a lane of its warp.
uint32_t Checker::seen(unsigned thread, unsigned lane) const {
  const uint32_t whole = warp_joined_[thread / 32];
  return seen_.empty() ? whole : std::max(whole, seen_[thread * 32ull + lane]);
}

// The blocks of a launch that depend on their order run one after another, in that order.
void Checker::needs_order() {
  order_matters_ = true;
  if (worker_->launch().is_attempt()) worker_->refute_attempt();
}

// --- accesses ---

void Checker::access(uint64_t address, uint32_t size, uint32_t what, uint64_t pc) {
  if (on_own_stack(address)) {
    if (my_products_) local_access(address, size, what, pc);
    return;
  }
  const uint64_t offset = address - storage_begin_;
  if (offset < storage_size_) return shared_access(offset, size, what, pc);
  if (is_cluster_) {
    if (BlockOfCluster* block = block_with(address)) {
      visit(*block, {address - block->storage_begin, pc, size, what, time_}, true);
      const Elsewhere there(*this, *block);
      return shared_access(address - storage_begin_, size, what, pc);
    }
  }
  Range* range = by_place_[pc / 4 % 64];
  if (!range || address - range->region.begin >= range->length) range = &range_of(address, size, what, pc);
  global_access(*range, address - range->region.begin, size, what, pc);
}

void Checker::shared_access(uint64_t offset, uint32_t size, uint32_t what, uint64_t pc) {
  const bool plain = all_are(value, &shared_written_[offset], size) && !(what & access_atomic);
  if (!plain && !examine_shared(offset, size, what, pc)) return;
  // `volatile` orders nothing between the threads of a warp, so in shared memory it is an access like any other.
  record<Space::shared>(*shared_, offset, size, what & ~uint32_t(access_volatile), pc, offset);
}

void Checker::global_access(Range& range, uint64_t offset, uint32_t size, uint32_t what, uint64_t pc) {
  const bool usual = what & access_write ? range.freely_written : range.plain;
  const bool plain = usual && offset + size <= range.length && !(what & (access_atomic | access_volatile));
  if (!plain && !examine_global(range, offset, size, what, pc)) return;
  record<Space::global>(range.shadow, offset, size, what, pc, range.region.begin + offset);
}

Checker::Range& Checker::range_of(uint64_t address, uint32_t size, uint32_t what, uint64_t pc) {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](uint64_t a, const Range& range) { return a < range.region.begin; });
  if (after == ranges_.begin() || address >= std::prev(after)->region.end) {
    out_of_bounds(Space::global, address, size, what, pc);
  }
  return *(by_place_[pc / 4 % 64] = &*std::prev(after));
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

// Whether an access to shared memory is one that can race, after all checks but that.
bool Checker::examine_shared(uint64_t offset, uint32_t size, uint32_t what, uint64_t pc) {
  const uint16_t owner = owner_[offset];
  const bool whole = owner && offset + size <= storage_size_ && owner_[offset + size - 1] == owner;
  if (!whole) out_of_bounds(Space::shared, offset, size, what, pc);
  if (request_.shared[owner - 1].kind != uint32_t(StorageKind::shared)) {  // threadIdx and its like
    if (what & access_write) out_of_bounds(Space::shared, offset, size, what, pc);
    return false;
  }
  if ((what & access_read) && lacks_values(shared_written_, offset, size)) {
    uninitialised(&shared_written_[offset], Space::shared, offset, size, what, pc);
    if (at_->worker->is_being_copied(storage_begin_ + offset, size)) return false;  // reported already
  }
  if (what & access_write) memset(&shared_written_[offset], 1, size);
  if (what & access_atomic) synchronise({storage_begin_ + offset, units_.back().second}, what);
  return true;
}

// The same for global memory.
bool Checker::examine_global(Range& range, uint64_t offset, uint32_t size, uint32_t what, uint64_t pc) {
  const Region& region = range.region;
  const uint64_t address = region.begin + offset;
  if (address + size > region.end) out_of_bounds(Space::global, address, size, what, pc);
  if (region.kind == uint32_t(RegionKind::read_only)) {
    if (what & access_write) out_of_bounds(Space::global, address, size, what, pc);
    return false;
  }
  if (region.inside) {
    uint32_t inside = 0;
    for (uint32_t i = 0; i < size; i++) inside += region.inside[offset + i] != 0;
    if (inside == 0 || ((what & access_write) && inside != size)) {
      out_of_bounds(Space::global, address, size, what, pc);
    }
  }
  if ((what & access_write) && region.read_only) {
    const uint8_t* first = region.read_only + offset;
    if (std::any_of(first, first + size, [](uint8_t byte) { return byte; })) {
      worker_->launch().report(memory_finding(FindingKind::read_only, Space::global, address, size, what, pc));
    }
  }
  const bool whole_elements = offset % region.granule == 0 && size % region.granule == 0;
  if (region.written && !(whole_elements && all_are(1, region.written + offset, size))) {
    if ((what & access_read) &&
        (lacks_values(region.written, offset, size) || has_partial_element(region, offset, size))) {
      uninitialised(region.written + offset, Space::global, address, size, what, pc);
    }
    if (what & access_write) memset(region.written + offset, 1, size);
  }
  if (what & (access_atomic | access_volatile)) {
    needs_order();
    synchronise({address, 0}, what);
  }
  return true;
}

// A load through the cache for read-only data, which nothing keeps up to date while the kernel runs. What else is wrong
// with it, the load itself shows; so does a write that is not ordered before it.
void Checker::read_only_load(uint64_t address, uint32_t size, uint64_t pc) {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](uint64_t a, const Range& range) { return a < range.region.begin; });
  if (after == ranges_.begin()) return;
  Range& range = *std::prev(after);
  Shadow& shadow = range.shadow;
  if (address + size > range.region.end || !shadow.any_write) return;
  const uint64_t offset = address - range.region.begin;
  for (uint64_t cell = offset >> shadow.shift(); cell <= (offset + size - 1) >> shadow.shift(); cell++) {
    const Record& written = shadow.write(cell);
    const uint64_t begin = std::max(offset, cell << shadow.shift());
    const uint64_t end = std::min(offset + size, (cell + 1) << shadow.shift());
    const uint64_t bytes = ((1ull << (end - begin)) - 1ull) << (begin - (cell << shadow.shift()));
    if (!written.time || !(written.bytes == whole_cell || (written.bytes & bytes))) continue;
    if (!is_ordered<Space::global>(written)) continue;
    return report_race<Space::global>(written, address, size, access_read, pc,
                                      "a read-only load need not see what the same launch has written");
  }
}

// --- races ---

template <Space space>
void Checker::record(Shadow& shadow, uint64_t offset, uint32_t size, uint32_t what, uint64_t pc, uint64_t address) {
  if (!shadow.fits(offset, size)) {
    last_update_ = nullptr;  // it may have been in the records' old place
    if (!shadow.make_fit(offset, size)) worker_->abandon_without_memory();
  }
  const uint64_t granule = uint64_t(1) << shadow.shift();
  for (uint64_t at = offset; at < offset + size;) {
    const uint64_t cell = at >> shadow.shift();
    const uint64_t end = std::min((cell + 1) << shadow.shift(), offset + size);
    const auto bytes = uint8_t(((1u << (end - at)) - 1u) << (at & (granule - 1)));
    record_cell<space>(shadow, cell, end - at == granule ? whole_cell : bytes, size, what, pc, address);
    at = end;
  }
}

void Checker::record_shared(uint64_t offset, uint32_t size, uint32_t what, uint64_t pc) {
  record<Space::shared>(*shared_, offset, size, what, pc, offset);
}

template <Space space>
void Checker::record_cell(Shadow& shadow, uint64_t cell, uint8_t bytes, uint32_t size, uint32_t what, uint64_t pc,
                          uint64_t address) {
  const Record* clash = nullptr;
  const auto compare = [&](const Record& earlier) {
    const bool are_atomic = is_atomic(earlier.access) && is_atomic(what);
    // Their order is asked for last: it may take a search through the releases of all blocks.
    if (!are_atomic && (earlier.bytes & bytes) && !is_ordered<space>(earlier)) clash = &earlier;
  };
  if (shadow.any_write) compare(shadow.write(cell));
  if (shadow.any_plain && is_atomic(what)) compare(shadow.plain(cell));
  if (shadow.any_other_update && !is_atomic(what) && hides_updates(shadow.write(cell))) compare(shadow.other_update(cell));
  if (what & access_write) {
    if (shadow.any_read) compare(shadow.read(cell));
    if (shadow.any_other_read) compare(shadow.other_read(cell));
  }
  const char* why = "";
  const bool is_unit = agent_ != me_ && agent_ % most_agents >= bulk_reads;  // which reads what threads wrote
  if (!clash && is_unit && what == access_read && shadow.any_write && lacks_proxy_fence(shadow.write(cell))) {
    clash = &shadow.write(cell);
    why = "there is no fence.proxy.async between them";
  }
  if (clash && finds_races_) report_race<space>(*clash, address, size, what, pc, why);
  const Record mine{time_, uint32_t(pc - module_base_), agent_, bytes, uint8_t(what)};
  if (what & access_write) {
    if (is_atomic(what) && shadow.any_write && may_race_with_atomics<space>(shadow.write(cell))) {
      shadow.any_plain = true;
      shadow.plain(cell) = shadow.write(cell);
    }
    if (is_atomic(what) && shadow.any_write) keep_update_of_other(shadow, cell);
    shadow.any_write = true;
    shadow.write(cell) = mine;
    last_update_ = &shadow.write(cell);
  } else {
    shadow.any_read = true;
    Record& first = shadow.read(cell);
    const bool takes_place = is_ordered<space>(first) && !(is_atomic(what) && may_race_with_atomics<space>(first));
    if (!takes_place) shadow.any_other_read = true;
    (takes_place ? first : shadow.other_read(cell)) = mine;
  }
}

void Checker::keep_update_of_other(Shadow& shadow, uint64_t cell) {
  const Record& last = shadow.write(cell);
  if (!is_atomic(last.access) || (last.thread == agent_ && last.time >= block_time_)) return;
  shadow.any_other_update = true;
  shadow.other_update(cell) = last;
}

// Whether an atomic access that took the record's place would hide that it is not atomic: others may not be ordered
// after it, even if the running thread is.
template <Space space>
bool Checker::may_race_with_atomics(const Record& earlier) const {
  if (!earlier.time || is_atomic(earlier.access)) return false;
  return space == Space::global || is_cluster_ || earlier.time >= ordered_since_;
}

// Whether an earlier access happened before the running thread's, by CUDA's rules: by the same thread, before a barrier
// of the block, before a barrier of the warp, or through atomics after a fence. In shared memory also if it was another
// block's: then it was to other memory.
template <Space space>
bool Checker::is_ordered(const Record& earlier) const {
  if (space == Space::shared && earlier.time < block_time_) return true;
  if (space == Space::global && !earlier.time) return true;
  if (earlier.time >= block_time_ && is_ordered_in_block(earlier.thread, earlier.time)) return true;
  return !acquired_.empty() && is_ordered_through_atomics(earlier);
}

bool Checker::is_ordered_in_block(uint16_t agent, uint32_t time) const {
  // No barrier of threads waits for what works asynchronously: that takes a wait for it. A block's barrier does not wait
  // for other blocks of its cluster.
  if (!is_thread(agent) || member_of(agent) != member_of(me_)) return time < knows(me_, agent);
  if (time < ordered_since_ || agent == me_) return true;
  if (agent / 32 == me_ / 32 && time < seen(me_, agent % 32)) return true;
  return time < knows(me_, agent);
}

template <Space space>
void Checker::report_race(const Record& clash, uint64_t address, uint32_t size, uint32_t what, uint64_t pc,
                          const char* why) {
  Finding found = memory_finding(FindingKind::race, space, address, size, what, pc);
  found.other_pc = clash.pc;
  found.other_access = clash.access;
  const bool in_cluster = clash.time >= block_time_ && member_of(clash.thread) != member_of(me_);
  if (in_cluster && !*why) {
    why = worker_->launch().is_cooperative() ? "no barrier of the grid is between them" : "no barrier of the cluster is between them";
  }
  snprintf(found.text, sizeof found.text, "%s", why);
  worker_->describe(unit_at(clash.time) - 1, thread_of(clash.thread), found.other_block, found.other_thread);
  worker_->launch().report(found);
}

// The number, plus one, of the cluster that ran at a time.
uint32_t Checker::unit_at(uint32_t time) const {
  const auto after = std::upper_bound(units_.begin(), units_.end(), time,
                                      [](uint32_t t, const auto& unit) { return t < unit.first; });
  return std::prev(after)->second;
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
  if (space == Space::shared) worker_->set_owner(found, *at_->worker);
  return found;
}

void Checker::uninitialised(const uint8_t* written, Space space, uint64_t address, uint32_t size, uint32_t what,
                            uint64_t pc) {
  Finding found = memory_finding(FindingKind::uninitialised, space, address, size, what, pc);
  found.value = std::any_of(written, written + size, [](uint8_t byte) { return byte; });  // whether some bytes have one
  if (space == Space::shared && at_->worker->is_being_copied(storage_begin_ + address, size)) {
    found.value = 2;
  } else {
    found.is_suspicion = space == Space::shared && !(what & access_atomic);
  }
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

void Checker::ran_for_long(uint64_t pc) {
  fuel_ = blocks_per_clock_check;
  worker_->check_deadline(relative(pc));
  if (++spins_ % clock_checks_before_yield == 0) worker_->yield(pc);
}

// In a checked launch an update counts as one read and one write, at the line that called it.
void note_atomic(const volatile void* address, unsigned size, AtomicKind kind, Order order) {
  if (Checker* checker = running_checker()) {
    const auto at = reinterpret_cast<uint64_t>(address);
    const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
    checker->atomic_begins();
    if (at % size) checker->fault(FindingKind::misaligned, pc, at, size, "an atomic access");
    const uint32_t reads = kind == AtomicKind::write ? 0 : access_read, writes = kind == AtomicKind::read ? 0 : access_write;
    const uint32_t what = reads | writes | access_atomic | uint32_t(order);
    if (size == 4 && checker->atomic_at_once<4>(at, what, pc)) return;
    if (size == 8 && checker->atomic_at_once<8>(at, what, pc)) return;
    checker->access(at, size, what, pc);
  } else {
    current_worker()->note_atomic(reinterpret_cast<uint64_t>(__builtin_return_address(0)));
  }
}

}  // namespace kernelsim

extern "C" __attribute__((visibility("default"))) uint64_t kernelsim_module_base() {
  using namespace kernelsim;
  return this_module().base;
}
