// Asynchronous copies into shared memory: they are made when their thread waits for them, or ends.

#include <string.h>

#include <algorithm>

#include "checker.h"

namespace kernelsim {

void Worker::copy_async(char* to, const char* from, unsigned size, unsigned from_size, uint64_t pc) {
  if (checker_) checker_->copy_begins(to, from, size, from_size, pc);
  for (unsigned at = 0; at < size; at += sizeof(AsyncCopy::data)) {
    AsyncCopy copy{to + at, std::min<unsigned>(size - at, sizeof copy.data), current_->committed, pc, {}};
    if (at < from_size) memcpy(copy.data, from + at, std::min(copy.size, from_size - at));
    current_->copies.push_back(copy);
  }
}

void Worker::wait_for_copies(unsigned groups, bool open) {
  Thread& thread = *current_;
  complete_copies(thread, open ? thread.committed + 1 : thread.committed - std::min(groups, thread.committed));
}

// Completes the copies of the groups before one, in their order.
void Worker::complete_copies(Thread& thread, unsigned before) {
  auto& copies = thread.copies;
  const auto end = std::find_if(copies.begin(), copies.end(), [=](const AsyncCopy& c) { return c.group >= before; });
  for (auto copy = copies.begin(); copy != end; ++copy) {
    memcpy(copy->to, copy->data, copy->size);
    if (checker_) checker_->copy_ends(copy->to, copy->size, copy->pc);
  }
  copies.erase(copies.begin(), end);
}

bool Worker::is_being_copied(uint64_t address, uint64_t size) const {
  const auto overlaps = [=](const char* to, uint64_t bytes) {
    const auto begin = reinterpret_cast<uint64_t>(to);
    return address < begin + bytes && begin < address + size;
  };
  const auto fills = [&](const AsyncCopy& copy) { return overlaps(copy.to, copy.size); };
  const auto fills_in_bulk = [&](const BulkCopy& copy) { return overlaps(copy.to, copy.data.size()); };
  return std::any_of(threads_.begin(), threads_.end(),
                     [&](const Thread& thread) {
                       return std::any_of(thread.copies.begin(), thread.copies.end(), fills);
                     }) ||
         std::any_of(mbarriers_.begin(), mbarriers_.end(), [&](const auto& one) {
           return std::any_of(one.second.copies.begin(), one.second.copies.end(), fills_in_bulk);
         });
}

char* aligned_row(uint64_t address) {
  Checker* checker = running_checker();
  if (checker && address % 16) {
    const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
    checker->fault(FindingKind::misaligned, pc, address, 16, "a row of ldmatrix or stmatrix");
  }
  return reinterpret_cast<char*>(address);
}

void check_alignment(const void* address, unsigned multiple, const char* what) {
  const auto at = reinterpret_cast<uint64_t>(address), pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  Checker* checker = running_checker();
  if (checker && at % multiple) checker->fault(FindingKind::misaligned, pc, at, multiple, what);
}

// A copy reads its source and takes its target at once. What was there is lost, and what will be there is not yet.
void Checker::copy_begins(const char* to, const char* from, uint32_t size, uint32_t from_size, uint64_t pc) {
  const auto target = reinterpret_cast<uint64_t>(to), source = reinterpret_cast<uint64_t>(from);
  for (const uint64_t address : {target, source}) {
    if (address % size && (address == target || from_size)) {
      fault(FindingKind::misaligned, pc, address, size, "an asynchronous copy");
    }
  }
  if (from_size) access(source, from_size, access_read, pc);
  if (target - storage_begin_ >= storage_size_) out_of_bounds(Space::global, target, size, access_write, pc);
  access(target, size, access_write, pc);
  memset(&shared_written_[target - storage_begin_], 0, size);
  memset(reinterpret_cast<void*>(target), 0xff, size);
}

void Checker::copy_ends(const char* to, uint32_t size, uint64_t pc) {
  access(reinterpret_cast<uint64_t>(to), size, access_write, pc);
}

}  // namespace kernelsim
