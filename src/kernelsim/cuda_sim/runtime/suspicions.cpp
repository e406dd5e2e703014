#include "suspicions.h"

#include <iterator>
#include <new>

namespace kernelsim {

namespace {

// Two bytes of a number: as the high ones of a float, double, half or bfloat16 they make it neither huge nor tiny.
uint16_t number_at(uint64_t place) {
  uint64_t random = place;
  const uint64_t bits = next_random(random);
  return uint16_t((bits & 0x87ff) | 0x3c00);
}

bool is_same_place(const Finding& a, const Finding& b) {
  return a.kind == b.kind && a.pc == b.pc && a.line == b.line && a.other_pc == b.other_pc;
}

// Whether the launch, with other values in what is not written, does and finds the same as before.
bool repeats(Launch& launch, const Snapshot& before, const Snapshot& after, const std::vector<Finding>& certain,
             Unwritten with, void (*run)(Launch&)) {
  before.restore();
  launch.begin_repeat(with);
  run(launch);
  const Request& request = launch.request;
  if (request.out_of_memory || request.finding_count != certain.size()) return false;
  return std::equal(certain.begin(), certain.end(), request.findings, is_same_place) && after.is_what_there_is();
}

bool ended_in_time(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.kind == uint32_t(FindingKind::time_limit);
  });
}

// The launch is repeated until it does something else. Memory is as after the first time then.
bool depends_on_unwritten(Launch& launch, const Snapshot& before, const std::vector<Finding>& certain,
                          void (*run)(Launch&)) {
  std::unique_ptr<Snapshot> after;
  bool depends = false;
  try {
    after = std::make_unique<Snapshot>(launch.request);
    for (const Unwritten with : {Unwritten::zeros, Unwritten::numbers}) {
      depends = depends || !repeats(launch, before, *after, certain, with, run);
    }
  } catch (const std::exception&) {
    depends = true;  // for all that is known: there is no memory or no thread to repeat it
  }
  if (after) after->restore();
  launch.request.out_of_memory = 0;
  return depends;
}

}  // namespace

void fill_unwritten(char* at, uint64_t size, Unwritten with) {
  if (with != Unwritten::numbers) {
    memset(at, with == Unwritten::ones ? 0xff : 0, size);
    return;
  }
  for (uint64_t i = 0; i < size; i++) at[i] = char(number_at(i / 2) >> (i % 2 * 8));
}

std::unique_ptr<Snapshot> snapshot_for_repeats(const Request& request) {
  const bool any_shared = std::any_of(request.shared, request.shared + request.shared_count, [](const auto& variable) {
    return variable.kind == uint32_t(StorageKind::shared);
  });
  if (!request.repeatable || !any_shared) return nullptr;
  try {
    return std::make_unique<Snapshot>(request);
  } catch (const std::bad_alloc&) {
    return nullptr;  // then each suspicion is a finding
  }
}

void examine_suspicions(Launch& launch, const Snapshot& before, void (*run)(Launch&)) {
  Request& request = launch.request;
  const std::vector<Finding> all(request.findings, request.findings + request.finding_count);
  std::vector<Finding> certain;
  std::copy_if(all.begin(), all.end(), std::back_inserter(certain), [](const Finding& f) { return !f.is_suspicion; });
  if (certain.size() == all.size() || request.out_of_memory || !ended_in_time(certain)) return;
  const std::vector<Finding>& kept = depends_on_unwritten(launch, before, certain, run) ? all : certain;
  std::copy(kept.begin(), kept.end(), request.findings);
  request.finding_count = uint32_t(kept.size());
}

}  // namespace kernelsim
