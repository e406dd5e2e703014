// Runs the blocks of a checked launch at the same time, where that cannot be told from one after another.
#pragma once

#include "checker.h"

namespace kernelsim {

// Runs blocks on this OS thread until the launch has no more.
void run_worker(Launch& launch, Watchdog& watchdog, Checker* checker);

// Runs the blocks that are left on some OS threads. False: it is as if they had not run.
bool attempt_blocks_together(Launch& launch, Watchdog& watchdog, Checker& before, unsigned threads);

}  // namespace kernelsim
