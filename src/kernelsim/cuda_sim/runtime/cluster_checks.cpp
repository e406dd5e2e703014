// What the checker knows of the blocks of a cluster: whose shared memory is accessed, and whether that block has started
// and has not ended. A barrier of the cluster, or an mbarrier, has to order an access after the one and before the other.

#include <stdio.h>

#include "checker.h"

namespace kernelsim {

BlockOfCluster* Checker::block_with(uint64_t address) {
  if (address - here_->storage_begin < storage_size_) return here_;
  if (!is_cluster_ || worker_->launch().is_cooperative()) return nullptr;  // blocks of a grid have none of each other's
  const unsigned size = here_->worker->cluster().size;
  for (unsigned i = 0; i < size; i++) {
    if (address - members_[i]->storage_begin < storage_size_) return members_[i].get();
  }
  return nullptr;
}

bool Checker::knows_start_of(const BlockOfCluster& block) const {
  const unsigned number = block.worker->number();
  return here_->common.knows(number) || (!known_.empty() && known_[me_].knows(number));
}

// The running thread, or what works for it, is about to access shared memory of another block. If the visit is kept,
// something has to order it before that block's end.
void Checker::visit(BlockOfCluster& block, const Visit& now, bool is_kept) {
  if (!finds_races_ || owner_[now.offset] == 0) return;  // a copy arrives, or it is out of bounds
  if (!knows_start_of(block)) {
    report_visit(block, now, me_, "may not have started: no barrier of the cluster comes before the access");
  }
  if (block.worker->cluster().has_ended(block.worker->number())) {
    report_visit(block, now, me_, "may have ended: no barrier of the cluster comes after the access");
  } else if (is_kept) {
    block.visits[agent_] = now;
  }
}

// An arrival at an mbarrier that releases. (One that releases nothing needs no order.)
void Checker::arrives_elsewhere(uint64_t address, uint64_t pc) {
  BlockOfCluster* block = block_with(address);
  if (!block || block == here_) return;
  block->visits[agent_] = {address - block->storage_begin, pc, 8, access_read | access_write | access_atomic, time_};
}

void Checker::block_ended() {
  if (!is_cluster_) return;
  for (const auto& [agent, visit] : here_->visits) {
    if (visit.time < here_->ended.at(agent)) continue;
    report_visit(*here_, visit, thread_of(agent), "may have ended: no barrier of the cluster comes after the access");
  }
}

// Of a thread's accesses, the last one is reported for all.
void Checker::report_visit(const BlockOfCluster& block, const Visit& visit, unsigned agent, const char* what) {
  Finding found{};
  found.kind = uint32_t(FindingKind::cluster);
  found.space = uint32_t(Space::shared);
  found.address = visit.offset;
  found.size = visit.size;
  found.access = visit.what;
  found.pc = relative(visit.pc);
  worker_->describe(worker_->cluster().unit(), agent, found.block, found.thread);
  members_[member_of(agent)]->worker->set_owner(found, *block.worker);
  snprintf(found.text, sizeof found.text, "%s", what);
  worker_->launch().report(found);
}

void Checker::release_fenced_to(VectorClock& clock) {
  clock.note_start(member_of(me_));
  const uint32_t fenced = cluster_fences_[me_];
  if (!fenced) return;
  clock.raise_block(member_of(me_), std::min(ordered_since_, fenced));
  for (unsigned lane = 0; lane < 32; lane++) {
    clock.raise(me_ / 32 * 32 + lane, std::min(seen(me_, lane), fenced));
  }
  clock.join(here_->common);
  if (!known_.empty()) clock.join(known_[me_]);
  clock.raise(me_, fenced);
}

}  // namespace kernelsim
