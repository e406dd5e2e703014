// Order through atomics: what a thread did before a release is ordered before what follows another thread's acquire that
// saw it. CUDA's functions (atomicAdd) and volatile accesses count as acquires, and as releases after a fence. Where the
// source states an order (cuda::atomic, PTX's .relaxed and the like), it counts as that.

#include <algorithm>

#include "checker.h"

namespace kernelsim {

// A fence makes releases of the atomic writes that follow it, and acquires of the atomic reads before it.
void Checker::fenced(bool acquires, bool releases) {
  needs_order();
  if (acquires) acquire_what_was_read();
  if (!releases) return;
  fenced_for_cluster();
  const bool nobody_saw_the_last = fenced_[me_].time && is_known_to_me_only(fenced_[me_].time);
  fences_[units_.back().second].add(me_, time_, nobody_saw_the_last);
  fenced_[me_] = {time_, ordered_since_};
}

bool Checker::is_ordered_through_atomics(const Record& earlier) const {
  searched_.clear();
  for (const Acquired& seen : acquired_) {
    if (earlier.time > seen.time) continue;  // it came after all releases that were seen: there is nothing to search
    if (is_ordered_in_block(seen.thread, seen.time) && reaches(*seen.object, seen.count, earlier, most_links)) return true;
  }
  return false;
}

bool Checker::reaches(const SyncObject& object, uint32_t count, const Record& earlier, int depth) const {
  // What was searched in vain, or is being searched, from as many releases over as many links, need not be again: else
  // the time would be exponential in the links.
  auto& searched = searched_[&object];
  for (int d = depth; d <= most_links; d++) {
    if (searched[d] >= count) return false;
  }
  searched[depth] = count;
  // The latest first: it covers most, and what was searched from it need not be searched from those before.
  const auto newest_of = [count](const std::vector<Release>& releases) {
    const auto after = std::partition_point(releases.begin(), releases.end(),
                                            [count](const Release& release) { return release.index < count; });
    return std::make_reverse_iterator(after);
  };
  const auto found = object.by_block.find(unit_at(earlier.time));
  if (found != object.by_block.end()) {
    const std::vector<Release>& releases = found->second;
    const auto covers_it = [&](const Release& release) { return covers(release, earlier); };
    if (std::any_of(newest_of(releases), releases.rend(), covers_it)) return true;
  }
  if (depth == 0) return false;
  for (const auto& [block, releases] : object.by_block) {
    const auto newest = newest_of(releases);
    if (newest == releases.rend()) continue;
    const std::vector<Acquired>& log = logs_.at(block);
    for (uint32_t i = newest->acquired; i--;) {  // these are what those before have acquired, and more
      const Acquired& seen = log[i];
      if (seen.object == &object || earlier.time > seen.time) continue;
      if (reaches(*seen.object, seen.count, earlier, depth - 1)) return true;
    }
  }
  return false;
}

// Whether what a release makes visible has an earlier access. What the releasing thread knew of others when it fenced is
// visible with what it did itself; what it knew only later, if these fenced themselves before it knew.
bool Checker::covers(const Release& release, const Record& earlier) const {
  if (release.thread == earlier.thread) {
    return earlier.time < release.time || (earlier.time == release.own_time && is_atomic(earlier.access));
  }
  const bool is_in_block = member_of(release.thread) == member_of(earlier.thread);
  if (is_in_block && earlier.time < release.known_since) return true;
  uint32_t known = release.known.at(earlier.thread);
  if (release.thread / 32 == earlier.thread / 32) known = std::max(known, release.seen[earlier.thread % 32]);
  if (earlier.time < std::min(known, release.time)) return true;
  if (is_in_block) known = std::max(known, release.barrier_time);
  if (earlier.time >= known) return false;
  const auto fences = fences_.find(release.block);
  return fences != fences_.end() && fences->second.any_between(earlier.thread, earlier.time, known);
}

// An atomic access acquires the releases of others there, or will at the thread's next fence; and it releases its thread's
// accesses if it is a release, or the thread has fenced.
void Checker::synchronise(const Location& at, uint32_t what) {
  const auto known = objects_.find(at);
  if (known != objects_.end() && (what & access_read)) {
    const SyncObject* object = known->second.get();
    const Acquired now{object, object->count, me_, time_};
    if (!(what & access_ordered) || (what & access_acquires)) {
      is_simple_ &= !acquire(now);
    } else {
      note_read(now);
    }
  }
  if (!(what & access_write)) return;
  if (what & access_releases) return release_at(at, {++time_, ordered_since_});
  if (fenced_[me_].time) release_at(at, fenced_[me_]);
}

void Checker::release_at(const Location& at, const LastFence& fence) {
  auto& object = objects_[at];
  if (!object) object = std::make_unique<SyncObject>();
  const uint32_t block = units_.back().second;
  // What the thread itself did after its fence may reach others later than the atomic access does.
  Release release{object->count++, block, fence.time, fence.known_since, ordered_since_, 0, me_, {},
                  uint32_t(logs_[block].size()), {}};
  if (is_cluster_) release_to(release.known);
  for (unsigned lane = 0; lane < 32; lane++) release.seen[lane] = seen(me_, lane);
  release.own_time = ++time_;
  object->by_block[block].push_back(std::move(release));
}

// A relaxed read of what others released.
void Checker::note_read(const Acquired& now) {
  for (Acquired& earlier : read_) {
    if (earlier.object != now.object || earlier.thread != now.thread) continue;
    if (earlier.count == now.count) return;
    if (is_known_to_me_only(earlier.time)) {
      earlier = now;
      return;
    }
  }
  read_.push_back(now);
}

// What the running thread has read, and what others have that are synchronised with it, it acquires. Others may come to
// a fence of their own after they synchronised with the one that read.
void Checker::acquire_what_was_read() {
  ++time_;
  for (const Acquired& seen : read_) {
    if (!is_ordered_in_block(seen.thread, seen.time)) continue;
    is_simple_ &= !acquire({seen.object, seen.count, me_, time_});
  }
  read_.erase(std::remove_if(read_.begin(), read_.end(),
                             [this](const Acquired& seen) {
                               return seen.thread == me_ && is_known_to_me_only(seen.time);
                             }),
              read_.end());
}

// Adds to what the block's threads have seen, if it is new. A thread that takes work from a counter, again and again, sees
// ever more of its releases: what it saw there before is left out, unless another thread knows of it.
bool Checker::acquire(const Acquired& now) {
  const uint64_t key = reinterpret_cast<uint64_t>(now.object) << 16 | now.thread;
  const auto [at, is_first] = acquired_at_.try_emplace(key, uint32_t(acquired_.size()));
  if (!is_first && acquired_[at->second].count >= now.count) return false;
  logs_[units_.back().second].push_back(now);
  if (!is_first && is_known_to_me_only(acquired_[at->second].time)) {
    acquired_[at->second] = now;
  } else {
    at->second = uint32_t(acquired_.size());
    acquired_.push_back(now);
  }
  return true;
}

// Whether this thread has synchronised with no other one of its block since a time.
bool Checker::is_known_to_me_only(uint32_t time) const {
  if (time < ordered_since_ || !known_.empty()) return false;
  for (unsigned lane = 0; lane < 32; lane++) {
    if (time < seen(me_, lane)) return false;
  }
  return true;
}

}  // namespace kernelsim
