// Reads of shared memory that no thread wrote, and whether a launch depends on what they read.
//
// A tile that a matrix does not fill has rows that no copy writes. A right kernel may read them, if what it computes from
// them is thrown away. So such a read is a suspicion. Once the launch has ended it is repeated, with other values in what
// was not written. If its results or its findings differ, the suspicions are findings; if not, they are dropped.
#pragma once

#include <memory>

#include "scheduler.h"
#include "snapshot.h"

namespace kernelsim {

void fill_unwritten(char* at, uint64_t size, Unwritten with);

// What it takes to repeat a launch; null if it cannot be repeated, or reads no shared memory.
std::unique_ptr<Snapshot> snapshot_for_repeats(const Request& request);

// Runs the launch again as often as it takes, and leaves its findings and its memory as they were after the first time.
void examine_suspicions(Launch& launch, const Snapshot& before, void (*run)(Launch&));

}  // namespace kernelsim
